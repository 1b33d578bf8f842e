//! Writing a workload's trace without holding it.
//!
//! A trace's header says what only its end tells: how many slots there are, which labels. So the job runs twice; it does the
//! same both times, and neither run keeps anything but labels.

use super::Spec;
use crate::format::Writer;
use crate::tensor::{Batch, Sink};
use crate::trace::Header;
use std::io::{self, Write};

/// What is known of a workload when it has run once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outline {
    /// Its header.
    pub header: Header,
    /// Its labels.
    pub label_texts: Vec<String>,
    /// How many events it has.
    pub events: u64,
}

impl Spec {
    /// Runs the job to find out what its trace's header has to say. `goes_on` hears of the events so far and may end it:
    /// then there is no outline.
    pub fn outline(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Option<Outline> {
        let mut counting = Counting { label_texts: Vec::new(), events: 0, goes_on, is_ended: false };
        let totals = self.generate(&mut counting);
        let Counting { label_texts, events, is_ended, .. } = counting;
        (!is_ended).then(|| Outline { header: self.header(&totals), label_texts, events })
    }

    /// Runs the job and writes its trace, and gives back what was written to. `goes_on` is as for the
    /// [outline](Spec::outline), which has to be this workload's; if it ends the job there is nothing to give back.
    ///
    /// # Errors
    /// What cannot be written.
    pub fn write<W: Write>(
        &self,
        outline: &Outline,
        to: W,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> io::Result<Option<W>> {
        let writer = Writer::new(&outline.header, &outline.label_texts, to)?;
        let mut writing = Writing { writer, events: 0, goes_on, is_ended: false, failed: None };
        self.generate(&mut writing);
        match writing {
            Writing { failed: Some(why), .. } => Err(why),
            Writing { is_ended: true, .. } => Ok(None),
            Writing { writer, .. } => writer.finish().map(Some),
        }
    }
}

struct Counting<'a> {
    label_texts: Vec<String>,
    events: u64,
    goes_on: &'a mut dyn FnMut(u64) -> bool,
    is_ended: bool,
}

impl Sink for Counting<'_> {
    fn take(&mut self, batch: &Batch) -> bool {
        self.label_texts.extend_from_slice(&batch.new_labels);
        self.events += batch.events.len() as u64;
        self.goes_on()
    }

    fn goes_on(&mut self) -> bool {
        self.is_ended = !(self.goes_on)(self.events);
        !self.is_ended
    }
}

struct Writing<'a, W> {
    writer: Writer<W>,
    events: u64,
    goes_on: &'a mut dyn FnMut(u64) -> bool,
    is_ended: bool,
    failed: Option<io::Error>,
}

impl<W: Write> Sink for Writing<'_, W> {
    fn take(&mut self, batch: &Batch) -> bool {
        let text = |number: u32| {
            let at = number.checked_sub(batch.texts_before)?;
            batch.texts.get(at as usize).map(String::as_str)
        };
        self.failed = self.writer.events(&batch.events, &batch.labels, text).err();
        self.events += batch.events.len() as u64;
        self.goes_on() && self.failed.is_none()
    }

    fn goes_on(&mut self) -> bool {
        self.is_ended = !(self.goes_on)(self.events);
        !self.is_ended
    }
}
