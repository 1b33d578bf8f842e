//! Runs workloads, and looks at their blocks.

use workload_gen::spec::Spec;
use workload_gen::tensor::{Batch, Sink};
use workload_gen::{Event, Trace};

/// A workload that has run.
pub struct Run {
    pub trace: Trace,
    /// Its allocations in order.
    pub blocks: Vec<Block>,
}

/// An allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    pub label: String,
    pub size: u64,
    pub stream: u32,
    pub pool: u32,
    /// The event that made it.
    pub born: usize,
    /// The event that freed it.
    pub died: Option<usize>,
}

impl Block {
    pub fn role(&self) -> &str {
        self.label.split(' ').next().unwrap_or_default()
    }

    pub fn lives_at(&self, event: usize) -> bool {
        self.born <= event && self.died.is_none_or(|died| died > event)
    }
}

struct Keep {
    trace: Trace,
    most: usize,
}

impl Sink for Keep {
    fn take(&mut self, batch: &Batch) -> bool {
        assert_eq!(batch.texts_before as usize, self.trace.texts.len());
        assert_eq!(batch.labels_before as usize, self.trace.label_texts.len());
        self.trace.events.extend_from_slice(&batch.events);
        self.trace.texts.extend_from_slice(&batch.texts);
        self.trace.labels.extend_from_slice(&batch.labels);
        self.trace.label_texts.extend_from_slice(&batch.new_labels);
        self.trace.events.len() < self.most
    }
}

/// Runs a workload to its end.
pub fn run(line: &str) -> Run {
    run_some(&Spec::parse(line).unwrap_or_else(|error| panic!("{line}: {error}")), usize::MAX)
}

/// Runs a workload until so many events have come, or a few more.
pub fn run_some(spec: &Spec, most: usize) -> Run {
    let mut keep = Keep { trace: Trace::default(), most };
    let totals = spec.generate(&mut keep);
    let mut trace = keep.trace;
    trace.header = spec.header(&totals);
    let mut blocks: Vec<Block> = Vec::new();
    let mut at = vec![0; trace.header.slots as usize];
    for (number, event) in trace.events.iter().enumerate() {
        match *event {
            Event::Alloc { slot, size, stream, pool } => {
                at[slot as usize] = blocks.len();
                let label = trace.label_texts[trace.labels[blocks.len()] as usize].clone();
                blocks.push(Block { label, size, stream: stream.0, pool: pool.0, born: number, died: None });
            }
            Event::Free { slot, .. } => blocks[at[slot as usize]].died = Some(number),
            _ => {}
        }
    }
    assert_eq!(blocks.len(), trace.labels.len(), "a label for each allocation");
    Run { trace, blocks }
}

impl Run {
    /// The most bytes that lived at a time.
    pub fn peak(&self) -> u64 {
        let (mut live, mut peak) = (0, 0);
        self.walk(|born, block| {
            live = if born { live + block.size } else { live - block.size };
            peak = peak.max(live);
        });
        peak
    }

    /// What lives after an event.
    pub fn live_at(&self, event: usize) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(move |block| block.lives_at(event))
    }

    /// Births and deaths in order.
    pub fn walk(&self, mut visit: impl FnMut(bool, &Block)) {
        let mut births = self.blocks.iter();
        let mut at = vec![None; self.trace.header.slots as usize];
        for event in &self.trace.events {
            match *event {
                Event::Alloc { slot, .. } => {
                    at[slot as usize] = births.next();
                    visit(true, at[slot as usize].expect("a block for each allocation"));
                }
                Event::Free { slot, .. } => visit(false, at[slot as usize].expect("it was allocated")),
                _ => {}
            }
        }
    }

    /// The events that are markers with this text.
    pub fn marks(&self, text: &str) -> Vec<usize> {
        let is_it = |event: &Event| matches!(event, Event::Mark { text: at } if self.trace.texts[*at as usize] == text);
        self.trace.events.iter().enumerate().filter(|(_, event)| is_it(event)).map(|(at, _)| at).collect()
    }
}
