//! A distribution of lengths: what it is, how it is written, and between which lengths it stays.

use super::call::{Form, joined};
use super::tables::{Table, tables};
use super::{Rng, Sampler, parse};
use std::fmt;

/// The longest length in tokens; the shortest is 1.
pub const LONGEST: u64 = 1_000_000_000;

/// How lengths are written, apart from the names of [`tables`].
pub(super) const FORMS: &[Form] = &[
    Form { written: "N", about: "every length is N tokens" },
    Form { written: "uniform(LOW,HIGH)", about: "any length from LOW to HIGH tokens, all alike" },
    Form {
        written: "lognormal(MU,SIGMA)",
        about: "e to a normal power with mean MU and standard deviation SIGMA, so the median is e^MU tokens; with \
            lognormal(MU,SIGMA,LOW,HIGH) cut to LOW to HIGH tokens",
    },
    Form { written: "zipf(S,MAX)", about: "from 1 to MAX tokens, length k with a weight of 1/k^S" },
    Form { written: "bimodal(SHORT,LONG,P)", about: "LONG tokens with the probability P, otherwise SHORT tokens" },
    Form {
        written: "mix(W*LENGTHS,...)",
        about: "of several distributions, each with the weight W: mix(0.7*lognormal(5,1),0.3*uniform(1000,2000))",
    },
    Form { written: "list(N,...)", about: "these lengths in tokens in this order, then again from the start" },
    Form {
        written: "clamp(LENGTHS,LOW,HIGH)",
        about: "what is shorter than LOW or longer than HIGH tokens becomes so long, as by truncation",
    },
    Form { written: "scale(LENGTHS,FACTOR)", about: "FACTOR times as long, rounded" },
];

/// A distribution of the lengths of sequences in tokens, from 1 to [`LONGEST`].
///
/// [`parse`](Self::parse) reads what `Display` writes.
#[derive(Clone, PartialEq, Debug)]
pub struct Lengths(pub(super) Shape);

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Shape {
    Fixed(u64),
    Uniform { low: u64, high: u64 },
    LogNormal { mu: f64, sigma: f64 },
    Zipf { s: f64, max: u64 },
    Bimodal { short: u64, long: u64, p: f64 },
    Mix(Vec<(f64, Shape)>),
    List(Vec<u64>),
    Table(&'static Table),
    Clamp { of: Box<Shape>, low: u64, high: u64 },
    Scale { of: Box<Shape>, factor: f64 },
}

impl Lengths {
    /// Reads a distribution. The error says what is wrong with which number, what it may be, and how it is written right.
    pub fn parse(text: &str) -> Result<Lengths, String> {
        parse::shape(text, 0).map(Lengths)
    }

    /// All ways to write a distribution, for help. The names of [`tables`] are others.
    pub fn forms() -> &'static [Form] {
        FORMS
    }

    /// The shortest and the longest length it can give.
    pub fn range(&self) -> (u64, u64) {
        self.0.range()
    }

    /// Draws from it. Only a list has an order, and it starts anew with each sampler.
    pub fn sampler(&self, rng: Rng) -> Sampler {
        Sampler::new(&self.0, rng)
    }
}

impl Shape {
    fn range(&self) -> (u64, u64) {
        match self {
            Shape::Fixed(length) => (*length, *length),
            Shape::Uniform { low, high } => (*low, *high),
            Shape::LogNormal { .. } => (1, LONGEST),
            Shape::Zipf { max, .. } => (1, *max),
            Shape::Bimodal { short, long, .. } => (*short.min(long), *short.max(long)),
            Shape::Mix(parts) => (parts.iter().map(|(_, part)| part.range()))
                .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
                .unwrap_or((1, LONGEST)),
            Shape::List(lengths) => {
                (lengths.iter().copied().min().unwrap_or(1), lengths.iter().copied().max().unwrap_or(LONGEST))
            }
            Shape::Table(table) => (1, table.longest()),
            Shape::Clamp { of, low, high } => {
                let (from, to) = of.range();
                (from.clamp(*low, *high), to.clamp(*low, *high))
            }
            Shape::Scale { of, factor } => {
                let (from, to) = of.range();
                (scaled(from, *factor), scaled(to, *factor))
            }
        }
    }
}

/// A length times a factor.
pub(super) fn scaled(length: u64, factor: f64) -> u64 {
    whole(length as f64 * factor)
}

/// The length nearest to a real, at least 1 and at most [`LONGEST`].
pub(super) fn whole(length: f64) -> u64 {
    (length.round() as u64).clamp(1, LONGEST)
}

/// The table of a name.
pub(super) fn table(name: &str) -> Option<&'static Table> {
    tables().iter().find(|table| table.name == name)
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Fixed(length) => write!(f, "{length}"),
            Shape::Uniform { low, high } => write!(f, "uniform({low},{high})"),
            Shape::LogNormal { mu, sigma } => write!(f, "lognormal({mu},{sigma})"),
            Shape::Zipf { s, max } => write!(f, "zipf({s},{max})"),
            Shape::Bimodal { short, long, p } => write!(f, "bimodal({short},{long},{p})"),
            Shape::Mix(parts) => {
                let parts: Vec<String> = parts.iter().map(|(weight, part)| format!("{weight}*{part}")).collect();
                write!(f, "mix({})", parts.join(","))
            }
            Shape::List(lengths) => write!(f, "list({})", joined(lengths)),
            Shape::Table(table) => f.write_str(&table.name),
            Shape::Clamp { of, low, high } => write!(f, "clamp({of},{low},{high})"),
            Shape::Scale { of, factor } => write!(f, "scale({of},{factor})"),
        }
    }
}
