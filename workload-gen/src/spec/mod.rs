//! The line that stands for a workload: `train:llama-2-7b,lengths=lognormal(6.2,0.7),batch=4`.
//!
//! A generator declares its parameters as data; reading, defaults, help, and what an error says all come from there.

mod param;
mod parse;
mod stream;
mod values;

pub use param::{Kind, Param};
pub use parse::SpecError;
pub use stream::Outline;
pub use values::Values;

use crate::jobs::{Generator, Job};
use crate::tensor::{self, Batch, Sink, Totals};
use crate::trace::{Header, Trace};
use std::fmt;
use std::sync::Arc;

/// A workload: a generator and the values of its parameters.
#[derive(Clone)]
pub struct Spec {
    generator: &'static Generator,
    values: Values,
    job: Arc<dyn Job>,
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spec({self})")
    }
}

impl Spec {
    /// Reads a line. The generator's name alone means its defaults.
    ///
    /// # Errors
    /// What is wrong with which parameter, what it may be and in which unit.
    pub fn parse(text: &str) -> Result<Spec, SpecError> {
        let (generator, values) = parse::parse(text)?;
        let job = (generator.build)(&values).map_err(|why| SpecError::Value { generator: generator.name, why })?;
        Ok(Spec { generator, values, job: Arc::from(job) })
    }

    /// Whether a text means a workload and nothing else: a generator's name and a colon.
    pub fn is_meant(text: &str) -> bool {
        text.split_once(':').is_some_and(|(name, _)| crate::jobs::generators().iter().any(|one| one.name == name))
    }

    /// The generator.
    pub fn generator(&self) -> &'static Generator {
        self.generator
    }

    /// The parameters' values.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Generates the workload. `sink` gets the events in batches, and may end it.
    pub fn generate(&self, sink: &mut dyn Sink) -> Totals {
        tensor::run(|gpu| self.job.run(gpu), sink)
    }

    /// The header of the workload's trace.
    pub fn header(&self, totals: &Totals) -> Header {
        Header {
            source: format!("{self} ({} version {})", self.generator.name, self.generator.version),
            slots: totals.slots,
            streams: (0..u64::from(totals.streams)).map(|stream| stream * 16).collect(),
            pools: (1..=u64::from(totals.pools)).map(|pool| (0, pool)).collect(),
            device_bytes: Some(self.values.bytes("device")).filter(|&bytes| bytes > 0),
            ..Header::default()
        }
    }

    /// The workload's trace, as a whole.
    pub fn trace(&self) -> Trace {
        struct Whole(Trace);
        impl Sink for Whole {
            fn take(&mut self, batch: &Batch) -> bool {
                self.0.events.extend_from_slice(&batch.events);
                self.0.texts.extend_from_slice(&batch.texts);
                self.0.labels.extend_from_slice(&batch.labels);
                self.0.label_texts.extend_from_slice(&batch.new_labels);
                true
            }
        }
        let mut whole = Whole(Trace::default());
        let totals = self.generate(&mut whole);
        whole.0.header = self.header(&totals);
        whole.0
    }
}

impl fmt::Display for Spec {
    /// The generator and what was given, in the order in which parameters are declared.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.generator.name)?;
        for (number, (param, value)) in self.values.given().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            if param.is_positional() {
                write!(f, "{comma}{value}")?;
            } else {
                write!(f, "{comma}{}={value}", param.key)?;
            }
        }
        Ok(())
    }
}
