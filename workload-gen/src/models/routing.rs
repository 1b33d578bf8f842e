//! How many tokens a router sends to each expert: skewed, and with favourites that change as training goes on.
//!
//! An expert's weight is the exponential of a normal number times the skew. Every `period` batches all of these are other numbers, and in
//! between they go from the old to the new. The counts of a batch depend on its number, the layer and the seed alone, so that a layer that runs
//! again in the backward pass does the same.

use crate::lengths::Rng;

/// The routers of a model.
#[derive(Clone, Debug)]
pub struct Loads {
    rng: Rng,
    experts: u64,
    per_token: u64,
    skew: f64,
    period: u64,
}

impl Loads {
    /// Routers that choose `per_token` of so many experts. A skew of 0 has all alike; `period` is in batches.
    pub fn new(rng: Rng, experts: u64, per_token: u64, skew: f64, period: u64) -> Loads {
        Loads { rng, experts, per_token, skew, period: period.max(1) }
    }

    /// Tokens that each expert gets, of `tokens` in the batch of that number. Each token goes to as many different experts as it is to.
    pub fn counts(&self, layer: u64, batch: u64, tokens: u64) -> Vec<u64> {
        let layer = self.rng.fork(layer);
        let shares = self.shares(&layer, batch);
        let mut rng = layer.fork(u64::MAX - batch);
        let (most, all) = (tokens as f64, (tokens * self.per_token) as f64);
        let expected = fill(&shares, all, most);
        let sample = |&mean: &f64| {
            let deviation = libm::sqrt(mean * (1.0 - mean / most.max(1.0)).max(0.0));
            libm::round(mean + deviation * rng.normal()).clamp(0.0, most) as u64
        };
        let mut counts: Vec<u64> = expected.iter().map(sample).collect();
        settle(&mut counts, tokens * self.per_token, tokens);
        counts
    }

    /// The share of each expert in the router's choices, before any expert is full.
    fn shares(&self, layer: &Rng, batch: u64) -> Vec<f64> {
        let (knot, within) = (batch / self.period, batch % self.period);
        let angle = within as f64 / self.period as f64 * std::f64::consts::FRAC_PI_2;
        let (mut old, mut new) = (layer.fork(2 * knot), layer.fork(2 * knot + 2));
        let mut weights = Vec::with_capacity(self.experts as usize);
        for _ in 0..self.experts {
            // The squares of both factors sum up to one, so that the skew is the same at all times.
            let number = old.normal() * libm::cos(angle) + new.normal() * libm::sin(angle);
            weights.push(libm::exp(self.skew * number));
        }
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }
}

/// Cuts `all` in proportion to the shares, but no part larger than `most`: what that leaves goes to the others.
fn fill(shares: &[f64], all: f64, most: f64) -> Vec<f64> {
    let mut parts = vec![0.0; shares.len()];
    let mut is_full = vec![false; shares.len()];
    loop {
        let full = is_full.iter().filter(|&&is_full| is_full).count() as f64;
        let open: f64 = shares.iter().zip(&is_full).filter(|(_, is_full)| !**is_full).map(|(share, _)| share).sum();
        let mut is_new = false;
        for (at, share) in shares.iter().enumerate() {
            if is_full[at] {
                continue;
            }
            parts[at] = (all - full * most) * share / open;
            if parts[at] > most {
                (parts[at], is_full[at], is_new) = (most, true, true);
            }
        }
        if !is_new {
            return parts;
        }
    }
}

/// Changes the counts as little as can be so that they sum up to `all`, none more than `most`.
fn settle(counts: &mut [u64], all: u64, most: u64) {
    let mut sum: u64 = counts.iter().sum();
    while sum != all {
        let before = sum;
        let step = (sum.abs_diff(all) / counts.len() as u64).max(1);
        for count in counts.iter_mut() {
            let missing = all.saturating_sub(sum).min(step).min(most - *count);
            let excess = sum.saturating_sub(all).min(step).min(*count);
            *count = *count + missing - excess;
            sum = sum + missing - excess;
        }
        if sum == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(skew: f64) -> Loads {
        Loads::new(Rng::new(1), 60, 4, skew, 100)
    }

    #[test]
    fn every_choice_of_every_token_goes_to_an_expert_that_has_not_got_it() {
        for skew in [0.0, 0.5, 2.0, 8.0] {
            for tokens in [0, 1, 7, 300, 4096] {
                for batch in [0, 99, 100, 12_345] {
                    let counts = loads(skew).counts(3, batch, tokens);
                    assert_eq!(counts.len(), 60);
                    assert_eq!(counts.iter().sum::<u64>(), 4 * tokens, "skew {skew}, {tokens} tokens");
                    assert!(counts.iter().all(|&count| count <= tokens));
                }
            }
        }
    }

    /// The largest share of an expert.
    fn top(counts: &[u64]) -> f64 {
        *counts.iter().max().unwrap_or(&0) as f64 / counts.iter().sum::<u64>() as f64
    }

    #[test]
    fn more_skew_gives_the_favourites_more() {
        let tops = [0.0, 0.5, 1.5].map(|skew| top(&loads(skew).counts(0, 0, 4096)));
        assert!(tops[0] < 1.3 / 60.0 && tops[1] > 1.5 * tops[0] && tops[2] > 2.0 * tops[1], "{tops:?}");
    }

    fn likeness(a: &[u64], b: &[u64]) -> f64 {
        let mean = |x: &[u64]| x.iter().sum::<u64>() as f64 / x.len() as f64;
        let (of_a, of_b) = (mean(a), mean(b));
        let together: f64 = a.iter().zip(b).map(|(&a, &b)| (a as f64 - of_a) * (b as f64 - of_b)).sum();
        let alone = |x: &[u64], mean: f64| x.iter().map(|&x| (x as f64 - mean) * (x as f64 - mean)).sum::<f64>();
        together / libm::sqrt(alone(a, of_a) * alone(b, of_b))
    }

    #[test]
    fn favourites_stay_for_a_while_and_then_are_others() {
        let counts = |batch| loads(1.0).counts(5, batch, 8192);
        assert!(likeness(&counts(40), &counts(41)) > 0.95);
        assert!(likeness(&counts(99), &counts(101)) > 0.9);
        let later: Vec<f64> = [200, 500, 900, 1300].map(|batch| likeness(&counts(0), &counts(batch))).into();
        assert!(later.iter().sum::<f64>().abs() / 4.0 < 0.3, "{later:?}");
        assert_eq!(counts(40), counts(40));
    }
}
