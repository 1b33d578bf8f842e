//! Zipf's distribution: 1 to `max`, each with a weight of its inverse to the power `s`.
//!
//! Drawn by rejection-inversion (Hörmann and Derflinger 1996): the weight of k is hidden under the curve h(x) = x⁻ˢ from
//! k − ½ to k + ½, which is convex and so has at least that area. An area is drawn, its x is found by the inverse of the
//! integral, and what lies outside of k's weight is rejected: less than one draw in fifty, whatever the parameters.

use super::Rng;

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Zipf {
    s: f64,
    max: u64,
    /// Areas are drawn from here; just so much is left of 1½ that the weight of 1 fits, of which nothing is rejected.
    from: f64,
    /// To here: ½ beyond the maximum.
    to: f64,
    /// An x not more than so far below its k is within k's weight. It is so for k = 2, and the room grows with k.
    sure: f64,
}

impl Zipf {
    pub fn new(s: f64, max: u64) -> Zipf {
        let mut zipf = Zipf { s, max, from: 0.0, to: 0.0, sure: 0.0 };
        zipf.from = zipf.area(1.5) - 1.0;
        zipf.to = zipf.area(max as f64 + 0.5);
        zipf.sure = 2.0 - zipf.place(zipf.area(2.5) - zipf.weight(2.0));
        zipf
    }

    pub fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let area = self.from + rng.unit() * (self.to - self.from);
            let x = self.place(area);
            let k = (x.round() as u64).clamp(1, self.max);
            if k as f64 - x <= self.sure || area >= self.area(k as f64 + 0.5) - self.weight(k as f64) {
                return k;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        libm::exp(-self.s * libm::log(x))
    }

    /// The integral of the weight from 1 to `x`.
    fn area(&self, x: f64) -> f64 {
        let k = 1.0 - self.s;
        if k == 0.0 { libm::log(x) } else { libm::expm1(k * libm::log(x)) / k }
    }

    /// The inverse of [`area`](Self::area).
    fn place(&self, area: f64) -> f64 {
        let k = 1.0 - self.s;
        libm::exp(if k == 0.0 { area } else { libm::log1p(k * area) / k })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares counts with the weights themselves, by Pearson's statistic over the numbers that are expected often.
    #[test]
    fn numbers_come_as_often_as_their_weights_say() {
        for (s, max) in
            [(0.0, 7), (0.5, 1_000), (1.0, 50), (1.0 + 1e-9, 50), (1.2, 1_000_000), (3.0, 100), (10.0, 9), (2.0, 1)]
        {
            let (zipf, mut rng, draws) = (Zipf::new(s, max), Rng::new(5), 100_000u32);
            let mut counts = std::collections::BTreeMap::<u64, u32>::new();
            for _ in 0..draws {
                *counts.entry(zipf.draw(&mut rng)).or_default() += 1;
            }
            assert!(counts.keys().all(|k| (1..=max).contains(k)));
            let total: f64 = (1..=max).map(|k| (k as f64).powf(-s)).sum();
            let (mut statistic, mut cells) = (0.0, 0.0);
            for k in 1..=max {
                let expected = f64::from(draws) * (k as f64).powf(-s) / total;
                if expected < 10.0 {
                    break;
                }
                statistic += (f64::from(*counts.get(&k).unwrap_or(&0)) - expected).powi(2) / expected;
                cells += 1.0;
            }
            // Its mean is the number of cells and its variance twice that.
            assert!(statistic < cells + 4.0 * f64::sqrt(2.0 * cells), "s {s}, max {max}: {statistic} of {cells}");
        }
    }

    #[test]
    fn the_far_tail_stays_within_the_maximum() {
        let (zipf, mut rng) = (Zipf::new(0.0, 1_000_000_000), Rng::new(6));
        let most = (0..1_000).map(|_| zipf.draw(&mut rng)).max().unwrap();
        assert!((990_000_000..=1_000_000_000).contains(&most), "{most}");
        assert_eq!(Zipf::new(10.0, 1_000_000_000).place(1.0 / 9.0), f64::INFINITY);
    }
}
