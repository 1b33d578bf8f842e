//! How things look: sizes, inks, and what tells one strategy from another, on paper without colours too.

use plotters::style::RGBColor;

/// Text, in points, as high as print needs it.
pub const TEXT: f64 = 7.0;
/// Text of notes and of narrow cells: the least that print carries.
pub const SMALL: f64 = 6.0;
/// Titles. There is one font, and they are larger and darker instead of bold.
pub const TITLE: f64 = 8.0;
/// The height of a page, in points: figures are not to be higher if that can be helped.
pub const PAGE: f64 = 620.0;
/// Lines of text, from one to the next.
pub const LEADING: f64 = 9.0;
/// Lines of data.
pub const LINE: f64 = 0.9;
/// The same among many.
pub const FINE: f64 = 0.6;
/// Axes.
pub const AXIS: f64 = 0.5;
/// Thin lines of data.
pub const WIRE: f64 = 0.4;
/// Titles.
pub const BLACK: RGBColor = RGBColor(0, 0, 0);
/// Text and axes.
pub const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
/// What is to be seen after the rest.
pub const FAINT: RGBColor = RGBColor(0x66, 0x66, 0x66);
/// Lines of a grid.
pub const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Under everything.
pub const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
/// The load, between its lowest and highest value.
pub const LOAD: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
/// The load below its lowest value.
pub const LOAD_FLOOR: RGBColor = RGBColor(0xcc, 0xcc, 0xcc);

/// More strategies than this are too many to be told apart by colour and hatching at a glance.
pub const MANY: usize = 8;

/// Lines across an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hatch {
    /// None.
    Plain,
    /// Rising lines.
    Up,
    /// Falling lines.
    Down,
    /// Both.
    Cross,
    /// Level lines.
    Level,
}

/// What tells a strategy from the others. No two of the first 35 have the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Look {
    /// The colour: Okabe and Ito's, which most colour-blind people can tell apart.
    pub color: RGBColor,
    /// Lengths of strokes and gaps of lines, in points; a line without gaps has none.
    pub dash: &'static [f64],
    /// Lines across areas.
    pub hatch: Hatch,
}

/// Neighbours differ in lightness.
const COLORS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x44, 0x44, 0x44),
];

const DASHES: [&[f64]; 5] = [&[], &[5.0, 1.6], &[1.6, 1.2], &[5.0, 1.2, 1.0, 1.2], &[2.8, 1.4]];

const HATCHES: [Hatch; 5] = [Hatch::Plain, Hatch::Up, Hatch::Level, Hatch::Cross, Hatch::Down];

impl Look {
    /// The look of the `nth` strategy.
    pub const fn nth(nth: usize) -> Look {
        let (color, dash, hatch) = (COLORS[nth % 7], DASHES[nth % 5], HATCHES[nth % 5]);
        Look { color, dash, hatch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_strategies_look_the_same() {
        let looks: Vec<Look> = (0..35).map(Look::nth).collect();
        for (i, look) in looks.iter().enumerate() {
            assert!(!looks[..i].contains(look), "{i}: {look:?}");
        }
    }

    #[test]
    fn neighbours_can_be_told_apart_without_colour() {
        for i in 0..34 {
            let (a, b) = (Look::nth(i), Look::nth(i + 1));
            assert!(a.dash != b.dash && a.hatch != b.hatch, "{i}");
        }
    }
}
