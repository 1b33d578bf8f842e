//! The distance of two distributions after Kolmogorov and Smirnov: the most by which the share of one that is no greater
//! than some value exceeds that of the other.

use super::Pair;

/// A value that counts so many times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weighted {
    pub(super) value: u64,
    pub(super) weight: u64,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Distance {
    /// The distance, from 0 to 1. Of nothing and something it is 1.
    pub distance: f64,
    /// The least value at which it is that great.
    pub at: u64,
    /// The share of each that is no greater than that.
    pub below: Pair<f64>,
}

impl Distance {
    pub(super) fn new(mut values: Pair<Vec<Weighted>>) -> Distance {
        values.recording.sort_unstable_by_key(|one| one.value);
        values.generated.sort_unstable_by_key(|one| one.value);
        let total = |values: &[Weighted]| values.iter().map(|one| u128::from(one.weight)).sum::<u128>();
        let totals = Pair { recording: total(&values.recording), generated: total(&values.generated) };
        let share = |below: u128, total: u128| if total == 0 { 0.0 } else { below as f64 / total as f64 };
        let none = Pair { recording: 0.0, generated: 0.0 };
        let mut greatest = Distance { distance: 0.0, at: 0, below: none };
        let mut below = Pair { recording: 0u128, generated: 0u128 };
        let (mut recording, mut generated) = (values.recording.iter().peekable(), values.generated.iter().peekable());
        while let Some(at) = [recording.peek(), generated.peek()].into_iter().flatten().map(|one| one.value).min() {
            while let Some(one) = recording.next_if(|one| one.value == at) {
                below.recording += u128::from(one.weight);
            }
            while let Some(one) = generated.next_if(|one| one.value == at) {
                below.generated += u128::from(one.weight);
            }
            let below = Pair {
                recording: share(below.recording, totals.recording),
                generated: share(below.generated, totals.generated),
            };
            let distance = (below.recording - below.generated).abs();
            if distance > greatest.distance {
                greatest = Distance { distance, at, below };
            }
        }
        greatest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distance(recording: &[(u64, u64)], generated: &[(u64, u64)]) -> Distance {
        let weighted =
            |values: &[(u64, u64)]| values.iter().map(|&(value, weight)| Weighted { value, weight }).collect();
        Distance::new(Pair { recording: weighted(recording), generated: weighted(generated) })
    }

    #[test]
    fn the_greatest_gap_counts_weights_and_not_values() {
        let same = distance(&[(1, 1), (2, 1)], &[(2, 5), (1, 5)]);
        assert_eq!(same.distance, 0.0);
        let apart = distance(&[(1, 3), (2, 1)], &[(1, 1), (3, 3)]);
        assert_eq!((apart.distance, apart.at), (0.75, 2));
        assert_eq!(apart.below, Pair { recording: 1.0, generated: 0.25 });
        assert_eq!(distance(&[(5, 1)], &[(6, 1)]).distance, 1.0);
        assert_eq!(distance(&[(0, u64::MAX), (0, u64::MAX)], &[(0, u64::MAX)]).distance, 0.0);
    }

    #[test]
    fn nothing_is_far_from_something() {
        assert_eq!(distance(&[], &[]).distance, 0.0);
        assert_eq!(distance(&[], &[(7, 1)]).distance, 1.0);
        assert_eq!(distance(&[(7, 0)], &[(7, 1)]).distance, 1.0);
    }
}
