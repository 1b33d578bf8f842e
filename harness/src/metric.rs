//! What runs are compared by: figures computed from the columns that files hold.
//!
//! Every metric is a fraction of two whole numbers, so that files keep base quantities, and so that "the best" and "equal"
//! are exact.

use crate::exit::Error;
use crate::results::{Results, Run};
use crate::size::{bytes, excess, grouped, nanoseconds, percent};
use std::borrow::Cow;
use std::cmp::Ordering;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metric {
    /// The name on the command line.
    pub name: Cow<'static, str>,
    /// The name in files, with its unit.
    pub column: Cow<'static, str>,
    /// One line for people.
    pub about: &'static str,
    unit: Unit,
    from: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Bytes,
    Nanoseconds,
    NanosecondsPerOp,
    Count,
    Share,
    /// How much the fraction is above 1.
    Excess,
}

/// The columns that make the fraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Exact(&'static str),
    ExactSum(&'static str),
    ExactRatio(&'static str, &'static str),
    TimedRatio(&'static str, &'static str),
    /// The one that the metric is named after, wherever it is.
    Named,
}

/// The metrics that have names of their own.
pub static METRICS: [Metric; 7] = [
    metric(
        "reserved",
        "reserved_peak_bytes",
        "peak of memory taken from the device",
        Unit::Bytes,
        Source::Exact("reserved_peak_bytes"),
    ),
    metric(
        "overhead",
        "overhead",
        "reserved peak above the load bound",
        Unit::Excess,
        Source::ExactRatio("reserved_peak_bytes", "load_peak_bytes"),
    ),
    metric(
        "utilisation",
        "utilisation",
        "load bound over reserved peak",
        Unit::Share,
        Source::ExactRatio("load_peak_bytes", "reserved_peak_bytes"),
    ),
    metric(
        "device-used",
        "device_used_peak_bytes",
        "peak of what the card lost, rounding included",
        Unit::Bytes,
        Source::Exact("device_used_peak_bytes"),
    ),
    metric("calls", "calls", "driver calls of all kinds", Unit::Count, Source::ExactSum("calls_")),
    metric(
        "driver-time",
        "modelled_driver_ns",
        "modelled time of the driver calls, waiting included",
        Unit::Nanoseconds,
        Source::Exact("modelled_driver_ns"),
    ),
    metric(
        "ns-per-op",
        "ns_per_op",
        "measured time of an operation, the loop included",
        Unit::NanosecondsPerOp,
        Source::TimedRatio("total_median_ns", "ops"),
    ),
];

const fn metric(name: &'static str, column: &'static str, about: &'static str, unit: Unit, from: Source) -> Metric {
    Metric { name: Cow::Borrowed(name), column: Cow::Borrowed(column), about, unit, from }
}

/// A value that is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    above: u64,
    /// Never 0.
    below: u64,
}

/// What a run has to say under a metric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Cell {
    /// Nothing: there was no such run, or the figure was not taken.
    Missing,
    /// How it went wrong. Its figures are those of another workload and are never shown.
    Failed(String),
    /// This much.
    Value(Figure),
}

impl Cell {
    /// The figure, if there is one.
    pub(crate) fn figure(&self) -> Option<&Figure> {
        match self {
            Cell::Value(figure) => Some(figure),
            Cell::Missing | Cell::Failed(_) => None,
        }
    }
}

impl Metric {
    /// A metric by its name, or any column of numbers by the column's.
    pub fn named(name: &str) -> Metric {
        let found = METRICS.iter().find(|metric| metric.name == name);
        found.cloned().unwrap_or_else(|| {
            let unit = match name {
                name if name.ends_with("_bytes") => Unit::Bytes,
                name if name.ends_with("_ns") => Unit::Nanoseconds,
                _ => Unit::Count,
            };
            let name = || Cow::Owned(name.to_string());
            Metric {
                name: name(),
                column: name(),
                about: "a column of run.csv or times.csv",
                unit,
                from: Source::Named,
            }
        })
    }

    /// Whether the figure of `run` is measured, and not the same each time.
    pub(crate) fn is_measured(&self, run: &Run) -> bool {
        match self.from {
            Source::Named => run.exact().is_none_or(|row| !row.has(&self.column)),
            Source::TimedRatio(..) => true,
            Source::Exact(_) | Source::ExactSum(_) | Source::ExactRatio(..) => false,
        }
    }

    /// What `run` has to say.
    pub(crate) fn cell(&self, run: &Run) -> Result<Cell, Error> {
        let is_exact = !self.is_measured(run);
        let timed = if is_exact { None } else { run.timed()? };
        for row in run.exact().into_iter().chain(timed) {
            if let Some(outcome) = row.text("outcome").filter(|outcome| *outcome != "ok") {
                return Ok(Cell::Failed(outcome.to_string()));
            }
        }
        let Some(row) = (if is_exact { run.exact() } else { timed }) else { return Ok(Cell::Missing) };
        let (above, below) = match self.from {
            Source::Exact(column) => (row.number(column)?, Some(1)),
            Source::ExactSum(prefix) => (row.sum(prefix)?, Some(1)),
            Source::ExactRatio(above, below) | Source::TimedRatio(above, below) => {
                (row.number(above)?, row.number(below)?)
            }
            Source::Named => (row.number(&self.column)?, Some(1)),
        };
        Ok(match (above, below) {
            (Some(above), Some(below)) if below > 0 => Cell::Value(Figure { above, below }),
            _ => Cell::Missing,
        })
    }

    /// Refuses a name that neither a metric has nor a column of `results`.
    pub(crate) fn check(&self, results: &Results) -> Result<(), Error> {
        if self.from != Source::Named || results.has_column(&self.column) {
            return Ok(());
        }
        let names: Vec<&str> = METRICS.iter().map(|metric| metric.name.as_ref()).collect();
        let (name, names) = (&self.name, names.join(", "));
        Err(Error::Usage(format!(
            "no metric and no column of these results is called '{name}'; there are {names}, and the columns in docs/RESULTS.md"
        )))
    }

    /// Whether more of it is better: of a cost less is, of a share in use more.
    pub(crate) fn more_is_better(&self) -> bool {
        self.unit == Unit::Share
    }

    /// Which of two figures is better: that one is less.
    pub(crate) fn order(&self, one: &Figure, other: &Figure) -> Ordering {
        if self.more_is_better() { other.cmp(one) } else { one.cmp(other) }
    }

    /// A figure as people read it.
    pub(crate) fn text(&self, figure: &Figure) -> String {
        let value = figure.value();
        match self.unit {
            Unit::Bytes => bytes(figure.above),
            Unit::Nanoseconds => nanoseconds(figure.above),
            Unit::NanosecondsPerOp => format!("{value:.1} ns"),
            Unit::Count => grouped(figure.above),
            Unit::Share => percent(value),
            Unit::Excess => excess(value),
        }
    }

    /// A figure in files: whole where it is a whole, else with six decimals.
    pub(crate) fn plain(&self, figure: &Figure) -> String {
        match self.unit {
            Unit::Bytes | Unit::Nanoseconds | Unit::Count => figure.above.to_string(),
            Unit::NanosecondsPerOp | Unit::Share => format!("{:.6}", figure.value()),
            Unit::Excess => {
                let text = format!("{:.6}", figure.value() - 1.0);
                if text == "-0.000000" { text[1..].to_string() } else { text }
            }
        }
    }

    /// `reserved: peak of memory taken from the device; less is better`.
    pub(crate) fn title(&self) -> String {
        let better = if self.more_is_better() { "more" } else { "less" };
        format!("{}: {}; {better} is better", self.name, self.about)
    }
}

impl Figure {
    /// The fraction as a number.
    pub(crate) fn value(&self) -> f64 {
        self.above as f64 / self.below as f64
    }

    /// How many times `reference` it is. Nothing is a multiple of 0.
    pub(crate) fn ratio(&self, reference: &Figure) -> Option<f64> {
        (reference.above > 0).then(|| self.value() / reference.value())
    }

    /// Whether it is 0.
    pub(crate) fn is_zero(&self) -> bool {
        self.above == 0
    }
}

impl Ord for Figure {
    fn cmp(&self, other: &Figure) -> Ordering {
        let product = |above: u64, below: u64| u128::from(above) * u128::from(below);
        product(self.above, other.below).cmp(&product(other.above, self.below))
    }
}

impl PartialOrd for Figure {
    fn partial_cmp(&self, other: &Figure) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Figure {
    fn eq(&self, other: &Figure) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Figure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_compare_exactly() {
        let figure = |above, below| Figure { above, below };
        assert_eq!(figure(1, 3), figure(2, 6));
        assert!(figure(u64::MAX - 1, u64::MAX) < figure(1, 1));
        assert!(figure(1 << 60, 1) < figure((1 << 60) + 1, 1), "further than a float can tell apart");
        assert_eq!(figure(0, 1).ratio(&figure(0, 1)), None);
        assert_eq!(figure(3, 2).ratio(&figure(1, 2)), Some(3.0));
    }

    #[test]
    fn a_unit_has_a_form_for_people_and_one_for_files() {
        let forms = |name: &str, above, below| {
            let (metric, figure) = (Metric::named(name), Figure { above, below });
            (metric.text(&figure), metric.plain(&figure))
        };
        let pair = |text: &str, plain: &str| (text.to_string(), plain.to_string());
        assert_eq!(forms("reserved", 3 << 29, 1), pair("1.50 GiB", "1610612736"));
        assert_eq!(forms("overhead", 1106, 1000), pair("+10.6 %", "0.106000"));
        assert_eq!(forms("overhead", 9999, 10000), pair("+0.0 %", "-0.000100"));
        assert_eq!(forms("overhead", (1 << 30) - 1, 1 << 30), pair("+0.0 %", "0.000000"));
        assert_eq!(forms("utilisation", 1, 3), pair("33.3 %", "0.333333"));
        assert_eq!(forms("calls", 12345, 1), pair("12,345", "12345"));
        assert_eq!(forms("ns-per-op", 1000, 3), pair("333.3 ns", "333.333333"));
        assert_eq!(forms("alloc_p99_ns", 1500, 1), pair("1.50 µs", "1500"));
        assert_eq!(forms("requested_end_bytes", 1024, 1), pair("1.00 KiB", "1024"));
    }

    #[test]
    fn names_are_unique_and_short_enough_for_a_list() {
        for (i, metric) in METRICS.iter().enumerate() {
            assert!(METRICS[..i].iter().all(|other| other.name != metric.name));
            assert!(metric.title().len() <= 80, "{}", metric.title());
        }
    }
}
