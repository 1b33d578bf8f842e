use super::*;
use crate::error::AllocError;
use crate::request::Request;
use crate::sim::SimDevice;
use crate::strategy::Strategy;
use crate::toy::Toy;

const MIB: u64 = 1 << 20;

/// Sizes in MiB; 0 frees the oldest block, which another stream has used. Some requests do not fit.
const PROGRAM: [u64; 16] = [8, 4, 0, 8, 2, 16, 0, 4, 0, 8, 40, 0, 0, 30, 0, 2];

fn run(dev: &mut dyn Machine, program: &[u64]) -> (Vec<Result<u64, AllocError>>, Usage) {
    let mut toy = Toy::default();
    let mut live = std::collections::VecDeque::new();
    let mut decisions = Vec::new();
    for &mib in program {
        // About three times what a malloc takes: some polls find the work done and some do not.
        dev.work(StreamId(1), 100_000).unwrap();
        if mib > 0 {
            let outcome = toy.allocate(dev, Request::new(mib * MIB, StreamId::DEFAULT));
            decisions.push(outcome.as_ref().map(|block| block.ptr()).map_err(|&error| error));
            live.extend(outcome);
        } else if let Some(block) = live.pop_front() {
            toy.record_stream(dev, &block, StreamId(1)).unwrap();
            if toy.free(dev, block).is_err() {
                decisions.push(Err(AllocError::NotLive));
            }
        }
    }
    (decisions, dev.usage())
}

fn recording() -> (DeviceInfo, Vec<Step>, Vec<Result<u64, AllocError>>, Usage) {
    let mut log = LogDevice::new(SimDevice::new(48 * MIB));
    let (decisions, usage) = run(&mut log, &PROGRAM);
    (log.info(), log.steps().to_vec(), decisions, usage)
}

#[test]
fn a_logged_run_is_repeated() {
    let (info, steps, decisions, usage) = recording();
    let refused = steps.iter().filter(|step| step.answer == Err(DeviceError::OutOfMemory)).count();
    let polls = |done| steps.iter().filter(|step| step.answer == Ok(Answer::Poll(done))).count();
    assert!(refused > 0 && polls(true) > 0 && polls(false) > 0, "the program has it all: {steps:?}");
    let mut script = ScriptDevice::play(info, steps);
    let (played, played_usage) = run(&mut script, &PROGRAM);
    assert_eq!(played, decisions);
    assert_eq!((played_usage.reserved, played_usage.calls), (usage.reserved, usage.calls));
    assert_eq!(script.mismatch(), None);
    assert_eq!(script.finish(), Ok(()));
}

#[test]
fn the_first_other_decision_is_found() {
    let (info, steps, ..) = recording();
    let nth = steps.iter().position(|step| step.call == Call::Malloc { size: 16 * MIB }).unwrap();
    let mut program = PROGRAM;
    program[5] = 18;
    let mut script = ScriptDevice::play(info, steps.clone());
    let (decisions, _) = run(&mut script, &program);
    let got = Some(Call::Malloc { size: 18 * MIB });
    let mismatch = Mismatch { at: nth, expected: Some(steps[nth].clone()), got };
    assert_eq!(script.mismatch(), Some(&mismatch));
    let tail: Vec<_> = decisions.iter().skip(4).collect();
    assert!(tail.iter().all(|decision| decision.is_err()), "no memory from then on: {tail:?}");
    assert_eq!(script.finish(), Err(mismatch));
}

#[test]
fn a_run_that_is_shorter_or_longer_is_found() {
    let (info, steps, ..) = recording();
    let mut short = ScriptDevice::play(info, steps.clone());
    run(&mut short, &PROGRAM[..5]);
    assert_eq!(short.mismatch(), None);
    let mismatch = short.finish().unwrap_err();
    assert_eq!((mismatch.got.clone(), mismatch.expected.as_ref()), (None, steps.get(mismatch.at)));
    assert!(mismatch.to_string().ends_with(", the run has ended"), "{mismatch}");

    let mut long = ScriptDevice::play(info, steps.clone());
    run(&mut long, &[&PROGRAM[..], &[1]].concat());
    let mismatch = long.finish().unwrap_err();
    assert_eq!((mismatch.at, mismatch.expected.as_ref()), (steps.len(), None));
    assert!(mismatch.to_string().contains("the recording has ended, the run made"), "{mismatch}");
}

const SETTINGS: AsyncSettings = AsyncSettings {
    release_threshold: 7,
    follow_event_dependencies: true,
    opportunistic: false,
    internal_dependencies: true,
};

/// Every call is logged with its arguments and answer, and answered from the log.
#[test]
fn every_call_is_logged_and_played() {
    fn all(dev: &mut dyn Device) -> Vec<String> {
        let ptr = dev.malloc(MIB).unwrap();
        let va = dev.reserve(4 * MIB).unwrap();
        let handle = dev.create(2 * MIB).unwrap();
        let fence = dev.fence(StreamId(1)).unwrap();
        dev.retired(ptr);
        vec![
            format!("{ptr:?} {va:?} {handle:?} {fence:?}"),
            format!("{:?}", dev.map(va, &[handle, handle])),
            format!("{:?}", dev.map(va, &[handle])),
            format!("{:?} {:?}", dev.unmap(va, 2 * MIB), dev.unmap(va, 2 * MIB)),
            format!("{:?} {:?}", dev.release(handle), dev.memory_info()),
            format!("{:?} {:?}", dev.unmap(va + 2 * MIB, 2 * MIB), dev.unreserve(va, 4 * MIB)),
            format!("{:?} {:?}", dev.poll(fence), dev.poll(Fence { seq: 9, ..fence })),
            format!("{:?} {:?}", dev.order_after(StreamId(2), fence), dev.sync(Sync::Device)),
            format!("{:?} {:?} {:?}", dev.free(ptr), dev.free(ptr), dev.memory_info()),
            format!("{:?} {:?}", dev.configure_async(SETTINGS), dev.malloc_async(MIB, StreamId(1))),
            format!("{:?} {:?}", dev.free_async(ptr, StreamId(1)), dev.trim_async(0)),
        ]
    }
    let mut log = LogDevice::new(SimDevice::new(48 * MIB).with_stream_ordered());
    let answers = all(&mut log);
    assert_eq!(log.steps().len(), 24);
    let mut script = ScriptDevice::play(log.info(), log.steps().to_vec());
    assert_eq!(all(&mut script), answers);
    assert_eq!((script.usage().reserved, script.usage().calls), (0, log.usage().calls));
    assert_eq!(script.finish(), Ok(()));
    for at in 0..log.steps().len() {
        let mut steps = log.steps().to_vec();
        steps[at].call = Call::Retired { ptr: 1 };
        let mut script = ScriptDevice::play(log.info(), steps);
        log.steps()[..at].iter().for_each(|step| play(&mut script, &step.call));
        assert_eq!(script.mismatch(), None);
        play(&mut script, &log.steps()[at].call);
        assert_eq!(script.mismatch().map(|mismatch| mismatch.at), Some(at));
    }
}

fn play(dev: &mut dyn Device, call: &Call) {
    match call.clone() {
        Call::Malloc { size } => drop(dev.malloc(size)),
        Call::Free { ptr } => drop(dev.free(ptr)),
        Call::Reserve { size } => drop(dev.reserve(size)),
        Call::Unreserve { va, size } => drop(dev.unreserve(va, size)),
        Call::Create { size } => drop(dev.create(size)),
        Call::Release { handle } => drop(dev.release(handle)),
        Call::Map { va, handles } => drop(dev.map(va, &handles)),
        Call::Unmap { va, size } => drop(dev.unmap(va, size)),
        Call::Fence { stream } => drop(dev.fence(stream)),
        Call::Poll { fence } => drop(dev.poll(fence)),
        Call::OrderAfter { stream, fence } => drop(dev.order_after(stream, fence)),
        Call::Sync { what } => drop(dev.sync(what)),
        Call::MemoryInfo => drop(dev.memory_info()),
        Call::MallocAsync { size, stream } => drop(dev.malloc_async(size, stream)),
        Call::FreeAsync { ptr, stream } => drop(dev.free_async(ptr, stream)),
        Call::TrimAsync { keep } => drop(dev.trim_async(keep)),
        Call::ConfigureAsync { settings } => drop(dev.configure_async(settings)),
        Call::Retired { ptr } => dev.retired(ptr),
    }
}

/// A recording that someone made up may pair a call with an answer of another kind.
#[test]
fn an_answer_of_the_wrong_kind_is_a_mismatch() {
    let info = SimDevice::new(MIB).info();
    let step = Step { call: Call::Malloc { size: 512 }, answer: Ok(Answer::Done) };
    let mut script = ScriptDevice::play(info, vec![step.clone()]);
    assert_eq!(script.malloc(512), Err(DeviceError::OutOfMemory));
    assert_eq!(script.mismatch().unwrap().expected, Some(step));
}
