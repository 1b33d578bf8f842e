//! Reserved memory and load over the events: a panel for each workload, a line for each strategy.

use super::Width;
use super::axis::Axis;
use super::data::Point;
use super::outlier;
use super::page::{Entry, Page, Result, Sample, Type, bug, columns, entry_width, legend_rows, points};
use super::select::Selection;
use super::style::{AXIS, FINE, GRID, Hatch, INK, LEADING, LINE, LOAD, LOAD_FLOOR, Look, MANY, PAGE, SMALL};
use super::svg::{self, grid};
use crate::size;
use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::prelude::{AreaSeries, LineSeries};
use plotters::style::{Color, TRANSPARENT};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A timeline by the identity of its run.
pub type Timelines = BTreeMap<String, Vec<Point>>;

const GIB: f64 = (1u64 << 30) as f64;
/// Columns of the load for each printed point: more cannot be seen.
const DENSITY: f64 = 2.5;
/// The same of lines: they are as wide as that, and what jumps up and down within their width is a smear.
const LINE_DENSITY: f64 = 1.0;
/// The strip of a description along an axis, and that of the numbers below it.
const STRIP: f64 = 10.0;
/// Panels are no lower than this, however many they are.
const LOWEST: f64 = 52.0;
/// Between panels.
const GAP: f64 = 7.0;
/// What the last number below an axis sticks out.
const OVERHANG: f64 = 8.0;
/// Notes of lines that leave a panel: from one to the next, and at most how many.
const NOTE: f64 = 7.5;
const NOTES: usize = 3;
/// The strategies that most readers know. Among many they are drawn last.
const KNOWN: [&str; 2] = ["caching", "expandable"];

/// Where things are on the page, in points.
struct Layout {
    width: f64,
    columns: usize,
    panel: (f64, f64),
    /// The first panel's corner.
    corner: (f64, f64),
    /// The strip for labels at the ends of the lines, if there is a single panel; a legend stands above several.
    beside: Option<f64>,
    height: f64,
}

impl Layout {
    /// With so many notes above each panel.
    fn new(count: usize, entries: &[Entry], has_failures: bool, notes: usize, width: Width) -> Layout {
        let page = points(width);
        let (most, single, several) = match width {
            Width::Column => (2, 120.0, 84.0),
            Width::Text => (4, 170.0, 96.0),
        };
        let columns = columns(count, most);
        let rows = count.div_ceil(columns);
        let beside = entries.iter().map(|entry| entry_width(&entry.label)).fold(0.0, f64::max) + 4.0;
        let fits = count == 1 && entries.len() <= 8 && beside < page * 0.35;
        // A cross is not at the end of a line.
        let beside = (fits && !has_failures).then_some(beside);
        let legend = match beside {
            Some(_) => 0.0,
            None => legend_rows(entries, page - STRIP) as f64 * LEADING + 3.0,
        };
        let high = match rows {
            0 | 1 if count <= 1 => single,
            _ => ((PAGE - legend) / rows.max(1) as f64 - GAP).clamp(LOWEST, several),
        };
        let high = high + notes as f64 * NOTE;
        let wide = (page - STRIP - beside.unwrap_or(0.0) - GAP * (columns - 1) as f64) / columns as f64;
        let height = legend + high * rows as f64 + GAP * rows.saturating_sub(1) as f64 + STRIP;
        Layout { width: page, columns, panel: (wide, high), corner: (STRIP, legend), beside, height }
    }

    fn place(&self, nth: usize) -> (f64, f64) {
        let (column, row) = (nth % self.columns, nth / self.columns);
        (self.corner.0 + column as f64 * (self.panel.0 + GAP), self.corner.1 + row as f64 * (self.panel.1 + GAP))
    }
}

/// A workload's part of the figure.
struct Panel<'a> {
    title: &'a str,
    events: f64,
    /// The most that the axis shows, in GiB.
    most: f64,
    load: &'a [Point],
    lines: Vec<Line<'a>>,
    /// As many as make it hard to follow one.
    are_many: bool,
    notes: Vec<Note<'a>>,
}

struct Line<'a> {
    look: Look,
    entry: &'a Entry,
    points: &'a [Point],
    /// The event at which it first went wrong.
    failure: Option<u64>,
}

/// A line above a panel.
enum Note<'a> {
    /// A line that leaves it, and the most bytes that it shows.
    Cut(&'a Entry, u64),
    /// So many others do too.
    Others(usize),
}

impl<'a> Panel<'a> {
    fn new(selection: &'a Selection, nth: usize, timelines: &'a Timelines, entries: &'a [Entry]) -> Panel<'a> {
        let workload = &selection.workloads[nth];
        let cells = selection.cells[nth].iter().zip(&selection.strategies).zip(entries);
        let lines: Vec<Line<'a>> = cells
            .filter_map(|((cell, strategy), entry)| {
                let run = cell.as_ref()?;
                let failure = run.outcome_event;
                let (look, points) = (Look::nth(strategy.nth), timelines.get(&run.id)?.as_slice());
                Some(Line { look, entry, points, failure })
            })
            .collect();
        // A run that failed an allocation has a lower load: the workload's is the highest.
        let highest = |line: &&Line<'_>| line.points.iter().map(|point| point.load_max).max();
        let load = lines.iter().max_by_key(highest).map_or(&[][..], |line| line.points);
        let limit = outlier::limit(lines.iter().map(|line| line.peak() as f64));
        let (whole, mut cut): (Vec<&Line<'_>>, Vec<&Line<'_>>) =
            lines.iter().partition(|line| line.peak() as f64 <= limit);
        let load_peak = load.iter().map(|point| point.load_max).max();
        let bytes = whole.into_iter().map(Line::peak).chain(load_peak).max().unwrap_or(0);
        // The highest comes first. What the load reaches is whole, however low the others are.
        cut.retain(|line| line.peak() > bytes);
        cut.sort_by_key(|line| Reverse(line.peak()));
        let notes = notes(cut.into_iter().map(|line| (line.entry, line.peak())).collect());
        let most = if bytes == 0 { 1.0 } else { bytes as f64 / GIB * 1.04 };
        let events = workload.events.max(1) as f64;
        let are_many = selection.strategies.len() > MANY;
        Panel { title: &workload.label, events, most, load, lines, are_many, notes }
    }

    /// Its numbers, if it is so high.
    fn axis(&self, high: f64) -> Axis {
        Axis::new(0.0, self.most, if high - self.notes_height() > 100.0 { 6 } else { 5 })
    }

    fn notes_height(&self) -> f64 {
        self.notes.len() as f64 * NOTE
    }

    fn numbers_width(&self, high: f64) -> f64 {
        self.axis(high).labels().iter().map(|label| Type::PLAIN.width(label)).fold(0.0, f64::max) + 5.0
    }
}

impl Line<'_> {
    fn peak(&self) -> u64 {
        self.points.iter().map(|point| point.reserved).max().unwrap_or(0)
    }

    /// The later of two lines is drawn upon the other: those that most readers know come last, without parameters at last.
    fn rank(&self) -> usize {
        let name = self.entry.label.split(' ').next().unwrap_or_default();
        match () {
            () if KNOWN.contains(&self.entry.label.as_str()) => 2,
            () if KNOWN.contains(&name) => 1,
            () => 0,
        }
    }
}

/// What is written of lines that leave a panel, the highest of which come first.
fn notes(cut: Vec<(&Entry, u64)>) -> Vec<Note<'_>> {
    let named = if cut.len() <= NOTES { cut.len() } else { NOTES - 1 };
    let others = cut.len() - named;
    let others = (others > 0).then_some(Note::Others(others));
    cut.into_iter().take(named).map(|(entry, peak)| Note::Cut(entry, peak)).chain(others).collect()
}

/// The figure.
pub fn figure(selection: &Selection, timelines: &Timelines, width: Width) -> Result<String> {
    let mut entries: Vec<Entry> = selection
        .strategies
        .iter()
        .map(|strategy| Entry { sample: Sample::Line(Look::nth(strategy.nth)), label: strategy.label.clone() })
        .collect();
    let load = Entry { sample: Sample::Area(LOAD_FLOOR, Hatch::Plain), label: "load".to_string() };
    entries.push(load.clone());
    let failures: BTreeSet<&str> =
        selection.runs().filter(|run| run.outcome_event.is_some()).map(|run| run.outcome.as_str()).collect();
    if !failures.is_empty() {
        let label = format!("first {}", failures.iter().copied().collect::<Vec<_>>().join(", "));
        entries.push(Entry { sample: Sample::Cross(INK), label });
    }
    let panel = |nth| Panel::new(selection, nth, timelines, &entries);
    let panels: Vec<Panel<'_>> = (0..selection.workloads.len()).map(panel).collect();
    let notes = panels.iter().map(|panel| panel.notes.len()).max().unwrap_or(0);
    let layout = Layout::new(panels.len(), &entries, !failures.is_empty(), notes, width);
    // All axes stand one below the other.
    let numbers = panels.iter().map(|panel| panel.numbers_width(layout.panel.1)).fold(0.0, f64::max);

    let page = Page::new(layout.width, layout.height)?;
    if layout.beside.is_none() {
        page.legend(&entries, STRIP, 0.0, layout.width - STRIP)?;
    }
    for (nth, panel) in panels.iter().enumerate() {
        draw_panel(&page, &layout, panel, layout.place(nth), numbers, &load)?;
    }
    let (left, top) = layout.corner;
    let middle = (left + layout.width - layout.beside.unwrap_or(0.0)) / 2.0;
    page.text("event", middle, layout.height - STRIP / 2.0, Type::PLAIN.centered())?;
    let middle = top + (layout.height - top - STRIP) / 2.0;
    let upwards = Type { upwards: true, ..Type::PLAIN.centered() };
    page.text("memory (GiB)", STRIP / 2.0 - 2.0, middle, upwards)?;
    Ok(page.finish("Reserved memory and load over the events of each workload"))
}

fn draw_panel(
    page: &Page,
    layout: &Layout,
    panel: &Panel<'_>,
    (left, top): (f64, f64),
    numbers: f64,
    load_entry: &Entry,
) -> Result<()> {
    let (wide, high) = layout.panel;
    page.text(&Type::TITLE.fit(panel.title, wide), left, top + LEADING / 2.0, Type::TITLE)?;
    for (nth, note) in panel.notes.iter().enumerate() {
        let y = top + LEADING + 1.0 + (nth as f64 + 0.5) * NOTE;
        draw_note(page, note, left, y, wide)?;
    }
    let title = LEADING + 2.0 + panel.notes_height();
    let plot = (wide - numbers - OVERHANG).max(1.0);
    let area = page.part(left, top + title, wide, high - title);
    let count = (plot / 23.0).clamp(2.0, 9.0) as usize;
    let mut chart = ChartBuilder::on(&area)
        .set_label_area_size(LabelAreaPosition::Left, grid(numbers))
        .set_label_area_size(LabelAreaPosition::Bottom, grid(STRIP + 1.0))
        .margin_right(grid(OVERHANG))
        .build_cartesian_2d(Axis::of_counts(0.0, panel.events, count), panel.axis(high))
        .map_err(bug)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID.stroke_width(grid(AXIS) as u32))
        .light_line_style(TRANSPARENT)
        .axis_style(INK.stroke_width(grid(AXIS) as u32))
        .set_all_tick_mark_size(grid(1.6))
        .label_style(Type::PLAIN.style())
        .draw()
        .map_err(bug)?;

    let curve = |points: &[Point], density: f64, pick: fn(&Point) -> u64, higher: bool| -> Vec<(f64, f64)> {
        let corners = stairs(points, panel.events, plot * density, pick, higher);
        corners.into_iter().map(|(x, y)| (x, y as f64 / GIB)).collect()
    };
    let load = curve(panel.load, DENSITY, |point| point.load_max, true);
    let floor = curve(panel.load, DENSITY, |point| point.load_min, false);
    let load_end = load.last().copied();
    chart.draw_series(AreaSeries::new(load, 0.0, LOAD.filled())).map_err(bug)?;
    chart.draw_series(AreaSeries::new(floor, 0.0, LOAD_FLOOR.filled())).map_err(bug)?;
    let mut ends: Vec<(f64, &Entry)> = Vec::new();
    let mut lines: Vec<&Line<'_>> = panel.lines.iter().collect();
    if panel.are_many {
        lines.sort_by_key(|line| line.rank());
    }
    for line in lines {
        let reserved = curve(line.points, LINE_DENSITY, |point| point.reserved, true);
        if let Some(&(_, end)) = reserved.last() {
            ends.push((end, line.entry));
        }
        page.dash(line.look.dash);
        let stroke = if panel.are_many && line.rank() < 2 { FINE } else { LINE };
        let style = line.look.color.stroke_width(grid(stroke) as u32);
        for part in below(&reserved, panel.most) {
            chart.draw_series(LineSeries::new(part, style)).map_err(bug)?;
        }
        page.dash(&[]);
    }
    let place = |x: f64, y: f64| {
        let (x, y) = chart.backend_coord(&(x, y));
        (svg::points(x), svg::points(y))
    };
    for line in &panel.lines {
        let Some(event) = line.failure else { continue };
        let reserved = line.points.iter().rev().find(|point| point.event <= event).map_or(0, |point| point.reserved);
        page.cross(place(event as f64, reserved as f64 / GIB), line.look.color)?;
    }
    if layout.beside.is_some() {
        ends.extend(load_end.map(|(_, end)| (end, load_entry)));
        // The highest comes first.
        ends.sort_by(|a, b| b.0.total_cmp(&a.0));
        let x = left + wide - OVERHANG + 4.0;
        let ends: Vec<(f64, &Entry)> = ends.into_iter().map(|(end, entry)| (place(0.0, end).1, entry)).collect();
        label_ends(page, x, (place(0.0, panel.most).1, place(0.0, 0.0).1), &ends)?;
    }
    Ok(())
}

/// A short sample of the line, and its peak.
fn draw_note(page: &Page, note: &Note<'_>, left: f64, y: f64, wide: f64) -> Result<()> {
    const SAMPLE: f64 = 8.0;
    let how = Type { size: SMALL, ..Type::PLAIN };
    let x = left + SAMPLE + 3.0;
    match note {
        Note::Cut(entry, peak) => {
            if let Sample::Line(look) = entry.sample {
                page.dash(look.dash);
                page.line(&[(left, y), (left + SAMPLE, y)], look.color, LINE)?;
                page.dash(&[]);
            }
            let peak = format!(": {}", size::bytes(*peak));
            let name = how.fit(&entry.label, left + wide - x - how.width(&peak));
            page.text(&format!("{name}{peak}"), x, y, how)
        }
        Note::Others(count) => page.text(&format!("and {count} more"), x, y, how),
    }
}

/// The parts of a curve that are not above `end`.
fn below(curve: &[(f64, f64)], end: f64) -> Vec<Vec<(f64, f64)>> {
    let mut parts = Vec::new();
    let mut part: Vec<(f64, f64)> = Vec::new();
    let mut last: Option<(f64, f64)> = None;
    for &(x, y) in curve {
        // Where it passes the end. What jumps does so at its place.
        let passes = last.filter(|(_, before)| (*before > end) != (y > end));
        part.extend(passes.map(|(from, before)| (from + (x - from) * (end - before) / (y - before), end)));
        if y <= end {
            part.push((x, y));
        } else if !part.is_empty() {
            parts.push(std::mem::take(&mut part));
        }
        last = Some((x, y));
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// Labels at the ends of the lines, from the highest down, moved apart where they would overlap.
fn label_ends(page: &Page, x: f64, (top, bottom): (f64, f64), ends: &[(f64, &Entry)]) -> Result<()> {
    let mut places: Vec<f64> = ends.iter().map(|(y, _)| *y).collect();
    spread(&mut places, LEADING, top + LEADING / 2.0, bottom - LEADING / 2.0);
    for (y, (_, entry)) in places.into_iter().zip(ends) {
        page.entry(entry, x, y, f64::INFINITY)?;
    }
    Ok(())
}

/// Moves ascending places so that neighbours are `apart` and all lie in `[low, high]`, if that can be.
fn spread(places: &mut [f64], apart: f64, low: f64, high: f64) {
    let mut least = low;
    for place in places.iter_mut() {
        *place = place.max(least);
        least = *place + apart;
    }
    let mut most = high;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - apart;
    }
}

/// A curve that changes at events, as corners: for each of so many `columns` its highest (or lowest) value.
fn stairs(points: &[Point], events: f64, columns: f64, pick: fn(&Point) -> u64, higher: bool) -> Vec<(f64, u64)> {
    let column = |event: u64| (event as f64 / events * columns) as u64;
    let mut corners: Vec<(f64, u64)> = Vec::new();
    for group in points.chunk_by(|a, b| column(a.event) == column(b.event)) {
        let values = group.iter().map(pick);
        let Some(value) = (if higher { values.max() } else { values.min() }) else { continue };
        let (first, last) = (group[0], group[group.len() - 1]);
        let (start, end) = (first.event as f64, last.event as f64 + last.events as f64);
        match corners.last_mut() {
            Some(corner) if corner.1 == value => corner.0 = end,
            _ => corners.extend([(start, value), (end, value)]),
        }
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_keeps_its_highest_values() {
        let value = |i: u64| if i == 777 { 1000 } else { i % 10 };
        let points: Vec<Point> = (0..2000)
            .map(|i| Point { event: i * 3, events: 3, reserved: value(i), load_min: value(i), load_max: 0 })
            .collect();
        let all = stairs(&points, 6000.0, 1e9, |point| point.reserved, true);
        assert_eq!(all.len(), 4000);
        let few = stairs(&points, 6000.0, 100.0, |point| point.reserved, true);
        assert!(few.len() <= 200 && few.iter().any(|corner| corner.1 == 1000), "{few:?}");
        assert_eq!((few[0].0, few[few.len() - 1].0), (0.0, 6000.0));
        let low = stairs(&points, 6000.0, 100.0, |point| point.load_min, false);
        assert_eq!(low, [(0.0, 0), (6000.0, 0)]);
    }

    #[test]
    fn a_curve_ends_where_it_leaves_the_panel() {
        let curve = [(0.0, 1.0), (2.0, 1.0), (2.0, 9.0), (4.0, 9.0), (4.0, 3.0), (6.0, 3.0), (8.0, 7.0)];
        assert_eq!(below(&curve, 9.0), [curve.to_vec()]);
        let parts = [vec![(0.0, 1.0), (2.0, 1.0), (2.0, 5.0)], vec![(4.0, 5.0), (4.0, 3.0), (6.0, 3.0), (7.0, 5.0)]];
        assert_eq!(below(&curve, 5.0), parts);
        assert_eq!(below(&curve, 0.5), Vec::<Vec<(f64, f64)>>::new());
        assert_eq!(below(&[], 1.0), Vec::<Vec<(f64, f64)>>::new());
    }

    #[test]
    fn of_many_lines_that_leave_a_panel_the_highest_are_named() {
        let entry = Entry { sample: Sample::Cross(INK), label: "name".to_string() };
        let summary = |count: u64| -> Vec<(u64, usize)> {
            let cut = (0..count).map(|nth| (&entry, 100 - nth)).collect();
            let short = |note: &Note<'_>| match note {
                Note::Cut(_, peak) => (*peak, 0),
                Note::Others(count) => (0, *count),
            };
            notes(cut).iter().map(short).collect()
        };
        assert_eq!(summary(0), []);
        assert_eq!(summary(3), [(100, 0), (99, 0), (98, 0)]);
        assert_eq!(summary(5), [(100, 0), (99, 0), (0, 3)]);
    }

    #[test]
    fn labels_are_moved_apart_and_stay_inside() {
        let mut places = [10.0, 11.0, 12.0, 98.0, 99.0];
        spread(&mut places, 9.0, 5.0, 95.0);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 9.0), "{places:?}");
        assert!(places[0] >= 5.0 && places[4] <= 95.0, "{places:?}");
        let mut alone = [50.0];
        spread(&mut alone, 9.0, 5.0, 95.0);
        assert_eq!(alone, [50.0]);
    }
}
