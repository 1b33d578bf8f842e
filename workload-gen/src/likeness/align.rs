//! Where two sequences part and where they meet again.
//!
//! The shortest list of differences takes time that grows with its length times that of the sequences, which for traces
//! that have little in common is hours. Here each difference is found by itself: from where the sequences part, the nearest
//! place at which both go on alike for a while.

use super::Pair;
use std::collections::HashMap;

/// How many elements have to be alike for a place to count, and how far it is looked for, in the order of the attempts. A
/// short run nearby is better than a long one far away.
const ATTEMPTS: [(usize, usize); 9] = [
    (8, 1 << 6),
    (3, 1 << 6),
    (2, 1 << 4),
    (8, 1 << 10),
    (4, 1 << 10),
    (8, 1 << 14),
    (8, 1 << 18),
    (8, 1 << 22),
    (8, usize::MAX),
];

/// A place at which the sequences part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Divergence {
    /// The first elements that are not alike.
    pub at: Pair<usize>,
    /// How many elements each has before they are alike again, or end.
    pub len: Pair<usize>,
}

/// How one sequence lies along another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alignment {
    /// Elements that are alike, in the order of both.
    pub alike: usize,
    /// The places between, in order.
    pub divergences: Vec<Divergence>,
}

/// See the module.
pub fn align(recording: &[u64], generated: &[u64]) -> Alignment {
    let mut alignment = Alignment { alike: 0, divergences: Vec::new() };
    let mut at = Pair { recording: 0, generated: 0 };
    loop {
        let (rest, other) = (&recording[at.recording..], &generated[at.generated..]);
        let alike = rest.iter().zip(other).take_while(|(a, b)| a == b).count();
        alignment.alike += alike;
        at = at.of(|at| at + alike);
        let (rest, other) = (&rest[alike..], &other[alike..]);
        if rest.is_empty() && other.is_empty() {
            return alignment;
        }
        let len = ATTEMPTS.into_iter().find_map(|(run, window)| meet(rest, other, run, window));
        let len = len.unwrap_or(Pair { recording: rest.len(), generated: other.len() });
        alignment.divergences.push(Divergence { at, len });
        at = Pair { recording: at.recording + len.recording, generated: at.generated + len.generated };
    }
}

/// The nearest place within `window` at which both have the same `run` elements, or from which both are the same to the
/// end.
fn meet(recording: &[u64], generated: &[u64], run: usize, window: usize) -> Option<Pair<usize>> {
    let mut first = HashMap::new();
    for (at, elements) in generated.windows(run).take(window).enumerate() {
        first.entry(elements).or_insert(at);
    }
    let alike = recording.iter().rev().zip(generated.iter().rev()).take(run).take_while(|(a, b)| a == b).count();
    let end = Pair { recording: recording.len() - alike, generated: generated.len() - alike };
    let mut nearest = (alike > 0 && end.recording.max(end.generated) < window).then_some(end);
    for (at, elements) in recording.windows(run).take(window).enumerate() {
        let distance = nearest.map_or(usize::MAX, |known| known.recording + known.generated);
        if at >= distance {
            break;
        }
        if let Some(&other) = first.get(elements)
            && at + other < distance
        {
            nearest = Some(Pair { recording: at, generated: other });
        }
    }
    nearest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn divergences(recording: &[u64], generated: &[u64]) -> Vec<(usize, usize, usize, usize)> {
        let all = align(recording, generated).divergences.into_iter();
        all.map(|one| (one.at.recording, one.len.recording, one.at.generated, one.len.generated)).collect()
    }

    #[test]
    fn each_difference_is_found_by_itself() {
        let one: Vec<u64> = (0..1000).collect();
        assert_eq!(divergences(&one, &one), []);
        let mut other = one.clone();
        other.splice(500..500, [7, 7]);
        other[100] = 5555;
        other.drain(10..13);
        assert_eq!(divergences(&one, &other), [(10, 3, 10, 0), (100, 1, 97, 1), (500, 0, 497, 2)]);
        assert_eq!(align(&one, &other).alike, 996);
    }

    #[test]
    fn a_long_part_of_its_own_is_passed_over() {
        let one: Vec<u64> = (0..100).collect();
        let other: Vec<u64> = (0..50).chain(1000..40_000).chain(50..100).collect();
        assert_eq!(divergences(&one, &other), [(50, 0, 50, 39_000)]);
    }

    #[test]
    fn ends_differ_too() {
        assert_eq!(divergences(&[1, 2, 3], &[1, 2]), [(2, 1, 2, 0)]);
        assert_eq!(divergences(&[], &[4, 5]), [(0, 0, 0, 2)]);
        assert_eq!(divergences(&[1, 2], &[3, 4, 5]), [(0, 2, 0, 3)]);
        assert_eq!(divergences(&[1, 2, 9], &[3, 9]), [(0, 2, 0, 1)]);
    }

    proptest! {
        /// What lies between the divergences is alike, and nothing is left out.
        #[test]
        fn an_alignment_is_one(
            recording in prop::collection::vec(0..6u64, 0..300),
            generated in prop::collection::vec(0..6u64, 0..300),
        ) {
            let alignment = align(&recording, &generated);
            let (mut a, mut b, mut alike) = (0, 0, 0);
            let end = Divergence { at: Pair { recording: recording.len(), generated: generated.len() }, len: Pair { recording: 0, generated: 0 } };
            for Divergence { at, len } in alignment.divergences.into_iter().chain([end]) {
                prop_assert_eq!(&recording[a..at.recording], &generated[b..at.generated]);
                alike += at.recording - a;
                (a, b) = (at.recording + len.recording, at.generated + len.generated);
            }
            prop_assert_eq!((a, b, alike), (recording.len(), generated.len(), alignment.alike));
        }
    }
}
