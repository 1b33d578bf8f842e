//! The one source of chance of generated workloads.
//!
//! The algorithm is part of every workload's version: the same seed has to give the same bytes on every machine and in
//! every release, so all of it is fixed here and nothing is left to a library that may find a better way.
//!
//! * **Generator**: PCG XSL 128/64 (MCG), O'Neill's `pcg64_fast`. Its state is two outputs of SplitMix64 started at the
//!   key, the first as the high half, with the lowest bit set.
//! * **Streams**: the key of a generator is its seed; that of its fork `s` is output `s` (from 0) of SplitMix64 started at
//!   `mix(key)`, where `mix` is SplitMix64's finaliser.
//! * **Whole numbers** below `n`: the high half of the 128-bit product of an output and `n`, where the low half rejects
//!   what would bias it (Lemire 2019).
//! * **Reals**: the upper 53 bits of an output, times 2⁻⁵³.
//! * **Normal**: Box and Muller's cosine, from two reals; nothing is kept for the next call.
//! * **Exponential**: −ln(1 − u), from one real.
//!
//! Logarithm and cosine are those of the `libm` crate: the standard library's are the system's and differ in their last
//! bits. (The square root is exact by IEEE 754 wherever it comes from.)

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng as _;

/// The step of SplitMix64: 2⁶⁴ divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded generator of random numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rng {
    key: u64,
    pcg: Pcg64Mcg,
}

impl Rng {
    /// The generator of a seed. Seeds that differ in one bit give unrelated numbers.
    pub fn new(seed: u64) -> Rng {
        let [high, low] = [1, 2].map(|step| u128::from(mix(seed.wrapping_add(GOLDEN.wrapping_mul(step)))));
        Rng { key: seed, pcg: Pcg64Mcg::new(high << 64 | low) }
    }

    /// A generator of its own for one purpose. It depends on the seed and on `stream` alone, not on what was drawn
    /// before: a job that draws one number more for its lengths keeps its dropout, routing and arrivals.
    pub fn fork(&self, stream: u64) -> Rng {
        let step = GOLDEN.wrapping_mul(stream.wrapping_add(1));
        Rng::new(mix(mix(self.key).wrapping_add(step)))
    }

    /// Any 64 bits.
    pub fn u64(&mut self) -> u64 {
        self.pcg.next_u64()
    }

    /// A whole number from 0 to `n` − 1, all alike. 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        let mut product = u128::from(self.u64()) * u128::from(n);
        if (product as u64) < n {
            let biased = n.wrapping_neg() % n;
            while (product as u64) < biased {
                product = u128::from(self.u64()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// A whole number from `low` to `high`, both included, all alike. `low` if `high` is less.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        match high.saturating_sub(low).checked_add(1) {
            Some(count) => low + self.below(count),
            None => self.u64(),
        }
    }

    /// A real from 0 to less than 1: a multiple of 2⁻⁵³, all alike.
    pub fn unit(&mut self) -> f64 {
        (self.u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A real of the normal distribution with mean 0 and variance 1; never beyond ±8.6.
    pub fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// A real of the exponential distribution with mean 1; never more than 36.8.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.unit())
    }
}

/// SplitMix64's finaliser.
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(count: usize, mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..count).map(|_| draw()).collect();
        let mean = values.iter().sum::<f64>() / count as f64;
        (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count as f64)
    }

    /// SplitMix64 as its author published it: the first outputs of seed 0.
    #[test]
    fn the_mixer_is_splitmix64() {
        assert_eq!(mix(GOLDEN), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(GOLDEN.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
    }

    /// What is part of every workload's version, as another program computed it from the description above.
    #[test]
    fn the_first_values_of_a_seed_never_change() {
        let rng = Rng::new(42);
        let first = |draw: fn(&mut Rng) -> f64| draw(&mut rng.clone());
        let mut draws = rng.clone();
        assert_eq!(
            [draws.u64(), draws.u64(), draws.u64()],
            [0x83ae_6410_88e2_559a, 0x0390_751d_9253_d8ed, 0x91f6_0b65_78a8_f91d]
        );
        assert_eq!(rng.fork(1).u64(), 0xb34b_4485_74fc_b8d1);
        let mut draws = rng.clone();
        assert_eq!([0; 6].map(|_| draws.below(1000)), [514, 13, 570, 704, 379, 666]);
        assert_eq!(first(Rng::unit), 0.5143797436111381);
        assert_eq!(first(Rng::normal), 1.1973424889315012);
        assert_eq!(first(Rng::exponential), 0.7223283259617567);
    }

    /// Three quarters of 64 bits: without rejection, every multiple of 3 comes twice as often as other numbers.
    #[test]
    fn whole_numbers_are_not_biased() {
        let (mut rng, n) = (Rng::new(3), 3 << 62);
        let multiples = (0..30_000).filter(|_| rng.below(n).is_multiple_of(3)).count();
        assert!((9_700..10_300).contains(&multiples), "{multiples}");
    }

    #[test]
    fn whole_numbers_reach_their_ends_and_no_further() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 5];
        for _ in 0..5_000 {
            seen[rng.range(10, 14) as usize - 10] += 1;
        }
        assert!(seen.iter().all(|count| (850..1_150).contains(count)), "{seen:?}");
        assert_eq!((rng.below(1), rng.below(0), rng.range(7, 7), rng.range(7, 3)), (0, 0, 7, 7));
        assert!((0..99).any(|_| rng.range(0, u64::MAX) > u64::MAX / 2));
    }

    #[test]
    fn reals_have_the_moments_of_their_distributions() {
        let mut rng = Rng::new(2);
        let (mean, variance) = moments(100_000, || rng.unit());
        assert!((mean - 0.5).abs() < 0.005 && (variance - 1.0 / 12.0).abs() < 0.001, "{mean} {variance}");
        let (mean, variance) = moments(100_000, || rng.normal());
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let (mean, variance) = moments(100_000, || rng.exponential());
        assert!((mean - 1.0).abs() < 0.01 && (variance - 1.0).abs() < 0.04, "{mean} {variance}");
        let beyond = (0..100_000).filter(|_| rng.normal() > 1.959_964).count();
        assert!((2_300..2_700).contains(&beyond), "{beyond}");
    }

    #[test]
    fn forks_depend_on_the_seed_and_their_number_alone() {
        let (fresh, mut used) = (Rng::new(9), Rng::new(9));
        used.u64();
        assert_eq!(fresh.fork(4), used.fork(4));
        let firsts: std::collections::BTreeSet<u64> =
            (0..1_000).map(|stream| fresh.fork(stream).u64()).chain([fresh.clone().u64()]).collect();
        assert_eq!(firsts.len(), 1_001);
        assert_ne!(fresh.fork(0).fork(1), fresh.fork(1).fork(0));
    }
}
