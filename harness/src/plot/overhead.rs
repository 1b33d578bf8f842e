//! Peak reserved memory over the load bound: a group of bars for each workload, a bar for each strategy. More strategies
//! than can be told apart by their bars are drawn as a [matrix].

use super::axis::Axis;
use super::outlier;
use super::page::{Entry, Page, Result, Sample, Type, bug, legend_rows, points};
use super::select::Selection;
use super::style::{AXIS, GRID, INK, LEADING, Look, MANY, PAGE, PAPER};
use super::svg::{self, grid};
use super::value::Value;
use super::{Width, matrix};
use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::style::{Color, TRANSPARENT};

/// Over what the numbers are.
pub const DESCRIPTION: &str = "peak reserved / load bound \u{2212} 1 (%)";
/// The same where that is too long.
pub const SHORT_DESCRIPTION: &str = "overhead (%)";

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
/// What a cut bar is longer than the longest whole one, and how far its break is from its end.
const BEYOND: f64 = 12.0;
const BREAK: f64 = 5.0;
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

/// All that the columns share.
struct Plan {
    layout: Layout,
    /// One for each strategy.
    looks: Vec<Look>,
    /// By workload: its name in lines, and its bars.
    groups: Vec<(Vec<String>, Vec<Value>)>,
    /// The width of the names, and that of a percent.
    names: f64,
    scale: f64,
    /// Percent of the longest whole bar. Longer ones are cut.
    longest: f64,
    /// Percent at the left and at the right edge, and the highest that has a number on the axis.
    range: (f64, f64, f64),
}

/// The figure.
pub fn figure(selection: &Selection, width: Width) -> Result<String> {
    match selection.strategies.len() > MANY {
        true => matrix::figure(selection, width),
        false => bars(selection, width),
    }
}

fn bars(selection: &Selection, width: Width) -> Result<String> {
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
    let groups: Vec<(Vec<String>, Vec<Value>)> = selection
        .workloads
        .iter()
        .zip(&selection.cells)
        .map(|(workload, runs)| {
            let bars = runs.iter().map(|run| Value::of(run.as_ref())).collect();
            (Type::PLAIN.wrap(&workload.label, wide * NAMES, lines), bars)
        })
        .collect();
    let names = groups.iter().flat_map(|(name, _)| name).map(|line| Type::PLAIN.width(line)).fold(0.0, f64::max) + 6.0;
    let bars = || groups.iter().flat_map(|(_, bars)| bars);
    let (least, longest, is_cut) = ends(bars().filter_map(Value::percent));
    // The value of the longest bar is to fit too.
    let numbers = bars().filter(|bar| bar.percent().is_some());
    let text = numbers.map(|bar| Type::PLAIN.width(&bar.text(1))).fold(0.0, f64::max) + 3.0;
    let beyond = if is_cut { BEYOND } else { 0.0 };
    let scale = (wide - names - text - beyond).max(1.0) / (longest - least);
    let most = least + (wide - names) / scale;
    let last_number = most - NUMBER / scale;
    let range = (least, most, if is_cut { last_number.min(longest) } else { last_number });
    let plan = Plan { layout, looks, groups, names, scale, longest, range };

    let page = Page::new(plan.layout.width, plan.layout.height)?;
    page.legend(&entries, 0.0, 0.0, plan.layout.width)?;
    for column in 0..plan.layout.columns {
        draw_column(&page, &plan, column)?;
    }
    Ok(page.finish("Peak reserved memory over the load bound, by workload and strategy"))
}

/// The lowest and the highest percent that the axis shows, and whether there are higher ones. What counts is reserved
/// memory in loads: of percent above the load the median is often near 0.
fn ends(percents: impl Iterator<Item = f64> + Clone) -> (f64, f64, bool) {
    let loads = |percent: f64| 1.0 + percent / 100.0;
    let limit = outlier::limit(percents.clone().map(loads));
    let (whole, cut): (Vec<f64>, Vec<f64>) = percents.partition(|percent| loads(*percent) <= limit);
    (whole.iter().copied().fold(0.0, f64::min), whole.iter().copied().fold(1.0, f64::max), !cut.is_empty())
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

fn draw_bar(page: &Page, plan: &Plan, bar: &Value, look: &Look, (zero, y): (f64, f64), edge: f64) -> Result<()> {
    let pitch = plan.layout.pitch;
    let half = pitch * 0.42;
    let percent = bar.percent().unwrap_or(0.0);
    let is_cut = percent > plan.longest;
    let end = zero + percent.min(plan.longest) * plan.scale + if is_cut { BEYOND } else { 0.0 };
    page.hatched([zero.min(end), y - half, zero.max(end), y + half], look.color, look.hatch)?;
    if is_cut {
        draw_break(page, end - BREAK, y, half)?;
    }
    if pitch < PITCH {
        return match bar {
            Value::Failed(..) => page.cross((zero + 4.0, y), look.color),
            Value::Overhead(_) | Value::Missing(_) => Ok(()),
        };
    }
    // Beside the bar, or on the other side of zero, where nothing is but the grid.
    let x = zero.max(end) + 2.0;
    let (text, how) = match bar {
        Value::Overhead(_) => (bar.text(1), Type::PLAIN),
        Value::Failed(..) | Value::Missing(_) => (Type::FAINT.fit(&bar.text(1), edge - x), Type::FAINT),
    };
    page.fill([x, y - half, x + how.width(&text), y + half], PAPER)?;
    page.text(&text, x, y, how)
}

/// A slanted gap with inked edges: no hatching looks like that.
fn draw_break(page: &Page, x: f64, y: f64, half: f64) -> Result<()> {
    let slanted = |x: f64, reach: f64| [(x - 1.2, y + reach), (x + 1.2, y - reach)];
    page.line(&slanted(x, half), PAPER, 2.0)?;
    for edge in [-1.1, 1.1] {
        page.line(&slanted(x + edge, half + 0.6), INK, AXIS)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::select::tests::all;
    use super::*;
    use plotters::style::RGBColor;

    #[test]
    fn the_axis_ends_at_the_largest_value_that_is_no_outlier() {
        assert_eq!(ends([10.0, 30.0, 3125.0, 8.0, 160.0].into_iter()), (0.0, 160.0, true));
        assert_eq!(ends([10.0, 30.0, -18.9, 8.0, 160.0].into_iter()), (-18.9, 160.0, false));
        // As multiples of the load these are 1, 1, 1 and 2.5: far apart in percent only.
        assert_eq!(ends([0.0, 0.1, 0.2, 150.0].into_iter()), (0.0, 150.0, false));
        assert_eq!(ends([].into_iter()), (0.0, 1.0, false));
    }

    #[test]
    fn an_outlier_is_cut_and_hides_no_bar() {
        let svg = |last: u64| {
            let rows = [("a", 110), ("b", 140), ("c", 150), ("d", last)];
            let row = |(name, reserved)| format!("{name},w,{name},{{}},9,ok,,100,{reserved},7");
            figure(&all(&rows.map(row)), Width::Column).unwrap()
        };
        // The right edge of a strategy's bar, which comes after the sample in the legend.
        let right = |svg: &str, nth: usize| -> f64 {
            let RGBColor(r, g, b) = Look::nth(nth).color;
            let color = format!("<path fill=\"#{r:02x}{g:02x}{b:02x}\" d=\"");
            let bar = svg.rsplit(&color).next().unwrap();
            bar[bar.find('H').unwrap() + 1..bar.find('V').unwrap()].parse().unwrap()
        };
        let (plain, cut) = (svg(160), svg(4000));
        assert!(cut.contains(">+3900<") && cut.contains(">+50.0<"), "{cut}");
        assert!(right(&cut, 2) > 0.7 * right(&plain, 2), "{} {}", right(&cut, 2), right(&plain, 2));
        assert!(right(&cut, 3) > right(&cut, 2));
        // Nothing else has the ink of the edges of a break.
        let breaks = |svg: &str| svg.matches("stroke=\"#333333\"").count();
        assert_eq!(breaks(&cut), breaks(&plain) + 1);
    }
}
