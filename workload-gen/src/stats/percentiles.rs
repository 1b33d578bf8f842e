//! Values at which so many per cent are reached.

use serde::Serialize;

/// The smallest values that so many per cent do not exceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Percentiles {
    /// The least.
    pub min: u64,
    /// The median.
    pub p50: u64,
    /// 90 per cent.
    pub p90: u64,
    /// 99 per cent.
    pub p99: u64,
    /// The greatest.
    pub max: u64,
}

impl Percentiles {
    /// Of values that count once each.
    pub(super) fn new(values: impl IntoIterator<Item = u64>) -> Percentiles {
        Percentiles::weighted(values.into_iter().map(|value| (value, 1)))
    }

    /// Of values that count so many times each.
    pub(super) fn weighted(values: impl IntoIterator<Item = (u64, u64)>) -> Percentiles {
        let mut values: Vec<(u64, u64)> = values.into_iter().collect();
        values.sort_unstable();
        let (Some(&(min, _)), Some(&(max, _))) = (values.first(), values.last()) else {
            return Percentiles::default();
        };
        let total: u128 = values.iter().map(|&(_, weight)| u128::from(weight)).sum();
        let mut below = 0;
        let mut sorted = values.iter().copied().peekable();
        let mut at = |percent: u128| {
            let wanted = (total * percent).div_ceil(100);
            while let Some(&(value, weight)) = sorted.peek() {
                if below + u128::from(weight) >= wanted {
                    return value;
                }
                below += u128::from(weight);
                sorted.next();
            }
            max
        };
        Percentiles { min, p50: at(50), p90: at(90), p99: at(99), max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_there() {
        assert_eq!(Percentiles::new([]), Percentiles::default());
        assert_eq!(Percentiles::new([7]), Percentiles { min: 7, p50: 7, p90: 7, p99: 7, max: 7 });
        let hundred = Percentiles::new((1..=100).rev());
        assert_eq!(hundred, Percentiles { min: 1, p50: 50, p90: 90, p99: 99, max: 100 });
        let heavy = Percentiles::weighted([(1, 50), (2, 39), (3, 11)]);
        assert_eq!(heavy, Percentiles { min: 1, p50: 1, p90: 3, p99: 3, max: 3 });
        let huge = Percentiles::weighted([(1, u64::MAX), (2, u64::MAX), (3, u64::MAX)]);
        assert_eq!((huge.p50, huge.p90), (2, 3));
    }
}
