//! Peak reserved memory over the load bound: a group of bars for each workload, a bar for each strategy.

use super::Width;
use super::axis::{Axis, signed};
use super::page::{Entry, Page, Result, Sample, Type, bug, legend_rows, points};
use super::select::{Run, Selection};
use super::style::{AXIS, GRID, INK, LEADING, Look, PAGE, PAPER};
use super::svg::{self, grid};
use crate::size::grouped;
use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::style::{Color, TRANSPARENT};
use std::borrow::Cow;

/// From one bar to the next.
const PITCH: f64 = 8.0;
/// The same where space is short; values are left out then.
const TIGHT: f64 = 4.0;
/// Between groups.
const GAP: f64 = 5.0;
/// Between columns of groups.
const GUTTER: f64 = 14.0;
/// The strip of numbers below an axis, and that of its description.
const STRIP: f64 = 10.0;
/// Half of a number below the axis.
const NUMBER: f64 = 8.0;
const DESCRIPTION: &str = "peak reserved / load bound \u{2212} 1 (%)";
const SHORT_DESCRIPTION: &str = "overhead (%)";
/// Names take at most this share of a column.
const NAMES: f64 = 0.36;

/// Where things are on the page, in points.
struct Layout {
    width: f64,
    columns: usize,
    /// Groups in a column.
    groups: usize,
    /// The height of a group, and from one of its bars to the next.
    group: f64,
    pitch: f64,
    /// Where the columns begin.
    top: f64,
    height: f64,
}

impl Layout {
    fn new(groups: usize, bars: usize, entries: &[Entry], width: Width) -> Layout {
        let page = points(width);
        let top = legend_rows(entries, page) as f64 * LEADING + 4.0;
        let (fewest, most) = match width {
            Width::Column => (1, 2),
            Width::Text => (2, 4),
        };
        let sized = |columns: usize, pitch: f64| {
            let columns = columns.min(groups).max(1);
            let groups = groups.div_ceil(columns);
            // As high as its bars, and at least as a line of text.
            let group = (bars as f64 * pitch).max(LEADING) + GAP;
            let height = top + groups as f64 * group + 2.0 * STRIP;
            Layout { width: page, columns, groups, group, pitch, top, height }
        };
        let choices = (fewest..=most).map(|columns| sized(columns, PITCH)).chain([sized(most, TIGHT)]);
        let mut choices: Vec<Layout> = choices.collect();
        let fits = choices.iter().position(|layout| layout.height <= PAGE).unwrap_or(choices.len() - 1);
        choices.swap_remove(fits)
    }

    fn column_width(&self) -> f64 {
        (self.width - GUTTER * (self.columns - 1) as f64) / self.columns as f64
    }
}

/// What is known of a run.
enum Bar {
    /// Percent over the load bound.
    Overhead(f64),
    /// How it failed.
    Failed(String),
    /// Why there is no number.
    Missing(&'static str),
}

impl Bar {
    fn of(run: Option<&Run>) -> Bar {
        let Some(run) = run else { return Bar::Missing("not run") };
        if !run.is_ok() {
            let at = run.outcome_event.map_or(String::new(), |event| format!(" at event {}", grouped(event)));
            return Bar::Failed(format!("{}{at}", run.outcome));
        }
        match (run.reserved_peak, run.load_peak) {
            (Some(_), Some(0)) => Bar::Missing("no load"),
            (Some(reserved), Some(load)) => Bar::Overhead((reserved as f64 / load as f64 - 1.0) * 100.0),
            _ => Bar::Missing("not audited"),
        }
    }

    fn value(&self) -> f64 {
        match self {
            Bar::Overhead(percent) => *percent,
            Bar::Failed(_) | Bar::Missing(_) => 0.0,
        }
    }

    /// The text beside it.
    fn text(&self) -> Cow<'_, str> {
        match self {
            Bar::Overhead(percent) => signed(*percent, if percent.abs() < 999.95 { 1 } else { 0 }, "+").into(),
            Bar::Failed(how) => how.into(),
            Bar::Missing(why) => (*why).into(),
        }
    }
}

/// All that the columns share.
struct Plan {
    layout: Layout,
    /// One for each strategy.
    looks: Vec<Look>,
    /// By workload: its name in lines, and its bars.
    groups: Vec<(Vec<String>, Vec<Bar>)>,
    /// The width of the names, and that of a percent.
    names: f64,
    scale: f64,
    /// Percent at the left and at the right edge, and the highest that has a number on the axis.
    range: (f64, f64, f64),
}

/// The figure.
pub fn figure(selection: &Selection, width: Width) -> Result<String> {
    let looks: Vec<Look> = selection.strategies.iter().map(|strategy| Look::nth(strategy.nth)).collect();
    let labels = selection.strategies.iter().map(|strategy| strategy.label.clone());
    let entries: Vec<Entry> = looks
        .iter()
        .zip(labels)
        .map(|(look, label)| Entry { sample: Sample::Area(look.color, look.hatch), label })
        .collect();
    let layout = Layout::new(selection.workloads.len(), looks.len(), &entries, width);
    let wide = layout.column_width();
    let lines = (((layout.group - GAP) / LEADING) as usize).max(1);
    let groups: Vec<(Vec<String>, Vec<Bar>)> = selection
        .workloads
        .iter()
        .zip(&selection.cells)
        .map(|(workload, runs)| {
            let bars = runs.iter().map(|run| Bar::of(run.as_ref())).collect();
            (Type::PLAIN.wrap(&workload.label, wide * NAMES, lines), bars)
        })
        .collect();
    let names = groups.iter().flat_map(|(name, _)| name).map(|line| Type::PLAIN.width(line)).fold(0.0, f64::max) + 6.0;
    let values = || groups.iter().flat_map(|(_, bars)| bars).map(Bar::value);
    let (least, most) = (values().fold(0.0, f64::min), values().fold(1.0, f64::max));
    // The value of the longest bar is to fit too.
    let numbers = groups.iter().flat_map(|(_, bars)| bars).filter(|bar| matches!(bar, Bar::Overhead(_)));
    let longest = numbers.map(|bar| Type::PLAIN.width(&bar.text())).fold(0.0, f64::max) + 3.0;
    let scale = (wide - names - longest).max(1.0) / (most - least);
    let most = least + (wide - names) / scale;
    let range = (least, most, most - NUMBER / scale);
    let plan = Plan { layout, looks, groups, names, scale, range };

    let page = Page::new(plan.layout.width, plan.layout.height)?;
    page.legend(&entries, 0.0, 0.0, plan.layout.width)?;
    for column in 0..plan.layout.columns {
        draw_column(&page, &plan, column)?;
    }
    Ok(page.finish("Peak reserved memory over the load bound, by workload and strategy"))
}

fn draw_column(page: &Page, plan: &Plan, column: usize) -> Result<()> {
    let Plan { layout, names, range, .. } = plan;
    let wide = layout.column_width();
    let left = column as f64 * (wide + GUTTER);
    let high = layout.groups as f64 * layout.group;
    let area = page.part(left, layout.top, wide, high + STRIP);
    let (least, most, last_number) = *range;
    let numbers = ((wide - names) / 24.0).clamp(2.0, 9.0) as usize;
    let mut chart = ChartBuilder::on(&area)
        .set_label_area_size(LabelAreaPosition::Left, grid(*names))
        .set_label_area_size(LabelAreaPosition::Bottom, grid(STRIP))
        .build_cartesian_2d(Axis::numbered_to(last_number, least, most, numbers), Axis::bare(0.0, high))
        .map_err(bug)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .bold_line_style(GRID.stroke_width(grid(AXIS) as u32))
        .light_line_style(TRANSPARENT)
        .axis_style(GRID.stroke_width(grid(AXIS) as u32))
        .set_all_tick_mark_size(grid(1.6))
        .label_style(Type::PLAIN.style())
        .draw()
        .map_err(bug)?;
    let zero = svg::points(chart.backend_coord(&(0.0, 0.0)).0);
    let groups = plan.groups.iter().skip(column * layout.groups).take(layout.groups);
    for (nth, (name, bars)) in groups.enumerate() {
        let middle = layout.top + (nth as f64 + 0.5) * layout.group;
        for (line, text) in name.iter().enumerate() {
            let y = middle + (line as f64 - (name.len() - 1) as f64 / 2.0) * LEADING;
            page.text(text, left + names - 5.0, y, Type::PLAIN.right())?;
        }
        let top = middle - bars.len() as f64 * layout.pitch / 2.0;
        for (nth, (bar, look)) in bars.iter().zip(&plan.looks).enumerate() {
            let y = top + (nth as f64 + 0.5) * layout.pitch;
            draw_bar(page, plan, bar, look, (zero, y), left + wide)?;
        }
    }
    let bottom = layout.top + high;
    page.line(&[(zero, layout.top - 1.0), (zero, bottom)], INK, AXIS)?;
    let text = if Type::PLAIN.width(DESCRIPTION) <= wide { DESCRIPTION } else { SHORT_DESCRIPTION };
    // One that is longer than the axis does not stick out of the column.
    let half = Type::PLAIN.width(text) / 2.0;
    let middle = (left + (names + wide) / 2.0).min(left + wide - half);
    page.text(text, middle, bottom + STRIP * 1.5, Type::PLAIN.centered())
}

fn draw_bar(page: &Page, plan: &Plan, bar: &Bar, look: &Look, (zero, y): (f64, f64), edge: f64) -> Result<()> {
    let pitch = plan.layout.pitch;
    let half = pitch * 0.42;
    let end = zero + bar.value() * plan.scale;
    page.hatched([zero.min(end), y - half, zero.max(end), y + half], look.color, look.hatch)?;
    if pitch < PITCH {
        return match bar {
            Bar::Failed(_) => page.cross((zero + 4.0, y), look.color),
            Bar::Overhead(_) | Bar::Missing(_) => Ok(()),
        };
    }
    // Beside the bar, or on the other side of zero, where nothing is but the grid.
    let x = zero.max(end) + 2.0;
    let (text, how) = match bar {
        Bar::Overhead(_) => (bar.text().into_owned(), Type::PLAIN),
        Bar::Failed(_) | Bar::Missing(_) => (Type::FAINT.fit(&bar.text(), edge - x), Type::FAINT),
    };
    page.fill([x, y - half, x + how.width(&text), y + half], PAPER)?;
    page.text(&text, x, y, how)
}
