//! A calibration as files, and for people.

use super::measure::Samples;
use super::packing::{Difference, Outcome};
use super::{COSTS, Calibration, mean, points, quartiles};
use crate::exit::Error;
use crate::forms::{Item, Table};
use crate::size::{bytes, counted, grouped, nanoseconds};
use std::fmt::Write;

/// Columns of a file.
const WIDTH: usize = 120;

impl Calibration {
    /// The profile as a file, each cost under the means that it was drawn through.
    pub fn toml(&self) -> Result<String, Error> {
        let plain = toml::to_string(&self.profile).map_err(|why| Error::Internal(format!("profile: {why}")))?;
        let about = "What driver calls cost: base_ns a call, and ns_per_mib for each MiB that it is about. Each line \
                     goes through the means above it; those of calls about several handles are by the handle.";
        let mut text = comment(about);
        for line in plain.lines() {
            let name = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            if let Some((_, _, calls)) = COSTS.iter().find(|(cost, ..)| Some(*cost) == name) {
                text.push_str(&comment(&means(&self.samples, calls)));
            }
            let _ = writeln!(text, "{line}");
        }
        Ok(text)
    }

    /// Every call and size, with mean and quartiles.
    pub fn samples_csv(&self) -> Result<String, Error> {
        let header =
            ["call", "bytes", "handles", "samples", "mean_ns", "min_ns", "p25_ns", "median_ns", "p75_ns", "max_ns"];
        let rows = self.samples.iter().map(|(what, times)| {
            let figures = [what.bytes, what.pieces, times.len() as u64, mean(times).round() as u64];
            let figures = figures.into_iter().chain(quartiles(times));
            [what.call.to_string()].into_iter().chain(figures.map(|figure| figure.to_string())).collect()
        });
        sheet(&header, rows)
    }

    /// Every call of the packing check, with where the card put it.
    pub fn packing_csv(&self) -> Result<String, Error> {
        let header = ["program", "slot", "malloc_bytes", "ptr", "device_used_bytes"];
        let rows = self.runs.iter().flat_map(|run| {
            run.steps.iter().map(move |(call, outcome)| {
                let bytes = if call.bytes > 0 { call.bytes.to_string() } else { String::new() };
                let used = outcome.device_used.to_string();
                vec![run.seed.to_string(), call.slot.to_string(), bytes, format!("{:#x}", outcome.ptr), used]
            })
        });
        sheet(&header, rows)
    }

    /// What people read: the lines, the context, the packing check.
    pub fn summary(&self) -> String {
        let Some(measured) = &self.profile.measured else { return String::new() };
        let mut profile = self.profile.clone();
        let head = ["call", "each", "and for a MiB", "off by", "at most"].map(|name| vec![name.to_string()]);
        let mut table = Table { head: head.to_vec(), rows: Vec::new() };
        for (name, place, _) in COSTS {
            let (cost, Some(residual)) = (*place(&mut profile), measured.residuals.get(name)) else { continue };
            let slope = if cost.ns_per_mib > 0 { nanoseconds(cost.ns_per_mib) } else { String::new() };
            let off = [residual.typical_percent, residual.worst_percent].map(|by| format!("{by:.1} %"));
            let cells = [name.to_string(), nanoseconds(cost.base_ns), slope].into_iter().chain(off);
            table.rows.push(cells.map(Item::plain).collect());
        }
        let packing = measured.packing;
        let rounds = counted(measured.samples as usize, "round", "rounds");
        let mut text = format!("{}, driver {}, {rounds}\n\n", measured.card, measured.driver);
        text.push_str(&table.text(None));
        let context = measured.context_bytes.map_or("an unknown number of bytes".to_string(), bytes);
        let _ = writeln!(text, "\nThe driver's context takes {context}.");
        let [bytes_of, calls] = [packing.equal_bytes, packing.calls].map(grouped);
        let [places, requests] = [packing.equal_places, packing.requests].map(grouped);
        let _ = writeln!(text, "The card had lost what the simulated device had after {bytes_of} of {calls} calls,");
        let _ = writeln!(text, "and gave {places} of {requests} requests the same place.");
        if let Some(Difference { seed, step, call, card, simulated }) = self.difference {
            let worst = bytes(packing.worst_bytes);
            let call = match call.bytes {
                0 => "free".to_string(),
                size => format!("malloc of {size} bytes"),
            };
            let at = |outcome: Outcome| format!("{:+} bytes, {} lost", outcome.ptr as i64, bytes(outcome.device_used));
            let _ =
                writeln!(text, "They were {worst} apart at most. The first difference, call {step} of program {seed}:");
            let _ = writeln!(text, "{call}, on the card at {}, simulated at {}.", at(card), at(simulated));
        }
        text
    }
}

/// `35.10 µs for 2.00 MiB, …`
fn means(samples: &Samples, calls: &[&str]) -> String {
    let words = points(samples, calls).into_iter().map(|point| match point.bytes {
        0 => nanoseconds(point.ns as u64),
        size => format!("{} for {}", nanoseconds(point.ns as u64), bytes(size)),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Lines of a comment; none for no words.
fn comment(words: &str) -> String {
    let mut text = String::new();
    let mut column = WIDTH;
    for word in words.split_whitespace() {
        if column + 1 + word.chars().count() > WIDTH {
            text.push_str(if text.is_empty() { "#" } else { "\n#" });
            column = 1;
        }
        text.push(' ');
        text.push_str(word);
        column += 1 + word.chars().count();
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

fn sheet(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Result<String, Error> {
    let internal = |why: String| Error::Internal(format!("csv: {why}"));
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(header).map_err(|why| internal(why.to_string()))?;
    for row in rows {
        writer.write_record(row).map_err(|why| internal(why.to_string()))?;
    }
    let bytes = writer.into_inner().map_err(|why| internal(why.to_string()))?;
    String::from_utf8(bytes).map_err(|why| internal(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_wrapped_and_keep_their_words() {
        let words = vec!["35.10 µs for 2.00 MiB"; 20].join(", ");
        let text = comment(&words);
        assert!(text.lines().count() > 1 && text.ends_with('\n'));
        assert!(
            text.lines().all(|line| line.starts_with("# ") && line.chars().count() <= WIDTH && !line.ends_with(' '))
        );
        let joined: Vec<&str> = text.lines().map(|line| line.trim_start_matches("# ")).collect();
        assert_eq!(joined.join(" "), words);
        assert_eq!(comment(""), "");
    }
}
