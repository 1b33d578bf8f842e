//! When requests arrive at a server.
//!
//! Time is counted in **decode steps**: a generated job has no clock, and one token for each running request is what a
//! server does between two looks at its queue. At 25 ms a step, 2 requests a second are `poisson(0.05)`.

use super::Rng;
use super::call::{Call, Form, choices, joined, list, real, whole};
use std::fmt;

/// The most requests in a step.
const MOST: u64 = 1_000_000;

const FORMS: &[Form] = &[
    Form { written: "poisson(RATE)", about: "RATE requests per decode step in the mean, independent of each other" },
    Form {
        written: "burst(RATE,CV)",
        about: "RATE requests per decode step in the mean, with gamma-distributed gaps whose standard deviation is CV \
            times their mean; above 1 they come in bursts",
    },
    Form { written: "every(N)", about: "one request each N decode steps, the first at once" },
    Form { written: "list(N,...)", about: "so many requests at each decode step, then again from the start" },
];

/// How requests arrive.
///
/// [`parse`](Self::parse) reads what `Display` writes.
#[derive(Clone, PartialEq, Debug)]
pub struct Arrivals(Process);

#[derive(Clone, PartialEq, Debug)]
enum Process {
    Gaps(Gaps),
    List(Vec<u64>),
}

/// What lies between a request and the next.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Gaps {
    Poisson { rate: f64 },
    Burst { rate: f64, cv: f64 },
    Every(u64),
}

impl Arrivals {
    /// Reads a process. The error says what is wrong with which number, what it may be, and how it is written right.
    pub fn parse(text: &str) -> Result<Arrivals, String> {
        let call = Call::parse(text)?;
        let form = call.form(FORMS).ok_or_else(|| {
            format!("`{}` is no process of arrivals at decode steps; there are {}", call.name, choices(FORMS))
        })?;
        let rate = |text| real("RATE", text, 1e-6..=MOST as f64, "requests per decode step");
        let process = match call.name {
            "poisson" => call.exactly().and_then(|[text]| Ok(Process::Gaps(Gaps::Poisson { rate: rate(text)? }))),
            "burst" => call.exactly().and_then(|[text, cv]| {
                let (rate, cv) = (rate(text)?, real("CV", cv, 0.01..=20.0, "(standard deviation / mean)")?);
                Ok(Process::Gaps(Gaps::Burst { rate, cv }))
            }),
            "every" => call.exactly().and_then(|[steps]| {
                whole("N", steps, 1..=1_000_000_000, "decode steps").map(|steps| Process::Gaps(Gaps::Every(steps)))
            }),
            _ if call.arguments.is_empty() => Err("`list` lacks its arguments".to_string()),
            _ => list("count", &call.arguments, 0..=MOST, "requests").and_then(|counts| {
                if counts.iter().any(|count| *count > 0) {
                    return Ok(Process::List(counts));
                }
                Err("no count is above 0, so that no request ever arrives".to_string())
            }),
        };
        process.map(Arrivals).map_err(|problem| form.error(problem))
    }

    /// All ways to write a process, for help.
    pub fn forms() -> &'static [Form] {
        FORMS
    }

    /// How many requests arrive at each decode step, without end.
    pub fn counts(&self, mut rng: Rng) -> Counts {
        Counts(match &self.0 {
            Process::Gaps(gaps) => {
                let wait = if let Gaps::Every(_) = gaps { 0.0 } else { gaps.draw(&mut rng) };
                State::Gaps { gaps: *gaps, rng, wait }
            }
            Process::List(counts) => State::List { counts: counts.clone(), next: 0 },
        })
    }
}

impl Gaps {
    /// The time from one request to the next, in steps.
    fn draw(self, rng: &mut Rng) -> f64 {
        match self {
            Gaps::Poisson { rate } => rng.exponential() / rate,
            // A gamma distribution of shape a has the mean a and the variance a.
            Gaps::Burst { rate, cv } => gamma(1.0 / (cv * cv), rng) * cv * cv / rate,
            Gaps::Every(steps) => steps as f64,
        }
    }
}

/// A real of the gamma distribution with scale 1: a transformed normal, of which a few are rejected (Marsaglia and Tsang 2000).
fn gamma(shape: f64, rng: &mut Rng) -> f64 {
    if shape < 1.0 {
        let below = libm::exp(-rng.exponential() / shape);
        return below * gamma(shape + 1.0, rng);
    }
    let d = shape - 1.0 / 3.0;
    loop {
        let normal = rng.normal();
        let root = 1.0 + normal / (9.0 * d).sqrt();
        let cube = root * root * root;
        if cube > 0.0 && -rng.exponential() < normal * normal / 2.0 + d * (1.0 - cube + libm::log(cube)) {
            return d * cube;
        }
    }
}

/// The numbers of requests that arrive, step by step.
#[derive(Clone, Debug)]
pub struct Counts(State);

#[derive(Clone, Debug)]
enum State {
    /// The next request comes in `wait` steps. Only what is left is kept, so that a long run is as exact as a short one.
    Gaps {
        gaps: Gaps,
        rng: Rng,
        wait: f64,
    },
    List {
        counts: Vec<u64>,
        next: usize,
    },
}

impl Iterator for Counts {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match &mut self.0 {
            State::Gaps { gaps, rng, wait } => {
                let mut count = 0;
                while *wait < 1.0 {
                    *wait += gaps.draw(rng);
                    count += 1;
                }
                *wait -= 1.0;
                Some(count)
            }
            State::List { counts, next } => {
                let count = counts[*next];
                *next = (*next + 1) % counts.len();
                Some(count)
            }
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Process::Gaps(Gaps::Poisson { rate }) => write!(f, "poisson({rate})"),
            Process::Gaps(Gaps::Burst { rate, cv }) => write!(f, "burst({rate},{cv})"),
            Process::Gaps(Gaps::Every(steps)) => write!(f, "every({steps})"),
            Process::List(counts) => write!(f, "list({})", joined(counts)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Just, Strategy, prop, prop_assert_eq, prop_oneof, proptest};

    fn counts(text: &str, steps: usize) -> Vec<u64> {
        Arrivals::parse(text).unwrap().counts(Rng::new(7)).take(steps).collect()
    }

    fn process() -> impl Strategy<Value = Process> {
        let rate = || 1e-6..=MOST as f64;
        prop_oneof![
            rate().prop_map(|rate| Process::Gaps(Gaps::Poisson { rate })),
            (rate(), 0.01..=20.0).prop_map(|(rate, cv)| Process::Gaps(Gaps::Burst { rate, cv })),
            (1..=1_000_000_000u64).prop_map(|steps| Process::Gaps(Gaps::Every(steps))),
            (prop::collection::vec(0..=MOST, 0..9), Just(1)).prop_map(|(mut counts, last)| {
                counts.push(last);
                Process::List(counts)
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(process in process()) {
            let arrivals = Arrivals(process);
            prop_assert_eq!(Arrivals::parse(&arrivals.to_string()), Ok(arrivals));
        }
    }

    #[test]
    fn regular_arrivals_are_regular() {
        assert_eq!(counts("every(3)", 8), [1, 0, 0, 1, 0, 0, 1, 0]);
        assert_eq!(counts("every(1)", 3), [1, 1, 1]);
        assert_eq!(counts("list(2,0,5)", 7), [2, 0, 5, 2, 0, 5, 2]);
    }

    /// Mean, and variance over mean, of the number of requests in 100 steps: rate, and the square of the gaps' coefficient of
    /// variation (exactly so for a Poisson process, in the limit for others).
    #[test]
    fn random_arrivals_have_their_rate_and_their_burstiness() {
        for (text, rate, dispersion) in [
            ("poisson(0.3)", 0.3, 1.0),
            ("poisson(20)", 20.0, 1.0),
            ("burst(2,1)", 2.0, 1.0),
            ("burst(2,3)", 2.0, 9.0),
            ("burst(2,0.5)", 2.0, 0.25),
        ] {
            let windows: Vec<f64> =
                counts(text, 200_000).chunks(100).map(|window| window.iter().sum::<u64>() as f64).collect();
            let mean = windows.iter().sum::<f64>() / windows.len() as f64;
            let variance = windows.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / windows.len() as f64;
            assert!((mean / 100.0 / rate - 1.0).abs() < 0.03, "{text}: {mean}");
            assert!((variance / mean / dispersion - 1.0).abs() < 0.15, "{text}: {}", variance / mean);
        }
    }

    #[test]
    fn gamma_numbers_have_their_mean_and_variance() {
        let mut rng = Rng::new(8);
        for shape in [0.05, 0.5, 1.0, 4.0, 10_000.0] {
            let draws: Vec<f64> = (0..200_000).map(|_| gamma(shape, &mut rng)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            assert!((mean / shape - 1.0).abs() < 0.04, "{shape}: {mean}");
            assert!((variance / shape - 1.0).abs() < 0.1, "{shape}: {variance}");
        }
    }

    /// What is part of every workload's version; another program, written from the descriptions, counts the same.
    #[test]
    fn the_first_arrivals_of_a_seed_never_change() {
        assert_eq!(counts("poisson(0.5)", 12), [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0]);
        assert_eq!(counts("burst(0.5,2)", 12), [0, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, parts) in [
            (
                "poisson(0)",
                &["RATE is `0`", "from 0.000001 to 1000000 requests per decode step", "write poisson(RATE)"][..],
            ),
            ("poisson", &["`poisson` takes 1 argument, not 0"]),
            ("burst(1,30)", &["CV is `30`", "from 0.01 to 20", "write burst(RATE,CV)"]),
            ("every(0)", &["N is `0`", "from 1 to 1000000000 decode steps", "every(N)"]),
            ("list(0,0)", &["no count is above 0", "list(N,...)"]),
            ("list(1,-1)", &["count 2 is `-1`", "from 0 to 1000000 requests"]),
            ("list", &["`list` lacks its arguments"]),
            ("gauss(1)", &["`gauss` is no process of arrivals at decode steps; there are poisson(RATE)"]),
        ] {
            let error = Arrivals::parse(text).expect_err(text);
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
        for form in Arrivals::forms() {
            let text = form.written.replace("RATE", "2").replace("CV", "3").replace(",...", "").replace('N', "4");
            assert!(Arrivals::parse(&text).is_ok(), "{text}");
        }
    }
}
