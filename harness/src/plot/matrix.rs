//! Peak reserved memory over the load bound of many strategies: a row for each strategy, a column for each workload, and in
//! each cell the number on a colour that says how much it is.

use super::Width;
use super::overhead::{DESCRIPTION, SHORT_DESCRIPTION};
use super::page::{Entry, Page, Result, Sample, Type, legend_rows, points};
use super::select::Selection;
use super::shade::{shade, share, text_on};
use super::style::{AXIS, FAINT, INK, LEADING, SMALL, TEXT, WIRE};
use super::value::Value;
use std::collections::BTreeSet;

/// Names of strategies take what the cells leave, but at least and at most these shares of the width.
const NAMES: (f64, f64) = (0.3, 0.42);
/// Lines of a word that is longer.
const LINES: usize = 2;
/// Between the names and the cells, and around both.
const SPACE: f64 = 5.0;
const EDGE: f64 = 1.0;
/// Above and below the text of a row together.
const LEEWAY: f64 = 2.5;
/// Beside a number in its cell, on both sides together.
const PADDING: f64 = 3.0;
/// Cells are no wider than this if their numbers do not need it.
const WIDEST: f64 = 60.0;
/// Half of what is between two cells.
const HAIR: f64 = 0.3;
/// Names of workloads above their columns: in so many lines, or upwards, at most so long.
const HEADER_LINES: usize = 3;
const HEADER: f64 = 66.0;
/// Between blocks of columns.
const GAP: f64 = 8.0;
/// The sample of the colours: its width and height, and the percents that are written below it.
const SCALE: (f64, f64) = (96.0, 5.0);
const STEPS: usize = 48;
const PERCENTS: [u32; 4] = [0, 10, 100, 1000];

/// Names above columns.
struct Header {
    names: Vec<Vec<String>>,
    upwards: bool,
    height: f64,
}

/// How the cells are laid out, in points.
struct Plan {
    /// Text, and the digits of numbers behind the point.
    how: Type,
    digits: usize,
    /// By strategy: its name in lines.
    names: Vec<Vec<String>>,
    /// Where the cells begin, how wide they are, and how many stand side by side.
    left: f64,
    wide: f64,
    columns: usize,
    header: Header,
}

impl Plan {
    /// The first of these that has one block only, or else the narrowest.
    fn new(selection: &Selection, values: &[Vec<Value>], width: Width) -> Plan {
        let sized = |size: f64, digits: usize| Plan::sized(selection, values, points(width), size, digits);
        let in_one_block = |plan: &Plan| plan.columns >= values.len();
        let mut wide = [(TEXT, 1), (TEXT, 0)].into_iter().map(|(size, digits)| sized(size, digits));
        wide.find(in_one_block).unwrap_or_else(|| sized(SMALL, 0))
    }

    fn sized(selection: &Selection, values: &[Vec<Value>], page: f64, size: f64, digits: usize) -> Plan {
        let how = Type { size, ..Type::PLAIN };
        let numbers = values.iter().flatten().filter(|value| value.percent().is_some());
        let narrowest = numbers.map(|value| how.width(&value.text(digits))).fold(size, f64::max) + PADDING;
        let around = SPACE + 2.0 * EDGE;
        let room = (page - around - narrowest * values.len() as f64).clamp(page * NAMES.0, page * NAMES.1);
        let names: Vec<Vec<String>> =
            selection.strategies.iter().map(|strategy| name_lines(&strategy.label, how, room)).collect();
        let longest = names.iter().flatten().map(|line| how.width(line)).fold(0.0, f64::max);
        let cells = page - around - longest;
        let fitting = ((cells / narrowest) as usize).max(1);
        // Blocks of the same width, but for the last.
        let columns = values.len().div_ceil(values.len().div_ceil(fitting).max(1)).max(1);
        let wide = (cells / columns as f64).min(WIDEST.max(narrowest));
        let header = Header::new(selection, how, wide);
        Plan { how, digits, names, left: EDGE + longest + SPACE, wide, columns, header }
    }

    /// The height of a row.
    fn high(&self, row: usize) -> f64 {
        self.names[row].len() as f64 * leading(self.how) + LEEWAY
    }

    /// The height of a header with all rows.
    fn block(&self) -> f64 {
        self.header.height + (0..self.names.len()).map(|row| self.high(row)).sum::<f64>()
    }

    /// What is written into a cell: the most that fits; nothing stands for a mark.
    fn text(&self, value: &Value) -> Option<String> {
        let candidates = match value {
            Value::Overhead(_) => return Some(value.text(self.digits)),
            Value::Failed(outcome, _) => vec![value.text(self.digits), outcome.clone()],
            Value::Missing(why) => vec![why.to_string()],
        };
        candidates.into_iter().find(|text| self.how.width(text) + PADDING <= self.wide)
    }
}

impl Header {
    fn new(selection: &Selection, how: Type, wide: f64) -> Header {
        let lines = |long: f64, most: usize| -> Vec<Vec<String>> {
            selection.workloads.iter().map(|workload| how.wrap(&workload.label, long, most)).collect()
        };
        let level = lines(wide - PADDING, HEADER_LINES);
        // The last line of a name is shortened if it does not fit.
        let is_whole = level
            .iter()
            .zip(&selection.workloads)
            .all(|(name, workload)| name.last().is_some_and(|last| workload.label.ends_with(last)));
        if is_whole {
            let high = level.iter().map(Vec::len).max().unwrap_or(0) as f64 * leading(how);
            return Header { names: level, upwards: false, height: high + 2.0 };
        }
        let names = lines(HEADER, ((wide / leading(how)) as usize).clamp(1, HEADER_LINES));
        let long = names.iter().flatten().map(|line| how.width(line)).fold(0.0, f64::max);
        Header { names, upwards: true, height: long + 4.0 }
    }

    /// One name, above the middle of its column.
    fn draw(&self, page: &Page, nth: usize, middle: f64, bottom: f64, how: Type) -> Result<()> {
        let name = &self.names[nth];
        for (line, text) in name.iter().enumerate() {
            if self.upwards {
                let x = middle + (line as f64 - (name.len() - 1) as f64 / 2.0) * leading(how);
                page.text(text, x, bottom - 3.0, Type { upwards: true, ..how })?;
            } else {
                let y = bottom - 1.0 - (name.len() as f64 - line as f64 - 0.5) * leading(how);
                page.text(text, middle, y, how.centered())?;
            }
        }
        Ok(())
    }
}

/// A name in lines of so many points, broken between its words, and inside those that are longer than that.
fn name_lines(name: &str, how: Type, long: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        let joined = lines.last().map(|line| format!("{line} {word}")).filter(|line| how.width(line) <= long);
        match (joined, lines.last_mut()) {
            (Some(joined), Some(line)) => *line = joined,
            _ => lines.extend(how.wrap(word, long, LINES)),
        }
    }
    lines
}

fn leading(how: Type) -> f64 {
    how.size + LEADING - TEXT
}

/// The figure.
pub fn figure(selection: &Selection, width: Width) -> Result<String> {
    let values: Vec<Vec<Value>> =
        selection.cells.iter().map(|cells| cells.iter().map(|run| Value::of(run.as_ref())).collect()).collect();
    let plan = Plan::new(selection, &values, width);
    let marks = marks(&plan, &values);
    let blocks: Vec<&[Vec<Value>]> = values.chunks(plan.columns).collect();
    let block = plan.block() + GAP;
    let bottom = blocks.len() as f64 * block;
    let notes = legend_rows(&marks, points(width)) as f64 * LEADING;
    let height = bottom + SCALE.1 + 2.0 + LEADING + if marks.is_empty() { 0.0 } else { notes + 3.0 };

    let page = Page::new(points(width), height)?;
    for (nth, columns) in blocks.into_iter().enumerate() {
        draw_block(&page, &plan, columns, nth * plan.columns, nth as f64 * block)?;
    }
    draw_scale(&page, points(width), bottom)?;
    page.legend(&marks, 0.0, height - notes, points(width))?;
    Ok(page.finish("Peak reserved memory over the load bound, by strategy and workload"))
}

/// What the marks in cells without room for words mean.
fn marks(plan: &Plan, values: &[Vec<Value>]) -> Vec<Entry> {
    let (mut failures, mut gaps) = (BTreeSet::new(), BTreeSet::new());
    for value in values.iter().flatten().filter(|value| plan.text(value).is_none()) {
        match value {
            Value::Failed(outcome, _) => _ = failures.insert(outcome.as_str()),
            Value::Missing(why) => _ = gaps.insert(*why),
            Value::Overhead(_) => {}
        }
    }
    let samples = [(Sample::Cross(INK), failures), (Sample::Wire(FAINT), gaps)];
    let used = samples.into_iter().filter(|(_, words)| !words.is_empty());
    let entry = |words: BTreeSet<&str>| words.into_iter().collect::<Vec<_>>().join(" or ");
    used.map(|(sample, words)| Entry { sample, label: entry(words) }).collect()
}

fn draw_block(page: &Page, plan: &Plan, columns: &[Vec<Value>], first: usize, top: f64) -> Result<()> {
    let mut top = top + plan.header.height;
    for nth in 0..columns.len() {
        let middle = plan.left + (nth as f64 + 0.5) * plan.wide;
        plan.header.draw(page, first + nth, middle, top, plan.how)?;
    }
    for (row, name) in plan.names.iter().enumerate() {
        let bottom = top + plan.high(row);
        for (line, text) in name.iter().enumerate() {
            let y = (top + bottom) / 2.0 + (line as f64 - (name.len() - 1) as f64 / 2.0) * leading(plan.how);
            page.text(text, plan.left - SPACE, y, plan.how.right())?;
        }
        for (nth, values) in columns.iter().enumerate() {
            let left = plan.left + nth as f64 * plan.wide;
            let rect = [left + HAIR, top + HAIR, left + plan.wide - HAIR, bottom - HAIR];
            draw_cell(page, plan, &values[row], rect)?;
        }
        top = bottom;
    }
    Ok(())
}

/// A number has a coloured cell, a failure a framed one, and what there is not an empty one.
fn draw_cell(page: &Page, plan: &Plan, value: &Value, rect: [f64; 4]) -> Result<()> {
    let [left, top, right, bottom] = rect;
    let (x, y) = ((left + right) / 2.0, (top + bottom) / 2.0);
    let color = match value {
        Value::Overhead(percent) => {
            let share = share(*percent);
            page.fill(rect, shade(share))?;
            text_on(share)
        }
        Value::Failed(..) => {
            let (left, top, right, bottom) = (left + AXIS, top + AXIS, right - AXIS, bottom - AXIS);
            page.line(&[(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], INK, AXIS)?;
            INK
        }
        Value::Missing(_) => FAINT,
    };
    match (plan.text(value), value) {
        (Some(text), _) => page.text(&text, x, y, Type { color, ..plan.how }.centered()),
        (None, Value::Failed(..)) => page.cross((x, y), color),
        (None, _) => page.line(&[(x - 3.0, y), (x + 3.0, y)], color, WIRE),
    }
}

/// The colours from the least to the most, at the right edge, and what the numbers are.
fn draw_scale(page: &Page, right: f64, top: f64) -> Result<()> {
    let (wide, high) = SCALE;
    let right = right - EDGE - Type::PLAIN.width("1000") / 2.0;
    let left = right - wide;
    for step in 0..STEPS {
        // Each lies upon the one before: there are no seams.
        let from = left + wide * step as f64 / STEPS as f64;
        page.fill([from, top, right, top + high], shade((step as f64 + 0.5) / STEPS as f64))?;
    }
    let y = top + high + 2.0 + LEADING / 2.0;
    for percent in PERCENTS {
        let x = left + wide * share(f64::from(percent));
        page.line(&[(x, top + high), (x, top + high + 1.6)], INK, AXIS)?;
        page.text(&percent.to_string(), x, y, Type::PLAIN.centered())?;
    }
    let room = left - Type::PLAIN.width("0") / 2.0 - 5.0;
    let text = if Type::PLAIN.width(DESCRIPTION) <= room { DESCRIPTION } else { SHORT_DESCRIPTION };
    page.text(text, room, y, Type::PLAIN.right())
}

#[cfg(test)]
mod tests {
    use super::super::select::tests::all;
    use super::*;
    use plotters::style::RGBColor;

    /// So many workloads and strategies, each strategy with 30 % more than the one before. The first oomed on the first
    /// workload, and there the second was not run.
    fn selection(workloads: u64, strategies: u64) -> Selection {
        let mut rows = Vec::new();
        for workload in 0..workloads {
            for strategy in 0..strategies {
                let id = format!("{workload}x{strategy},work_{workload}.default,way{strategy},{{}},9");
                let reserved = 100 + strategy * 30;
                match (workload, strategy) {
                    (0, 0) => rows.push(format!("{id},oom,1227,100,{reserved},7")),
                    (0, 1) => {}
                    _ => rows.push(format!("{id},ok,,100,{reserved},7")),
                }
            }
        }
        all(&rows)
    }

    fn values(selection: &Selection) -> Vec<Vec<Value>> {
        selection.cells.iter().map(|cells| cells.iter().map(|run| Value::of(run.as_ref())).collect()).collect()
    }

    fn count(svg: &str, text: &str) -> usize {
        svg.matches(text).count()
    }

    #[test]
    fn every_run_has_its_cell() {
        for width in Width::ALL {
            let svg = super::super::overhead::figure(&selection(3, 9), width).unwrap();
            for strategy in 2..9 {
                let percent = strategy * 30;
                let RGBColor(r, g, b) = shade(share(f64::from(percent)));
                assert!(svg.contains(&format!("fill=\"#{r:02x}{g:02x}{b:02x}\"")), "{percent}: {svg}");
                assert_eq!(count(&svg, &format!(">+{percent}.0</text>")), 3, "{percent}: {svg}");
                assert_eq!(count(&svg, &format!(">way{strategy}</text>")), 1);
            }
            // The second was run on two of three workloads.
            assert_eq!(
                [">+30.0</text>", ">0.0</text>", ">oom</text>", ">not run</text>"].map(|text| count(&svg, text)),
                [2, 2, 1, 1]
            );
            for workload in 0..3 {
                assert!(svg.contains(&format!(">work_{workload}.")), "{svg}");
            }
        }
    }

    #[test]
    fn a_failure_is_never_a_number() {
        let selection = selection(30, 9);
        let mut values = values(&selection);
        let plan = Plan::new(&selection, &values, Width::Column);
        assert_eq!(plan.text(&values[0][0]), Some("oom".to_string()));
        let labels = |values: &[Vec<Value>]| -> Vec<String> {
            marks(&plan, values).into_iter().map(|entry| entry.label).collect()
        };
        assert_eq!(labels(&values), ["not run"]);
        values[0][0] = Value::Failed("unsupported".to_string(), Some(7));
        assert_eq!(plan.text(&values[0][0]), None);
        assert_eq!(labels(&values), ["unsupported", "not run"]);
    }

    #[test]
    fn what_does_not_fit_side_by_side_comes_in_blocks() {
        for (workloads, width) in [(1, Width::Column), (7, Width::Column), (7, Width::Text), (40, Width::Text)] {
            let selection = selection(workloads, 12);
            let values = values(&selection);
            let plan = Plan::new(&selection, &values, width);
            let right = plan.left + plan.wide * plan.columns as f64;
            assert!(right <= points(width), "{workloads}: {right}");
            assert!(plan.how.size >= SMALL);
            for value in values.iter().flatten().filter(|value| value.percent().is_some()) {
                assert!(plan.how.width(&plan.text(value).unwrap()) < plan.wide, "{workloads}: {value:?}");
            }
            let blocks = values.len().div_ceil(plan.columns);
            assert_eq!(blocks > 1, workloads == 40, "{blocks}");
            assert_eq!(count(&figure(&selection, width).unwrap(), ">way11</text>"), blocks);
        }
    }

    #[test]
    fn names_are_written_out() {
        let how = Type { size: SMALL, ..Type::PLAIN };
        assert_eq!(name_lines("expandable max_split_size_mb=128", how, 75.0), ["expandable", "max_split_size_mb=128"]);
        assert_eq!(name_lines("tlsf keep_empty=4 search=x", how, 75.0), ["tlsf keep_empty=4", "search=x"]);
        let long = name_lines("caching garbage_collection_threshold=0.8", how, 75.0);
        assert_eq!(long.concat(), "cachinggarbage_collection_threshold=0.8");
        assert!(long.iter().all(|line| how.width(line) <= 75.0), "{long:?}");
    }
}
