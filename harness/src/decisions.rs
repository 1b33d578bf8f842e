//! The decisions pass: does a strategy decide the same again, given the same answers of the device?
//!
//! The run is logged, call by call, on whatever device it takes place. Then the same trace goes through a fresh
//! strategy whose device answers from the log: every call has to be the logged one, and every block has to lie where it
//! lay. So a run on a card can be repeated anywhere, and a strategy that looks at a clock, at randomness or at the
//! order of a hash map is found out. A third run on the simulated device tells how often the two devices' own answers
//! (addresses, above all) made a difference.

use crate::interrupt::Interrupt;
use crate::replay::{Finding, Outcome, Replay, Tape, step};
use allocator_core::{Answer, Call, Device, LogDevice, Machine, ScriptDevice, SimDevice, Step};
use std::collections::BTreeMap;
use workload_gen::{Event, Trace};

/// The result of the pass.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decisions {
    /// Blocks that were handed out.
    pub blocks: u64,
    /// Device calls of the strategy.
    pub device_calls: u64,
    /// Blocks that lie elsewhere on the simulated device: in another segment, counted in the order in which they were
    /// taken from the driver, or at another offset. `None` if the strategy does not run there.
    pub elsewhere: Option<u64>,
    /// The first event whose block lies elsewhere.
    pub first_elsewhere: Option<u64>,
    /// What went wrong, if anything.
    pub finding: Option<Finding>,
}

/// Where a block lies: the number of the driver's answer that its memory came with, and the offset from there.
type Place = Option<(u64, u64)>;

/// Follows the log and knows which memory is whose.
#[derive(Debug, Default)]
struct Places {
    taken: BTreeMap<u64, u64>,
    count: u64,
}

impl Places {
    fn follow(&mut self, steps: &[Step]) {
        for step in steps {
            match (&step.call, step.answer) {
                (
                    Call::Malloc { .. } | Call::Reserve { .. } | Call::MallocAsync { .. },
                    Ok(Answer::Address(address)),
                ) => {
                    self.taken.insert(address, self.count);
                    self.count += 1;
                }
                (Call::Free { ptr } | Call::FreeAsync { ptr, .. } | Call::Unreserve { va: ptr, .. }, Ok(_)) => {
                    self.taken.remove(ptr);
                }
                _ => {}
            }
        }
    }

    fn place(&self, ptr: u64) -> Place {
        self.taken.range(..=ptr).next_back().map(|(start, &number)| (number, ptr - start))
    }
}

/// What a logged run did.
#[derive(Debug, Default)]
struct Logged {
    steps: Vec<Step>,
    /// The event that asked for each block, its address, and its place.
    blocks: Vec<(u64, u64, Place)>,
    finding: Option<Finding>,
}

type Build<'b> = &'b dyn Fn(&mut dyn Device) -> Result<Box<dyn Replay>, Finding>;

fn logged(trace: &Trace, build: Build<'_>, machine: impl Machine, interrupt: &Interrupt) -> Result<Logged, Finding> {
    let mut log = LogDevice::new(machine);
    let mut strategy = build(&mut log)?;
    let mut tape = Tape::new(trace.header.slots, &trace.texts);
    let mut places = Places::default();
    let mut run = Logged::default();
    let mut followed = 0;
    for (index, event) in interrupt.events(&trace.events) {
        step(strategy.as_mut(), &mut log, event, &mut tape);
        places.follow(&log.steps()[followed..]);
        followed = log.steps().len();
        if let Some(ptr) = block_of(event, &tape) {
            run.blocks.push((index as u64, ptr, places.place(ptr)));
        }
    }
    run.finding = tape.finding;
    run.steps = log.into_steps();
    Ok(run)
}

/// The run again, from its log. What differs first, if anything.
fn replayed(
    trace: &Trace,
    build: Build<'_>,
    mut script: ScriptDevice,
    blocks: &[(u64, u64, Place)],
    interrupt: &Interrupt,
) -> Result<(), Finding> {
    let differs = |event, text: String| Finding { outcome: Outcome::Invalid, event, text };
    let mut strategy = build(&mut script)?;
    let mut tape = Tape::new(trace.header.slots, &trace.texts);
    let mut expected = blocks.iter().peekable();
    for (index, event) in interrupt.events(&trace.events) {
        let index = index as u64;
        step(strategy.as_mut(), &mut script, event, &mut tape);
        if let Some(mismatch) = script.mismatch() {
            return Err(differs(Some(index), format!("another decision from the same answers: {mismatch}")));
        }
        let then = expected.next_if(|(event, ..)| *event == index).map(|&(_, ptr, _)| ptr);
        let now = block_of(event, &tape);
        if then != now {
            let words = |ptr: Option<u64>| ptr.map_or("nowhere".to_string(), |ptr| format!("at {ptr:#x}"));
            let text = format!("the block lay {}, and {} from the log", words(then), words(now));
            return Err(differs(Some(index), text));
        }
    }
    script.finish().map_err(|mismatch| differs(None, format!("another decision from the same answers: {mismatch}")))
}

fn block_of(event: &Event, tape: &Tape<'_>) -> Option<u64> {
    match *event {
        Event::Alloc { slot, size, .. } if size > 0 => tape.block(slot).map(|block| block.ptr()),
        _ => None,
    }
}

/// Runs `trace` on `machine`, from the log, and on `sim`, each time on a strategy that `build` makes for the device. After
/// an interrupt the result is not the trace's.
pub fn decisions(
    trace: &Trace,
    build: impl Fn(&mut dyn Device) -> Result<Box<dyn Replay>, Finding>,
    machine: Box<dyn Machine>,
    sim: SimDevice,
    interrupt: &Interrupt,
) -> Result<Decisions, Finding> {
    let info = machine.info();
    let first = logged(trace, &build, machine, interrupt)?;
    let mut result =
        Decisions { blocks: first.blocks.len() as u64, device_calls: first.steps.len() as u64, ..Decisions::default() };
    let again = replayed(trace, &build, ScriptDevice::play(info, first.steps), &first.blocks, interrupt);
    result.finding = again.err().or(first.finding);
    // What needs a card does not run there.
    if let Ok(simulated) = logged(trace, &build, sim, interrupt) {
        let mut simulated = simulated.blocks.iter().peekable();
        let mut count = 0;
        for (event, _, place) in &first.blocks {
            while simulated.next_if(|(other, ..)| other < event).is_some() {}
            let there = simulated.next_if(|(other, ..)| other == event).and_then(|(_, _, place)| *place);
            if there != *place {
                count += 1;
                result.first_elsewhere = result.first_elsewhere.or(Some(*event));
            }
        }
        result.elsewhere = Some(count);
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Configured, MemoryLimit, STRATEGIES};
    use allocator_core::{AllocError, Block, FreeError, Request, Span, Strategy, StreamId};
    use std::cell::Cell;

    fn trace(text: &str) -> Trace {
        workload_gen::format::read(text.as_bytes(), "test").unwrap()
    }

    /// Uneven sizes, holes, two streams, a late free.
    const BUSY: &str = "gpu-alloc-trace 1
a 0 1000 0
a 1 3000000 0
a 2 70000 1
f 0
a 0 500 0
u 1 1
f 1
a 3 2000000 0
f 2 !0
a 1 40000000 1
c 0
f 1
e
a 2 9 0
";

    #[test]
    fn every_strategy_repeats_itself_and_lies_alike_on_two_simulated_devices() {
        let trace = trace(BUSY);
        for entry in STRATEGIES {
            let strategy = Configured { entry, params: entry.defaults() };
            let build = |dev: &mut dyn Device| {
                strategy.build(dev, MemoryLimit::Never).map_err(|why| Finding {
                    outcome: Outcome::Error,
                    event: None,
                    text: why.to_string(),
                })
            };
            let sim = SimDevice::new(8 << 30);
            let Ok(result) = decisions(&trace, build, Box::new(sim.clone()), sim, &Interrupt::default()) else {
                continue;
            };
            assert_eq!((result.finding, result.elsewhere), (None, Some(0)), "{}", entry.name);
            assert_eq!(result.blocks, 7);
            assert!(result.device_calls > 0);
        }
    }

    thread_local! { static RUNS: Cell<u64> = const { Cell::new(0) }; }

    /// Takes more and more memory the more often it was made before.
    struct Forgetful(u64);

    impl Strategy for Forgetful {
        fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
            let ptr = dev.malloc(req.size + self.0 * 512)?;
            Ok(Block::new(ptr, 0, 0).unwrap())
        }
        fn free(&mut self, _: &mut dyn Device, _: Block) -> Result<(), FreeError> {
            Ok(())
        }
        fn record_stream(&mut self, _: &mut dyn Device, _: &Block, _: StreamId) -> Result<(), AllocError> {
            Ok(())
        }
        fn trim(&mut self, _: &mut dyn Device, _: u64) -> Result<u64, AllocError> {
            Ok(0)
        }
        fn inspect(&self, _: &mut dyn FnMut(Span)) {}
    }

    #[test]
    fn other_decisions_are_found_at_their_event() {
        let build = |_: &mut dyn Device| -> Result<Box<dyn Replay>, Finding> {
            RUNS.set(RUNS.get() + 1);
            Ok(Box::new(Forgetful(RUNS.get())))
        };
        let sim = SimDevice::new(1 << 30);
        let trace = trace("gpu-alloc-trace 1\na 0 0 0\nm begin\na 1 512 0\n");
        let result = decisions(&trace, build, Box::new(sim.clone()), sim, &Interrupt::default()).unwrap();
        let finding = result.finding.unwrap();
        assert_eq!((finding.outcome, finding.event), (Outcome::Invalid, Some(0)), "{}", finding.text);
        assert!(finding.text.contains("Malloc"), "{}", finding.text);
    }
}
