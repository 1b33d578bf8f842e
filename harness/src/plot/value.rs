//! What the figure *overhead* says of a run: a number, or why there is none.

use super::axis::signed;
use super::select::Run;
use crate::size::grouped;

/// What is known of a run.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Percent over the load bound.
    Overhead(f64),
    /// How it failed, and at which event.
    Failed(String, Option<u64>),
    /// Why there is no number.
    Missing(&'static str),
}

impl Value {
    /// Of a cell of the selection.
    pub fn of(run: Option<&Run>) -> Value {
        let Some(run) = run else { return Value::Missing("not run") };
        if !run.is_ok() {
            return Value::Failed(run.outcome.clone(), run.outcome_event);
        }
        match (run.reserved_peak, run.load_peak) {
            (Some(_), Some(0)) => Value::Missing("no load"),
            (Some(reserved), Some(load)) => Value::Overhead((reserved as f64 / load as f64 - 1.0) * 100.0),
            _ => Value::Missing("not audited"),
        }
    }

    /// The number.
    pub fn percent(&self) -> Option<f64> {
        match self {
            Value::Overhead(percent) => Some(*percent),
            Value::Failed(..) | Value::Missing(_) => None,
        }
    }

    /// The number with so many digits behind the point, or the words in its place.
    pub fn text(&self, digits: usize) -> String {
        match self {
            Value::Overhead(percent) => signed(*percent, if percent.abs() < 999.95 { digits } else { 0 }, "+"),
            Value::Failed(outcome, Some(event)) => format!("{outcome} at event {}", grouped(*event)),
            Value::Failed(outcome, None) => outcome.clone(),
            Value::Missing(why) => why.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(outcome: &str, reserved_peak: Option<u64>, load_peak: Option<u64>) -> Run {
        let (outcome, outcome_event) = (outcome.to_string(), (outcome == "oom").then_some(1227));
        Run { outcome, outcome_event, reserved_peak, load_peak, ..Run::default() }
    }

    #[test]
    fn a_run_has_a_number_or_says_why_not() {
        let text = |run: Option<&Run>| Value::of(run).text(1);
        assert_eq!(text(Some(&run("ok", Some(300), Some(200)))), "+50.0");
        assert_eq!(text(Some(&run("ok", Some(5000), Some(100)))), "+4900");
        assert_eq!(Value::of(Some(&run("ok", Some(80), Some(100)))).text(0), "\u{2212}20");
        assert_eq!(text(Some(&run("oom", Some(300), Some(200)))), "oom at event 1,227");
        assert_eq!(text(Some(&run("invalid", Some(300), Some(200)))), "invalid");
        assert_eq!(text(Some(&run("ok", Some(300), Some(0)))), "no load");
        assert_eq!(text(Some(&run("ok", None, None))), "not audited");
        assert_eq!(text(None), "not run");
    }

    #[test]
    fn only_a_run_that_ended_well_has_a_number() {
        assert_eq!(Value::of(Some(&run("oom", Some(300), Some(200)))).percent(), None);
        assert_eq!(Value::of(Some(&run("ok", Some(300), Some(200)))).percent(), Some(50.0));
    }
}
