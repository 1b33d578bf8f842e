//! What lies where at the reserved peak: memory written like text, from left to right and line by line.
//!
//! Each strategy has a panel, and all panels of a page have one scale, so that the inked area is the reserved memory.
//! Segments follow each other by address, with a gap between them, and break at the ends of the lines.

use super::Width;
use super::data::Piece;
use super::page::{Entry, Page, Result, Sample, Type, columns, legend_rows, points};
use super::select::{Run, Selection};
use super::style::{FAINT, Hatch, LEADING, PAGE, PAPER};
use crate::size::{bytes, grouped};
use allocator_core::SpanState;
use plotters::style::RGBColor;
use std::collections::BTreeMap;

/// A map by the identity of its run.
pub type Maps = BTreeMap<String, Vec<Piece>>;

/// From one line of memory to the next, and how much of it is inked.
const PITCH: f64 = 4.0;
const INKED: f64 = 3.2;
/// The most lines of memory in a panel, the fewest if panels stand one below the other, and how many its heading takes.
const LINES: f64 = 60.0;
const FEWEST: f64 = 20.0;
const HEADING: f64 = 10.0;
/// Between panels.
const GAP: f64 = 10.0;
/// After a segment: so much, and at most this share of it, so that many small ones do not look like free memory.
const BREAK: f64 = 0.9;
const BREAK_SHARE: f64 = 0.15;
/// Addresses without memory take so much, and all of them at most this share of the memory.
const UNMAPPED: f64 = 2.5;
const UNMAPPED_SHARE: f64 = 0.1;
/// Blocks that are wider than this are told apart.
const VISIBLE: f64 = 1.2;

/// Dark is in use, light is not.
fn look(state: SpanState) -> (RGBColor, Hatch) {
    match state {
        SpanState::Live => (RGBColor(0x00, 0x72, 0xb2), Hatch::Plain),
        SpanState::Pending => (RGBColor(0xd5, 0x5e, 0x00), Hatch::Up),
        SpanState::Cached => (RGBColor(0xf7, 0xdc, 0xa8), Hatch::Plain),
        SpanState::Unmapped => (FAINT, Hatch::Plain),
    }
}

/// A piece on one line: where it begins and ends, in points.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Mark {
    line: usize,
    from: f64,
    to: f64,
    state: SpanState,
    /// The piece ends here, and is not continued on the next line.
    ends: bool,
}

/// The figure of one workload.
pub fn figure(selection: &Selection, workload: usize, maps: &Maps, width: Width) -> Result<String> {
    let shown: Vec<(&str, &Run, &[Piece])> = selection
        .strategies
        .iter()
        .zip(&selection.cells[workload])
        .filter_map(|(strategy, run)| {
            let run = run.as_ref()?;
            Some((strategy.label.as_str(), run, maps.get(&run.id)?.as_slice()))
        })
        .collect();
    let page_width = points(width);
    let most = match width {
        Width::Column => 3,
        Width::Text => 5,
    };
    let columns = columns(shown.len(), most);
    let panel = (page_width - GAP * (columns - 1) as f64) / columns as f64;
    let largest = shown.iter().map(|(.., pieces)| mapped(pieces)).max().unwrap_or(0);
    let rows = shown.len().div_ceil(columns).max(1);
    let lines = (PAGE / rows as f64 / PITCH - HEADING).clamp(FEWEST, LINES);
    let per_line = bytes_per_line(largest, lines);
    let laid_out: Vec<Vec<Mark>> = shown.iter().map(|(.., pieces)| lay_out(pieces, panel, per_line)).collect();
    let (summaries, lines_of_text) = summaries(&shown, panel);
    let heading = (1 + lines_of_text) as f64 * LEADING + 2.0;
    let heights: Vec<f64> = laid_out
        .chunks(columns)
        .map(|row| row.iter().filter_map(|marks| marks.last()).map(|mark| mark.line + 1).max().unwrap_or(1))
        .map(|lines| heading + lines as f64 * PITCH)
        .collect();

    let used = |state| shown.iter().any(|(.., pieces)| pieces.iter().any(|piece| piece.state == state));
    let entries: Vec<Entry> = SpanState::ALL
        .into_iter()
        .filter(|state| used(*state))
        .map(|state| {
            let (color, hatch) = look(state);
            let wire = state == SpanState::Unmapped;
            Entry {
                sample: if wire { Sample::Wire(color) } else { Sample::Area(color, hatch) },
                label: if wire { "unmapped (not to scale)".to_string() } else { state.name().to_string() },
            }
        })
        .collect();
    let top = LEADING + 1.0 + legend_rows(&entries, page_width) as f64 * LEADING + 4.0;
    let height = top + heights.iter().sum::<f64>() + GAP * heights.len().saturating_sub(1) as f64 + 1.0;
    let page = Page::new(page_width, height)?;
    let scale = format!("one line is {}", bytes(per_line).replace(".00 ", " "));
    page.text(&scale, page_width, LEADING / 2.0, Type::FAINT.right())?;
    let title = Type::TITLE.fit(&selection.workloads[workload].label, page_width - Type::FAINT.width(&scale) - 8.0);
    page.text(&title, 0.0, LEADING / 2.0, Type::TITLE)?;
    page.legend(&entries, 0.0, LEADING + 1.0, page_width)?;
    let mut y = top;
    let rows = shown.chunks(columns).zip(laid_out.chunks(columns)).zip(summaries.chunks(columns));
    for (((panels, marks), summary), high) in rows.zip(heights) {
        for (nth, (((label, ..), marks), summary)) in panels.iter().zip(marks).zip(summary).enumerate() {
            let x = nth as f64 * (panel + GAP);
            page.text(&Type::TITLE.fit(label, panel), x, y + LEADING / 2.0, Type::TITLE)?;
            for (line, text) in summary.iter().enumerate() {
                let y = y + (line as f64 + 1.5) * LEADING;
                page.text(&Type::FAINT.fit(text, panel), x, y, Type::FAINT)?;
            }
            draw(&page, marks, x, y + heading)?;
        }
        y += high + GAP;
    }
    Ok(page.finish("The address map of each strategy at its reserved peak"))
}

/// `25.57 GiB, 12 % cached, after event 7`, in as few lines as fit into every panel, and how many these are.
fn summaries(shown: &[(&str, &Run, &[Piece])], width: f64) -> (Vec<Vec<String>>, usize) {
    let facts: Vec<[String; 3]> = shown.iter().map(|(_, run, pieces)| summary(run, pieces)).collect();
    let in_lines = |lines: usize| -> Vec<Vec<String>> {
        let joined = |facts: &[String; 3]| match lines {
            1 => vec![facts.join(", ")],
            2 => vec![facts[..2].join(", "), facts[2].clone()],
            _ => facts.to_vec(),
        };
        facts.iter().map(joined).collect()
    };
    let fits = |lines: &usize| in_lines(*lines).iter().flatten().all(|text| Type::FAINT.width(text) <= width);
    let lines = (1..3).find(fits).unwrap_or(3);
    (in_lines(lines), lines)
}

fn summary(run: &Run, pieces: &[Piece]) -> [String; 3] {
    let (all, cached) = (mapped(pieces), total(pieces, SpanState::Cached));
    let share = if all == 0 { 0.0 } else { cached as f64 / all as f64 * 100.0 };
    let event = run.reserved_peak_event.map_or("?".to_string(), grouped);
    let failed = if run.is_ok() { String::new() } else { format!(", {}", run.outcome) };
    [bytes(all), format!("{share:.0} % cached{failed}"), format!("after event {event}")]
}

fn total(pieces: &[Piece], state: SpanState) -> u64 {
    let sizes = pieces.iter().filter(|piece| piece.state == state).map(|piece| piece.size);
    sizes.fold(0, u64::saturating_add)
}

fn mapped(pieces: &[Piece]) -> u64 {
    let sizes = pieces.iter().filter(|piece| piece.state != SpanState::Unmapped).map(|piece| piece.size);
    sizes.fold(0, u64::saturating_add)
}

/// The least round size of which at most `lines` lines hold the largest map: powers of two, and half as much again.
fn bytes_per_line(largest: u64, lines: f64) -> u64 {
    let least = (largest as f64 / lines).max(1.0) as u64;
    let power = least.checked_next_power_of_two().unwrap_or(1 << 63);
    if power / 4 * 3 >= least && power >= 4 { power / 4 * 3 } else { power }
}

fn lay_out(pieces: &[Piece], width: f64, per_line: u64) -> Vec<Mark> {
    let scale = width / per_line as f64;
    let unmapped = pieces.iter().filter(|piece| piece.state == SpanState::Unmapped).count() as f64 * UNMAPPED;
    let unmapped = UNMAPPED * (mapped(pieces) as f64 * scale * UNMAPPED_SHARE / unmapped).min(1.0);
    let mut marks = Vec::new();
    let (mut line, mut x) = (0, 0.0);
    for segment in pieces.chunk_by(|a, b| a.segment == b.segment) {
        let mut long = 0.0;
        for piece in segment {
            let mut rest = if piece.state == SpanState::Unmapped { unmapped } else { piece.size as f64 * scale };
            long += rest;
            while rest > 0.0 {
                if x >= width - 1e-6 {
                    (line, x) = (line + 1, 0.0);
                }
                let length = rest.min(width - x);
                // Rounding must not leave a rest that is never placed.
                rest = if rest - length < 1e-6 { 0.0 } else { rest - length };
                marks.push(Mark { line, from: x, to: x + length, state: piece.state, ends: rest == 0.0 });
                x += length;
            }
        }
        x += BREAK.min(long * BREAK_SHARE);
    }
    marks
}

fn draw(page: &Page, marks: &[Mark], left: f64, top: f64) -> Result<()> {
    let above = |mark: &Mark| top + mark.line as f64 * PITCH;
    // State by state: shapes of one look make one path.
    for state in SpanState::ALL {
        let (color, hatch) = look(state);
        for mark in marks.iter().filter(|mark| mark.state == state) {
            let (y, from, to) = (above(mark), left + mark.from, left + mark.to);
            match state {
                SpanState::Unmapped => {
                    page.line(&[(from, y + INKED / 2.0), (to, y + INKED / 2.0)], color, super::style::WIRE)?
                }
                _ => page.fill([from, y, to, y + INKED], color)?,
            }
        }
        if hatch != Hatch::Plain {
            for mark in marks.iter().filter(|mark| mark.state == state) {
                let y = above(mark);
                page.hatch([left + mark.from, y, left + mark.to, y + INKED], hatch)?;
            }
        }
    }
    for mark in marks.iter().filter(|mark| mark.ends && mark.to - mark.from > VISIBLE) {
        let (x, y) = (left + mark.to, above(mark));
        page.line(&[(x, y), (x, y + INKED)], PAPER, 0.2)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(segment: u64, size: u64, state: SpanState) -> Piece {
        Piece { segment, size, state, spans: 1 }
    }

    #[test]
    fn memory_flows_over_lines_and_none_is_lost() {
        let pieces = [
            piece(0, 150, SpanState::Live),
            piece(0, 1 << 40, SpanState::Unmapped),
            piece(0, 50, SpanState::Cached),
            piece(7, 100, SpanState::Live),
        ];
        let marks = lay_out(&pieces, 100.0, 100);
        let drawn =
            |state| -> f64 { marks.iter().filter(|mark| mark.state == state).map(|mark| mark.to - mark.from).sum() };
        assert!((drawn(SpanState::Live) - 250.0).abs() < 1e-6, "{marks:?}");
        assert!((drawn(SpanState::Cached) - 50.0).abs() < 1e-6, "{marks:?}");
        assert!((drawn(SpanState::Unmapped) - UNMAPPED).abs() < 1e-6, "{marks:?}");
        assert!(marks.iter().all(|mark| mark.from >= 0.0 && mark.to <= 100.0 + 1e-6 && mark.from < mark.to));
        assert_eq!(marks.last().unwrap().line, 3);
        assert_eq!(marks.iter().filter(|mark| mark.ends).count(), 4);
    }

    #[test]
    fn many_segments_do_not_drown_in_gaps() {
        for state in [SpanState::Live, SpanState::Unmapped] {
            let pieces: Vec<Piece> =
                (0..10_000).flat_map(|i| [piece(i, 10, SpanState::Live), piece(i, 1, state)]).collect();
            let marks = lay_out(&pieces, 100.0, 2_000);
            let lines = marks.last().unwrap().line + 1;
            assert!((50..=65).contains(&lines), "{lines}");
        }
    }

    #[test]
    fn a_line_is_a_round_size() {
        assert_eq!(bytes_per_line(60 << 20, 60.0), 1 << 20);
        assert_eq!(bytes_per_line(61 << 20, 60.0), 3 << 19);
        assert_eq!(bytes_per_line(0, 60.0), 1);
        assert!(bytes_per_line(u64::MAX, 1.0) >= 1 << 63);
    }
}
