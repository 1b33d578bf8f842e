//! Where a job's events go: in batches, so that a trace of any length needs the memory of a few.

use crate::trace::Event;

/// Events in order, with what they refer to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// The events.
    pub events: Vec<Event>,
    /// The label's number of each allocation among them, in order.
    pub labels: Vec<u32>,
    /// Texts that were not used before. The first has the number `texts_before`.
    pub texts: Vec<String>,
    /// How many texts earlier batches brought.
    pub texts_before: u32,
    /// Labels that were not used before. The first has the number `labels_before`.
    pub new_labels: Vec<String>,
    /// How many labels earlier batches brought.
    pub labels_before: u32,
}

impl Batch {
    /// Events in a batch, about.
    pub(super) const EVENTS: usize = 16 * 1024;

    pub(super) fn clear(&mut self, texts_before: u32, labels_before: u32) {
        self.events.clear();
        self.labels.clear();
        self.texts.clear();
        self.new_labels.clear();
        (self.texts_before, self.labels_before) = (texts_before, labels_before);
    }
}

/// Takes what a job does.
pub trait Sink {
    /// Takes the next batch. `false` ends the job: nobody wants the rest.
    fn take(&mut self, batch: &Batch) -> bool;

    /// Whether the job shall go on. Asked while it makes nothing.
    fn goes_on(&mut self) -> bool {
        true
    }
}

/// What is only known when a job is over.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Events.
    pub events: u64,
    /// Slots in use at most.
    pub slots: u32,
    /// Tickets in use at most: none, a generated job knows what its streams wait for.
    pub streams: u32,
    /// Private pools.
    pub pools: u32,
    /// Whether the sink ended it.
    pub is_cut: bool,
}
