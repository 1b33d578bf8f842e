//! Published lengths: the bundled tables, and distributions that have their quantiles and their mean.
//!
//! A table knows the mean, three quantiles (p50, p90, p99) and the maximum of a data set; the minimum is taken as 1 token.
//! They cut the lengths into four ranges with 50, 40, 9 and 1 % of the sequences. Within each range the density is a power
//! law, x^(k − 1) with **one exponent k for all four**, which is solved for so that the mean is the published one: k = 0 is
//! uniform in the logarithm, k = 1 uniform, and the mean grows with k, so there is just one. Quantiles and mean
//! are then exact (up to rounding to whole tokens), and between them nothing is assumed but smoothness.
//!
//! What is **not** published is the shape between the quantiles, such as peaks, and how the lengths of a request's context and
//! output depend on each other. ServeGen's tables have no maximum: they end at p99²/p90, which is the 99.9th percentile if
//! the tail goes on as it came from p90 to p99.

use super::Rng;
use std::sync::LazyLock;

/// What is published of a data set's lengths, in tokens.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// How it is asked for.
    pub name: String,
    /// What it is.
    pub about: String,
    /// How many sequences it summarises, where known.
    pub requests: Option<u64>,
    /// The mean.
    pub mean: f64,
    /// Half of the sequences are at most this long.
    pub p50: u64,
    /// Nine of ten.
    pub p90: u64,
    /// 99 of a hundred.
    pub p99: u64,
    /// The longest, where known.
    pub max: Option<u64>,
}

/// The bundled tables. `data/lengths/README.md` names their sources and licences.
pub fn tables() -> &'static [Table] {
    static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
        let rows = include_str!("../../data/lengths/tables.csv").lines().skip(1);
        rows.map(|row| Table::parse(row).expect("a part of the program that a test reads")).collect()
    });
    &TABLES
}

impl Table {
    /// A row of the file.
    fn parse(row: &str) -> Option<Table> {
        let cells: Vec<&str> = row.split(',').collect();
        let [name, about, requests, mean, p50, p90, p99, max] = cells[..] else { return None };
        let known = |cell: &str| if cell.is_empty() { Some(None) } else { cell.parse().ok().map(Some) };
        Some(Table {
            name: name.to_string(),
            about: about.to_string(),
            requests: known(requests)?,
            mean: mean.parse().ok()?,
            p50: p50.parse().ok()?,
            p90: p90.parse().ok()?,
            p99: p99.parse().ok()?,
            max: known(max)?,
        })
    }

    /// The longest length that is drawn.
    pub fn longest(&self) -> u64 {
        self.max.unwrap_or(self.p99 * self.p99 / self.p90)
    }
}

/// The shares of the sequences up to the ends of the four ranges.
const SHARES: [f64; 5] = [0.0, 0.5, 0.9, 0.99, 1.0];

/// The distribution of a table.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Curve {
    /// Logarithms of the ends of the ranges.
    ends: [f64; 5],
    /// The exponent that all ranges have.
    exponent: f64,
    longest: u64,
}

impl Curve {
    pub fn new(table: &Table) -> Curve {
        let ends = [1, table.p50, table.p90, table.p99, table.longest()].map(|end| libm::log(end as f64));
        // Far beyond what any data has: at 50 nearly all of a range lies in its last 2 %.
        let (mut low, mut high) = (-50.0, 50.0);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if mean(&ends, middle) < table.mean {
                low = middle;
            } else {
                high = middle;
            }
        }
        Curve { ends, exponent: (low + high) / 2.0, longest: table.longest() }
    }

    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let share = rng.unit();
        let range = SHARES[1..4].iter().filter(|end| share >= **end).count();
        let within = (share - SHARES[range]) / (SHARES[range + 1] - SHARES[range]);
        let (from, width) = (self.ends[range], self.ends[range + 1] - self.ends[range]);
        let grown = libm::expm1(self.exponent * width);
        let way = if grown == 0.0 { within * width } else { libm::log1p(within * grown) / self.exponent };
        (libm::exp(from + way).round() as u64).clamp(1, self.longest)
    }
}

/// The mean of the distribution with these ends and this exponent.
fn mean(ends: &[f64; 5], exponent: f64) -> f64 {
    // The mean of e^(ky) over a range of y that starts at 0; a range's mean is the quotient of two of them.
    let level = |k: f64, width: f64| if k * width == 0.0 { 1.0 } else { libm::expm1(k * width) / (k * width) };
    let range = |range: usize| {
        let width = ends[range + 1] - ends[range];
        let mean = libm::exp(ends[range]) * level(exponent + 1.0, width) / level(exponent, width);
        (SHARES[range + 1] - SHARES[range]) * mean
    };
    (0..4).map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(value: f64, published: f64, tolerance: f64) -> bool {
        (value / published - 1.0).abs() <= tolerance
    }

    #[test]
    fn samples_have_the_published_numbers() {
        for table in tables() {
            let (curve, mut rng) = (Curve::new(table), Rng::new(1));
            let mut lengths: Vec<u64> = (0..200_000).map(|_| curve.draw(&mut rng)).collect();
            lengths.sort_unstable();
            let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
            let (name, longest) = (&table.name, *lengths.last().unwrap());
            assert!(within(mean, table.mean, 0.02), "{name}: mean {mean}");
            for (share, published) in [(0.5, table.p50), (0.9, table.p90), (0.99, table.p99)] {
                // The quantile's definition, and what 200,000 draws leave to chance.
                let upto = |length| lengths.partition_point(|drawn| *drawn <= length) as f64 / lengths.len() as f64;
                let (less, most, chance) =
                    (upto(published - 1), upto(published), f64::sqrt(share * (1.0 - share) / 12_500.0));
                assert!(less <= share + chance && share <= most + chance, "{name}: p{share} {less} {most}");
            }
            assert!(
                longest <= table.longest() && within(longest as f64, table.longest() as f64, 0.01),
                "{name}: {longest}"
            );
            assert!(lengths[0] >= 1, "{name}");
        }
    }

    /// The mean is met by an exponent that is no extreme: none of the tables contradicts the shape.
    #[test]
    fn exponents_are_moderate() {
        for table in tables() {
            let curve = Curve::new(table);
            assert!(curve.exponent.abs() < 3.0, "{}: {}", table.name, curve.exponent);
            assert!(within(mean(&curve.ends, curve.exponent), table.mean, 1e-9), "{}", table.name);
        }
    }

    #[test]
    fn the_file_is_read_whole() {
        assert_eq!(tables().len(), 7);
        let table = tables().iter().find(|table| table.name == "azure-chat").unwrap();
        assert_eq!((table.requests, table.mean, table.p50), (Some(19_366), 1154.7, 1020));
        assert_eq!((table.p90, table.p99, table.max), (2735, 4142, Some(14_050)));
        let table = tables().iter().find(|table| table.name == "servegen-mid").unwrap();
        assert_eq!((table.requests, table.max, table.longest()), (None, None, 12_438));
        assert_eq!(Table::parse("name,about,,1,2,3,4"), None);
        assert_eq!(Table::parse("name,about,x,1,2,3,4,"), None);
    }
}
