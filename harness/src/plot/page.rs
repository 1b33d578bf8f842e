//! A page to draw on, in points: text that is measured before it is placed, hatched areas, legends.

use super::Width;
use super::style::{BLACK, FAINT, Hatch, INK, LEADING, LINE, Look, PAPER, TEXT, TITLE, WIRE};
use super::svg::{Svg, asked_size, grid};
use crate::exit::Error;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{PathElement, Rectangle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, FontTransform, IntoFont, RGBColor, TextStyle, register_font};
use std::sync::Once;

/// A part of a page.
pub type Area = DrawingArea<Svg, Shift>;

/// Drawing itself cannot fail; what is left are bugs.
pub type Result<T> = std::result::Result<T, Error>;

/// What plotters answers, as an error of this program.
pub fn bug<E: std::error::Error + Send + Sync>(why: DrawingAreaErrorKind<E>) -> Error {
    Error::Internal(format!("drawing a figure: {why}"))
}

const FAMILY: &str = "Inter";
const ELLIPSIS: char = '…';
/// A sample in a legend, and what keeps it from its text and the next sample.
const SAMPLE: f64 = 14.0;
const SAMPLE_GAP: f64 = 3.5;
const ENTRY_GAP: f64 = 11.0;

/// How many panels stand side by side: `most`, or fewer if the last row would have gaps that it need not have.
pub fn columns(panels: usize, most: usize) -> usize {
    panels.div_ceil(panels.div_ceil(most).max(1)).max(1)
}

/// The printed width in points.
pub const fn points(width: Width) -> f64 {
    match width {
        Width::Column => 3.3 * 72.0,
        Width::Text => 7.0 * 72.0,
    }
}

/// How a text is set.
#[derive(Clone, Copy)]
pub struct Type {
    /// Its size in points.
    pub size: f64,
    /// Its colour.
    pub color: RGBColor,
    /// Which point of its middle line is placed.
    pub anchor: HPos,
    /// Turned to read upwards.
    pub upwards: bool,
}

impl Type {
    /// Plain text, placed by the middle of its left edge.
    pub const PLAIN: Type = Type { size: TEXT, color: INK, anchor: HPos::Left, upwards: false };
    /// A title.
    pub const TITLE: Type = Type { size: TITLE, color: BLACK, ..Type::PLAIN };
    /// An aside.
    pub const FAINT: Type = Type { color: FAINT, ..Type::PLAIN };

    /// Placed by the middle of its right edge.
    pub const fn right(self) -> Type {
        Type { anchor: HPos::Right, ..self }
    }

    /// Placed by its middle.
    pub const fn centered(self) -> Type {
        Type { anchor: HPos::Center, ..self }
    }

    /// As plotters has it.
    pub fn style(self) -> TextStyle<'static> {
        // Measuring needs the font; the program holds it.
        static FONT: Once = Once::new();
        // A font that cannot be read shows itself at the first text.
        FONT.call_once(|| _ = register_font(FAMILY, FontStyle::Normal, super::export::FONT));
        let font = (FAMILY, asked_size(self.size)).into_font();
        let turned = if self.upwards { font.transform(FontTransform::Rotate270) } else { font };
        turned.color(&self.color).pos(Pos::new(self.anchor, VPos::Center))
    }

    /// How wide a text is, in points.
    pub fn width(self, text: &str) -> f64 {
        let upright = Type { upwards: false, ..self };
        let (left, right) = upright.style().font.layout_box(text).map_or((0, 0), |((l, _), (r, _))| (l, r));
        super::svg::points(right - left)
    }

    /// The text, or as much of its beginning and end as fits into `width` points.
    pub fn fit(self, text: &str, width: f64) -> String {
        if self.width(text) <= width {
            return text.to_string();
        }
        let chars: Vec<char> = text.chars().collect();
        let shortened = |kept: usize| -> String {
            let (head, tail) = (kept.div_ceil(2), kept / 2);
            chars[..head].iter().chain([&ELLIPSIS]).chain(&chars[chars.len() - tail..]).collect()
        };
        (0..chars.len()).rev().map(shortened).find(|text| self.width(text) <= width).unwrap_or_default()
    }

    /// The text in at most `lines` lines of `width` points, broken where names have joints.
    pub fn wrap(self, text: &str, width: f64, lines: usize) -> Vec<String> {
        let mut wrapped = Vec::new();
        let mut rest = text;
        while self.width(rest) > width && wrapped.len() + 1 < lines {
            let joints = rest.char_indices().filter(|(_, char)| matches!(char, '.' | '_' | '-' | ' ' | '/' | ','));
            let ends: Vec<usize> = joints.map(|(at, char)| at + char.len_utf8()).collect();
            let Some(&end) = ends.iter().rev().find(|&&end| self.width(rest[..end].trim_end()) <= width) else { break };
            wrapped.push(rest[..end].trim_end().to_string());
            rest = &rest[end..];
        }
        wrapped.push(self.fit(rest, width));
        wrapped
    }
}

/// A page.
pub struct Page {
    svg: Svg,
    /// All of it.
    pub area: Area,
}

impl Page {
    /// A white page of so many points.
    pub fn new(width: f64, height: f64) -> Result<Page> {
        let svg = Svg::new((grid(width) as u32, grid(height) as u32));
        let area = svg.clone().into_drawing_area();
        area.fill(&PAPER).map_err(bug)?;
        Ok(Page { svg, area })
    }

    /// A part of it, by its left, top, width and height.
    pub fn part(&self, left: f64, top: f64, width: f64, height: f64) -> Area {
        self.area.clone().shrink((grid(left), grid(top)), (grid(width), grid(height)))
    }

    /// The lines that follow have these strokes and gaps.
    pub fn dash(&self, lengths: &[f64]) {
        self.svg.dash(lengths);
    }

    /// The file.
    pub fn finish(self, title: &str) -> String {
        self.svg.finish(title)
    }

    /// A text.
    pub fn text(&self, text: &str, x: f64, y: f64, how: Type) -> Result<()> {
        self.area.draw_text(text, &how.style(), (grid(x), grid(y))).map_err(bug)
    }

    /// A line of so many points' width.
    pub fn line(&self, path: &[(f64, f64)], color: RGBColor, width: f64) -> Result<()> {
        let path: Vec<(i32, i32)> = path.iter().map(|(x, y)| (grid(*x), grid(*y))).collect();
        self.area.draw(&PathElement::new(path, color.stroke_width(grid(width) as u32))).map_err(bug)
    }

    /// A small cross.
    pub fn cross(&self, (x, y): (f64, f64), color: RGBColor) -> Result<()> {
        const ARM: f64 = 2.2;
        self.line(&[(x - ARM, y - ARM), (x + ARM, y + ARM)], color, LINE)?;
        self.line(&[(x - ARM, y + ARM), (x + ARM, y - ARM)], color, LINE)
    }

    /// A filled rectangle.
    pub fn fill(&self, [left, top, right, bottom]: [f64; 4], color: RGBColor) -> Result<()> {
        let corners = [(grid(left), grid(top)), (grid(right), grid(bottom))];
        self.area.draw(&Rectangle::new(corners, color.filled())).map_err(bug)
    }

    /// A filled rectangle with lines across it.
    pub fn hatched(&self, rect: [f64; 4], color: RGBColor, hatch: Hatch) -> Result<()> {
        self.fill(rect, color)?;
        self.hatch(rect, hatch)
    }

    /// Lines across a rectangle.
    pub fn hatch(&self, rect: [f64; 4], hatch: Hatch) -> Result<()> {
        for line in hatching(rect, hatch) {
            self.line(&line, PAPER, 0.6)?;
        }
        Ok(())
    }

    /// A legend in rows as wide as the page, the first of them at `top`.
    pub fn legend(&self, entries: &[Entry], left: f64, top: f64, width: f64) -> Result<()> {
        for (entry, (row, x)) in entries.iter().zip(flow(entries, width)) {
            self.entry(entry, left + x, top + (row as f64 + 0.5) * LEADING, width)?;
        }
        Ok(())
    }

    /// One line of a legend, at most so wide, by the middle of its left edge.
    pub fn entry(&self, entry: &Entry, x: f64, y: f64, width: f64) -> Result<()> {
        self.sample(&entry.sample, x, y)?;
        let label = Type::PLAIN.fit(&entry.label, width - SAMPLE - SAMPLE_GAP);
        self.text(&label, x + SAMPLE + SAMPLE_GAP, y, Type::PLAIN)
    }

    fn sample(&self, sample: &Sample, x: f64, y: f64) -> Result<()> {
        match *sample {
            Sample::Line(look) => {
                self.dash(look.dash);
                self.line(&[(x, y), (x + SAMPLE, y)], look.color, LINE)?;
                self.dash(&[]);
                Ok(())
            }
            Sample::Area(color, hatch) => self.hatched([x, y - 2.7, x + SAMPLE, y + 2.7], color, hatch),
            Sample::Cross(color) => self.cross((x + SAMPLE / 2.0, y), color),
            Sample::Wire(color) => self.line(&[(x, y), (x + SAMPLE, y)], color, WIRE),
        }
    }
}

/// A line of a legend.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it looks like.
    pub sample: Sample,
    /// What it is.
    pub label: String,
}

/// What stands before the text of a legend.
#[derive(Clone, Copy, Debug)]
pub enum Sample {
    /// A line of a strategy.
    Line(Look),
    /// An area.
    Area(RGBColor, Hatch),
    /// A cross.
    Cross(RGBColor),
    /// A thin line.
    Wire(RGBColor),
}

/// The rows that a legend takes.
pub fn legend_rows(entries: &[Entry], width: f64) -> usize {
    flow(entries, width).last().map_or(0, |(row, _)| row + 1)
}

/// The width of a sample with its text.
pub fn entry_width(label: &str) -> f64 {
    SAMPLE + SAMPLE_GAP + Type::PLAIN.width(label)
}

/// The row and the left edge of each entry.
fn flow(entries: &[Entry], width: f64) -> Vec<(usize, f64)> {
    let (mut row, mut x) = (0, 0.0);
    let mut places = Vec::new();
    for entry in entries {
        let wide = entry_width(&entry.label);
        if x > 0.0 && x + wide > width {
            (row, x) = (row + 1, 0.0);
        }
        places.push((row, x));
        x += wide + ENTRY_GAP;
    }
    places
}

/// The lines of a hatching inside a rectangle.
fn hatching([left, top, right, bottom]: [f64; 4], hatch: Hatch) -> Vec<[(f64, f64); 2]> {
    let multiples = |from: f64, to: f64, step: f64| {
        let (first, last) = ((from / step).ceil() as i64, (to / step).floor() as i64);
        (first..=last).map(move |i| i as f64 * step)
    };
    // Lines on which x + y, or x − y, is the same.
    let up = || {
        multiples(left + top, right + bottom, 3.2).map(|sum| {
            let (from, to) = (left.max(sum - bottom), right.min(sum - top));
            [(from, sum - from), (to, sum - to)]
        })
    };
    let down = || {
        multiples(left - bottom, right - top, 3.2).map(|difference| {
            let (from, to) = (left.max(difference + top), right.min(difference + bottom));
            [(from, from - difference), (to, to - difference)]
        })
    };
    match hatch {
        Hatch::Plain => Vec::new(),
        Hatch::Up => up().collect(),
        Hatch::Down => down().collect(),
        Hatch::Cross => up().chain(down()).collect(),
        Hatch::Level => {
            let lines = ((bottom - top) / 2.0).round().max(2.0);
            (1..lines as i32)
                .map(|i| top + (bottom - top) * f64::from(i) / lines)
                .map(|y| [(left, y), (right, y)])
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_broken_at_joints_or_lose_their_middle() {
        let kind = Type::PLAIN;
        assert_eq!(kind.fit("short", 100.0), "short");
        let long = "a_workload_with_a_very_long_name.default.rank1";
        let fitted = kind.fit(long, 60.0);
        assert!(kind.width(&fitted) <= 60.0 && fitted.contains(ELLIPSIS), "{fitted}");
        assert!(fitted.starts_with("a_work") && fitted.ends_with("rank1"), "{fitted}");
        let lines = kind.wrap(long, 90.0, 2);
        assert_eq!(lines.concat(), long);
        assert!(lines.len() == 2 && lines.iter().all(|line| kind.width(line) <= 90.0), "{lines:?}");
        assert_eq!(kind.wrap("jointless".repeat(9).as_str(), 60.0, 3).len(), 1);
        assert_eq!(kind.fit("anything", 0.0), "");
    }

    #[test]
    fn hatching_stays_inside() {
        for hatch in [Hatch::Plain, Hatch::Up, Hatch::Down, Hatch::Cross, Hatch::Level] {
            let lines = hatching([10.0, 20.0, 33.0, 26.0], hatch);
            assert_eq!(lines.is_empty(), hatch == Hatch::Plain);
            for (x, y) in lines.into_iter().flatten() {
                assert!((9.99..=33.01).contains(&x) && (19.99..=26.01).contains(&y), "{hatch:?}: {x} {y}");
            }
        }
    }

    #[test]
    fn panels_fill_their_rows() {
        let got = [0, 1, 2, 3, 4, 5, 7, 9].map(|panels| columns(panels, 4));
        assert_eq!(got, [1, 1, 2, 3, 4, 3, 4, 3]);
    }

    #[test]
    fn a_legend_takes_the_rows_that_it_needs() {
        let entry = |label: &str| Entry { sample: Sample::Wire(INK), label: label.to_string() };
        assert_eq!(legend_rows(&[], 100.0), 0);
        assert_eq!(legend_rows(&[entry("a"), entry("b")], 100.0), 1);
        assert_eq!(legend_rows(&vec![entry("caching"); 12], 100.0), 6);
    }
}
