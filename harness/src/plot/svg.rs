//! What plotters draws on: SVG on a grid of tenths of a point, fine enough that whole numbers look smooth.
//!
//! plotters has an SVG back end. This one is here for what that cannot do: dashed lines that are one line, text that
//! stands where it should in every viewer, and neighbouring shapes of one look in one path, which keeps files small.

use super::style::TEXT;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend};
use plotters_backend::{DrawingErrorKind, FontTransform};
use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::Write;
use std::rc::Rc;

/// Grid units in a point.
const GRID: f64 = 10.0;
/// The first of these that the reader's machine has. PDF and PNG always have the first.
const FAMILIES: &str = "Inter, Helvetica, Arial, sans-serif";
/// The font's ascent and descent, in ems. plotters measures text by their sum.
const LINE: f64 = (1984.0 + 494.0) / 2048.0;
/// The height of its capitals and digits.
const CAPITALS: f64 = 1490.0 / 2048.0;
/// How far descenders reach down.
const DESCENDERS: f64 = 0.22;

/// Grid units in points.
pub fn points(units: i32) -> f64 {
    f64::from(units) / GRID
}

/// Points in grid units.
pub fn grid(points: f64) -> i32 {
    (points * GRID).round() as i32
}

/// The size that plotters has to be asked for to get an em of so many points.
pub fn asked_size(em: f64) -> f64 {
    em * LINE * GRID
}

/// A drawing. Its clones draw on the same sheet.
#[derive(Clone, Debug)]
pub struct Svg {
    size: (u32, u32),
    ink: Rc<RefCell<Ink>>,
}

#[derive(Debug, Default)]
struct Ink {
    body: String,
    dash: String,
    /// The path that may go on: its attributes and its segments.
    open: Option<(String, String)>,
}

impl Svg {
    /// An empty sheet, in grid units.
    pub fn new(size: (u32, u32)) -> Svg {
        Svg { size, ink: Rc::default() }
    }

    /// The strokes and gaps of the lines that follow, in points; none is a solid line.
    pub fn dash(&self, lengths: &[f64]) {
        let lengths: Vec<String> = lengths.iter().map(|length| grid(*length).to_string()).collect();
        self.ink.borrow_mut().dash = lengths.join(" ");
    }

    /// The file.
    pub fn finish(&self, title: &str) -> String {
        let mut ink = self.ink.borrow_mut();
        ink.close();
        let (width, height) = self.size;
        let (points, tall) = (f64::from(width) / GRID, f64::from(height) / GRID);
        let mut file = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{points}pt\" height=\"{tall}pt\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"{FAMILIES}\" font-size=\"{}\" stroke-linejoin=\"round\">\n<title>",
            TEXT * GRID
        );
        escape(title, &mut file);
        file.push_str("</title>\n");
        file.push_str(&ink.body);
        file.push_str("</svg>\n");
        file
    }

    fn fill(&self, color: BackendColor, segments: &str) {
        self.ink.borrow_mut().add(paint("fill", color), segments);
    }

    fn stroke<S: BackendStyle>(&self, style: &S, segments: &str) {
        let mut ink = self.ink.borrow_mut();
        let mut look = format!("fill=\"none\" {}", paint("stroke", style.color()));
        // In grid units plotters' own default, 1, would be a hairline; no caller leaves it at that.
        let _ = write!(look, " stroke-width=\"{}\"", style.stroke_width());
        if !ink.dash.is_empty() {
            let _ = write!(look, " stroke-dasharray=\"{}\"", ink.dash);
        }
        ink.add(look, segments);
    }
}

impl Ink {
    fn add(&mut self, look: String, segments: &str) {
        match &mut self.open {
            Some((open, all)) if *open == look => all.push_str(segments),
            _ => {
                self.close();
                self.open = Some((look, segments.to_string()));
            }
        }
    }

    fn close(&mut self) {
        if let Some((look, segments)) = self.open.take() {
            let _ = writeln!(self.body, "<path {look} d=\"{segments}\"/>");
        }
    }
}

fn paint(what: &str, color: BackendColor) -> String {
    let (r, g, b) = color.rgb;
    let mut text = format!("{what}=\"#{r:02x}{g:02x}{b:02x}\"");
    if color.alpha < 1.0 {
        let _ = write!(text, " {what}-opacity=\"{:.2}\"", color.alpha);
    }
    text
}

fn escape(text: &str, into: &mut String) {
    for char in text.chars() {
        match char {
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '&' => into.push_str("&amp;"),
            // XML has no way to write these.
            char if char.is_control() || matches!(char, '\u{fffe}' | '\u{ffff}') => into.push('\u{fffd}'),
            char => into.push(char),
        }
    }
}

fn segments(points: impl IntoIterator<Item = BackendCoord>) -> String {
    let mut text = String::new();
    let mut last: Option<BackendCoord> = None;
    for (x, y) in points {
        let _ = match last {
            None => write!(text, "M{x} {y}"),
            Some((a, b)) if (a, b) == (x, y) => Ok(()),
            Some((a, _)) if a == x => write!(text, "V{y}"),
            Some((_, b)) if b == y => write!(text, "H{x}"),
            Some(_) => write!(text, "L{x} {y}"),
        };
        last = Some((x, y));
    }
    text
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl DrawingBackend for Svg {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        self.draw_rect((x, y), (x + 1, y + 1), &color, true)
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        (left, top): BackendCoord,
        (right, bottom): BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        // What is thinner than the grid is not to be seen.
        if left == right || top == bottom {
            return Ok(());
        }
        let segments = format!("M{left} {top}H{right}V{bottom}H{left}Z");
        match fill {
            true => self.fill(style.color(), &segments),
            false => self.stroke(style, &segments),
        }
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        let path: Vec<BackendCoord> = path.into_iter().collect();
        if style.color().alpha > 0.0 && path.windows(2).any(|pair| pair[0] != pair[1]) {
            self.stroke(style, &segments(path));
        }
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        self.fill(style.color(), &(segments(path) + "Z"));
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, (x, y): BackendCoord) -> Drawn {
        let em = style.size() / LINE;
        let anchor = style.anchor();
        // The distance from the point that plotters names to the baseline.
        let down = match anchor.v_pos {
            VPos::Top => CAPITALS * em,
            VPos::Center => CAPITALS * em / 2.0,
            VPos::Bottom => -DESCENDERS * em,
        };
        let down = down.round() as i32;
        let mut ink = self.ink.borrow_mut();
        ink.close();
        let body = &mut ink.body;
        let angle = match style.transform() {
            FontTransform::None => None,
            FontTransform::Rotate90 => Some(90),
            FontTransform::Rotate180 => Some(180),
            FontTransform::Rotate270 => Some(-90),
        };
        let _ = match angle {
            None => write!(body, "<text x=\"{x}\" y=\"{}\"", y + down),
            Some(angle) => write!(body, "<text transform=\"translate({x} {y}) rotate({angle})\" y=\"{down}\""),
        };
        match anchor.h_pos {
            HPos::Left => {}
            HPos::Center => body.push_str(" text-anchor=\"middle\""),
            HPos::Right => body.push_str(" text-anchor=\"end\""),
        }
        if (em - TEXT * GRID).abs() > 0.05 {
            let _ = write!(body, " font-size=\"{}\"", (em * 10.0).round() / 10.0);
        }
        let _ = write!(body, " {}>", paint("fill", style.color()));
        escape(text, body);
        body.push_str("</text>\n");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::style::INK;
    use super::*;
    use plotters::prelude::{Color, IntoDrawingArea, PathElement, Rectangle};

    #[test]
    fn shapes_of_one_look_are_one_path_and_order_is_kept() {
        let svg = Svg::new((100, 50));
        let area = svg.clone().into_drawing_area();
        for x in [0, 10] {
            area.draw(&Rectangle::new([(x, 0), (x + 5, 5)], INK.filled())).unwrap();
        }
        svg.dash(&[2.0, 1.0]);
        area.draw(&PathElement::new([(0, 0), (5, 0), (5, 0), (5, 7), (6, 8)], INK.filled().stroke_width(8))).unwrap();
        svg.dash(&[]);
        area.draw(&Rectangle::new([(20, 0), (20, 5)], INK.filled())).unwrap();
        area.draw(&PathElement::new([(9, 9), (9, 9)], INK.filled())).unwrap();
        area.draw(&Rectangle::new([(20, 0), (25, 5)], INK.filled())).unwrap();
        let expected = "\
<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"10pt\" height=\"5pt\" viewBox=\"0 0 100 50\" \
font-family=\"Inter, Helvetica, Arial, sans-serif\" font-size=\"70\" stroke-linejoin=\"round\">
<title>a &lt; b</title>
<path fill=\"#333333\" d=\"M0 0H5V5H0ZM10 0H15V5H10Z\"/>
<path fill=\"none\" stroke=\"#333333\" stroke-width=\"8\" stroke-dasharray=\"20 10\" d=\"M0 0H5V7L6 8\"/>
<path fill=\"#333333\" d=\"M20 0H25V5H20Z\"/>
</svg>
";
        assert_eq!(svg.finish("a < b"), expected);
    }

    #[test]
    fn text_is_safe_in_xml() {
        let mut text = String::new();
        escape("a<b>&c\u{1}\u{7f}é", &mut text);
        assert_eq!(text, "a&lt;b&gt;&amp;c\u{fffd}\u{fffd}é");
    }
}
