//! Figures of runs, for papers and for eyes: `harness plot`.
//!
//! A figure is drawn from what the files of a run hold and from nothing else, so it can be drawn again, elsewhere, by
//! others. plotters lays it out on a fine grid and draws it through a back end of ours into SVG; PDF and PNG are made of
//! that SVG. The only font is the one in the program. The same files give the same bytes.
//!
//! Without the feature `figures` the functions are there and say what is missing, so that callers need not ask.

use crate::filter::Filter;
use clap::ValueEnum;
use std::path::PathBuf;

#[cfg(feature = "figures")]
mod axis;
#[cfg(feature = "figures")]
mod data;
#[cfg(not(feature = "figures"))]
mod disabled;
#[cfg(feature = "figures")]
mod enabled;
#[cfg(feature = "figures")]
mod export;
#[cfg(feature = "figures")]
mod map;
#[cfg(feature = "figures")]
mod matrix;
#[cfg(feature = "figures")]
mod outlier;
#[cfg(feature = "figures")]
mod overhead;
#[cfg(feature = "figures")]
mod page;
#[cfg(feature = "figures")]
mod select;
#[cfg(feature = "figures")]
mod shade;
#[cfg(feature = "figures")]
mod style;
#[cfg(feature = "figures")]
mod svg;
#[cfg(feature = "figures")]
mod timeline;
#[cfg(feature = "figures")]
mod value;

#[cfg(not(feature = "figures"))]
pub use disabled::{draw, draw_after_run};
#[cfg(feature = "figures")]
pub use enabled::{draw, draw_after_run};

/// What can be drawn.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Figure {
    /// Reserved memory and load over the events
    Timeline,
    /// Peak reserved memory over the load bound
    Overhead,
    /// What lies where at the reserved peak
    Map,
}

impl Figure {
    /// All, in the order in which they are drawn.
    pub const ALL: [Figure; 3] = [Figure::Timeline, Figure::Overhead, Figure::Map];

    /// The name on the command line and of the files.
    pub const fn name(self) -> &'static str {
        match self {
            Figure::Timeline => "timeline",
            Figure::Overhead => "overhead",
            Figure::Map => "map",
        }
    }
}

/// A kind of file.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Format {
    /// For browsers, and to edit
    Svg,
    /// For papers
    Pdf,
    /// For slides and pages, 300 dots per inch
    Png,
}

impl Format {
    /// All.
    pub const ALL: [Format; 3] = [Format::Svg, Format::Pdf, Format::Png];

    /// The ending of the files.
    pub const fn ending(self) -> &'static str {
        match self {
            Format::Svg => "svg",
            Format::Pdf => "pdf",
            Format::Png => "png",
        }
    }
}

/// How wide a figure is printed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Width {
    /// One column of a two-column page: 3.3 inches
    Column,
    /// The text of a page: 7 inches
    Text,
}

impl Width {
    /// Both.
    pub const ALL: [Width; 2] = [Width::Column, Width::Text];

    /// The name on the command line and of the files.
    pub const fn name(self) -> &'static str {
        match self {
            Width::Column => "column",
            Width::Text => "text",
        }
    }
}

/// What to draw, of what, how, and where to.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The figures; empty is all that the files allow.
    pub figures: Vec<Figure>,
    /// Which strategies.
    pub strategies: Filter,
    /// Which workloads.
    pub workloads: Filter,
    /// The kinds of files; empty is all.
    pub formats: Vec<Format>,
    /// The widths; empty is all.
    pub widths: Vec<Width>,
    /// The folder of the figures; by default `figures` in the folder of the run.
    pub out: Option<PathBuf>,
}

/// What was drawn.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    /// The folder that the figures are in.
    pub folder: PathBuf,
    /// The files, by their names in it.
    pub files: Vec<String>,
    /// Why a figure is missing that nobody asked for by name.
    pub notes: Vec<String>,
}
