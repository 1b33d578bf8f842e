//! Straight lines through means.
//!
//! Sizes span seven decades and times four, so distances are relative: a line that is off by a tenth is equally wrong
//! at 2 MiB and at 8 GiB. Their sum is made as small as it can be, not that of their squares: one size at which the
//! driver does something else then moves the line little.

use allocator_core::{Cost, Residual};

/// A mean: a call about `bytes` bytes takes `ns`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Point {
    /// Bytes of the call.
    pub(super) bytes: u64,
    /// Its nanoseconds, more than 0.
    pub(super) ns: f64,
}

impl Point {
    fn mib(self) -> f64 {
        self.bytes as f64 / (1 << 20) as f64
    }

    /// How far a line is from the point.
    fn distance(self, base: f64, slope: f64) -> f64 {
        (base + slope * self.mib() - self.ns).abs() / self.ns
    }
}

/// The line with the smallest sum of relative distances, among those that neither begin below 0 nor fall. Its figures
/// are whole nanoseconds. With how far it is off; `None` without points.
pub(super) fn line(points: &[Point]) -> Option<(Cost, Residual)> {
    // A best line goes through two points, or through one if it is flat or begins at 0.
    let mut slopes = vec![0.0];
    for (at, a) in points.iter().enumerate() {
        slopes.push(a.ns / a.mib());
        slopes.extend(points[..at].iter().map(|b| (a.ns - b.ns) / (a.mib() - b.mib())));
    }
    slopes.retain(|slope| slope.is_finite() && *slope >= 0.0);
    let whole = slopes.into_iter().flat_map(|slope| [slope.floor(), slope.ceil()]);
    let lines = whole
        .flat_map(|slope| points.iter().map(move |point| ((point.ns - slope * point.mib()).round().max(0.0), slope)));
    let sum = |(base, slope): (f64, f64)| points.iter().map(|point| point.distance(base, slope)).sum::<f64>();
    let (base, slope) = lines.min_by(|a, b| sum(*a).total_cmp(&sum(*b)))?;
    let cost = Cost { base_ns: base as u64, ns_per_mib: slope as u64 };
    Some((cost, residual(cost, points)?))
}

fn residual(cost: Cost, points: &[Point]) -> Option<Residual> {
    let mut distances: Vec<(f64, u64)> =
        points.iter().map(|point| (point.distance(cost.base_ns as f64, cost.ns_per_mib as f64), point.bytes)).collect();
    distances.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (worst, worst_bytes) = *distances.last()?;
    let typical = distances[(distances.len() - 1) / 2].0;
    let percent = |distance: f64| (distance * 1000.0).round() / 10.0;
    Some(Residual {
        points: points.len() as u64,
        typical_percent: percent(typical),
        worst_percent: percent(worst),
        worst_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn points(of: impl Fn(f64) -> f64) -> Vec<Point> {
        [512, MIB, 2 * MIB, 20 * MIB, 64 * MIB, 512 * MIB, 1 << 30, 4 << 30, 8 << 30]
            .map(|bytes| Point { bytes, ns: of(bytes as f64 / MIB as f64) })
            .to_vec()
    }

    fn cost(points: &[Point]) -> Cost {
        line(points).unwrap().0
    }

    #[test]
    fn a_line_is_found_again() {
        assert_eq!(cost(&points(|mib| 36_000.0 + 35.0 * mib)), Cost { base_ns: 36_000, ns_per_mib: 35 });
        assert_eq!(cost(&points(|_| 172.0)), Cost::flat(172));
        assert_eq!(cost(&[Point { bytes: 0, ns: 210.0 }]), Cost::flat(210));
        assert_eq!(line(&[]), None);
    }

    #[test]
    fn one_size_that_is_off_moves_nothing() {
        for off in 0..9 {
            let mut points = points(|mib| 30_000.0 + 375.0 * mib);
            points[off].ns *= 10.0;
            let (cost, residual) = line(&points).unwrap();
            assert_eq!(cost, Cost { base_ns: 30_000, ns_per_mib: 375 }, "{off}");
            assert_eq!((residual.typical_percent, residual.worst_percent), (0.0, 90.0));
            assert_eq!(residual.worst_bytes, points[off].bytes);
        }
    }

    /// No other line of whole nanoseconds in the neighbourhood is nearer, by more than their rounding.
    #[test]
    fn no_neighbour_is_better() {
        let points = points(|mib| 8_000.0 + 17.0 * mib + 900.0 * (mib * 7.0).sin());
        let best = cost(&points);
        let sum = |base: u64, slope: u64| -> f64 { points.iter().map(|p| p.distance(base as f64, slope as f64)).sum() };
        for base in best.base_ns - 200..best.base_ns + 200 {
            for slope in best.ns_per_mib - 5..best.ns_per_mib + 5 {
                assert!(sum(best.base_ns, best.ns_per_mib) <= sum(base, slope) + 1e-3, "{base} {slope}");
            }
        }
    }

    #[test]
    fn lines_neither_begin_below_zero_nor_fall() {
        let rising = cost(&points(|mib| 1.0 + mib * mib));
        let falling = cost(&points(|mib| 10_000.0 - mib));
        assert_eq!(falling.ns_per_mib, 0);
        assert!(rising.base_ns < 10_000 && falling.base_ns > 0, "{rising:?} {falling:?}");
    }
}
