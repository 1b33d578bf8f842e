//! Numbers along an axis: round ones, few, and written as people write them.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// A linear axis with these numbers and no other.
#[derive(Clone, Debug)]
pub struct Axis {
    range: Range<f64>,
    ticks: Vec<f64>,
    labels: Vec<String>,
}

impl Axis {
    /// From `low` to `high`, with at most `count` numbers, each as long as they need to be told apart.
    pub fn new(low: f64, high: f64, count: usize) -> Axis {
        let ticks = ticks(low, high, count);
        let labels = labels(&ticks);
        Axis { range: low..high, ticks, labels }
    }

    /// The same with no number above `last`.
    pub fn numbered_to(last: f64, low: f64, high: f64, count: usize) -> Axis {
        Axis { range: low..high, ..Axis::new(low, last, count) }
    }

    /// The same of things that are counted.
    pub fn of_counts(low: f64, high: f64, count: usize) -> Axis {
        let ticks = ticks(low, high, count);
        let labels = ticks.iter().map(|tick| short(*tick)).collect();
        Axis { range: low..high, ticks, labels }
    }

    /// Without numbers.
    pub fn bare(low: f64, high: f64) -> Axis {
        Axis { range: low..high, ticks: Vec::new(), labels: Vec::new() }
    }

    /// The texts along it.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        // What a file has beyond the ends of an axis, which come from another file, is drawn at its ends.
        let share = ((value - self.range.start) / (self.range.end - self.range.start)).clamp(0.0, 1.0);
        first + (f64::from(last - first) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let nth = self.ticks.iter().position(|tick| tick == value);
        nth.map_or(String::new(), |nth| self.labels[nth].clone())
    }
}

/// Round values in `[low, high]`, as many as there are of one step, and at most `count` (two or more).
fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let size = (high - low).max(f64::MIN_POSITIVE);
    // The first step is too small, and a hundred times as much is too large.
    let power = 10f64.powf((size / count.max(2) as f64).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].map(|times| times * power);
    // A hair beyond the end is the end.
    let multiples = |step: f64| ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    let few = |step: &f64| {
        let (first, last) = multiples(*step);
        last.saturating_sub(first) < count as i64
    };
    let step = steps.into_iter().find(few).unwrap_or(size);
    let (first, last) = multiples(step);
    (first..=last).map(|i| i as f64 * step).collect()
}

/// All of `ticks` with the digits that tell them apart, and with a minus sign that is one.
fn labels(ticks: &[f64]) -> Vec<String> {
    let step = ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
    let digits = if step.is_finite() { (-(step * 1.000_001).log10().floor()).clamp(0.0, 12.0) as usize } else { 0 };
    ticks.iter().map(|tick| signed(*tick, digits, "")).collect()
}

/// A number with so many digits behind the point; `plus` stands before a positive one.
pub fn signed(value: f64, digits: usize, plus: &str) -> String {
    let text = format!("{:.digits$}", value.abs());
    let is_zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    match () {
        () if is_zero => text,
        () if value < 0.0 => format!("\u{2212}{text}"),
        () => format!("{plus}{text}"),
    }
}

/// A count in short: `0`, `500`, `20k`, `1.5M`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size < 1e3 => (value, ""),
        size if size < 1e6 => (value / 1e3, "k"),
        size if size < 1e9 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    let text = format!("{scaled:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (low, high, expected) in [
            (0.0, 26.0, &[0.0, 10.0, 20.0][..]),
            (0.0, 0.6, &[0.0, 0.2, 0.4, 0.6]),
            (0.0, 1.0, &[0.0, 0.5, 1.0]),
            (-19.0, 160.0, &[0.0, 50.0, 100.0, 150.0]),
            (0.0, 5.5, &[0.0, 2.0, 4.0]),
            (0.0, 106e3, &[0.0, 50e3, 100e3]),
        ] {
            let got = ticks(low, high, 4);
            let near = got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(near, "{low}..{high}: {got:?}, not {expected:?}");
        }
        for size in [1e-9, 0.003, 7.0, 123_456.0, 1e15] {
            for count in 2..12 {
                let got = ticks(0.0, size, count);
                assert!(got.len() <= count && got.len() > count / 3, "{size} {count}: {got:?}");
            }
        }
    }

    #[test]
    fn labels_have_the_digits_they_need() {
        assert_eq!(labels(&[0.0, 0.2, 0.4]), ["0.0", "0.2", "0.4"]);
        assert_eq!(labels(&[-50.0, 0.0, 50.0]), ["\u{2212}50", "0", "50"]);
        assert_eq!(labels(&[0.0, 0.001]), ["0.000", "0.001"]);
        assert_eq!(labels(&[5.0]), ["5"]);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(["", "+"].map(|plus| signed(-0.04, 1, plus)), ["0.0", "0.0"]);
        assert_eq!(signed(12.34, 1, "+"), "+12.3");
        assert_eq!(signed(-12.34, 1, "+"), "\u{2212}12.3");
        let counts = [0.0, 500.0, 1000.0, 20_000.0, 2500.0, 1.5e6, 3e9].map(short);
        assert_eq!(counts, ["0", "500", "1k", "20k", "2.5k", "1.5M", "3G"]);
    }
}
