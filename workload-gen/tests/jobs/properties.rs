//! What holds for every generator, whatever its parameters are.

use crate::run::run_some;
use workload_gen::check;
use workload_gen::format;
use workload_gen::jobs::{Generator, generators};
use workload_gen::lengths::Rng;
use workload_gen::spec::{Kind, Param, Spec, SpecError};
use workload_gen::tensor::Role;

/// Lines of each generator that are run, and that are tried until there are so many.
const LINES: u32 = 40;
const TRIED: u32 = 2_000;

/// Events after which a workload is not looked at any more.
const EVENTS: usize = 30_000;

/// Texts of all forms that parameters have; each takes those that it accepts.
const TEXTS: &[&str] = &[
    "1",
    "7",
    "300",
    "uniform(1,50)",
    "uniform(20,2000)",
    "lognormal(3,1)",
    "lognormal(6,1,1,4000)",
    "bimodal(2,90,0.2)",
    "list(3,1,2)",
    "list(50:300,7:30:2)",
    "list(2x32x64,1x64x32)",
    "poisson(0.5)",
    "poisson(3)",
    "burst(4,9)",
    "none",
    "pad",
    "bucket(64)",
    "1+2+4",
];

/// A value that the parameter may have, small rather than large.
fn value(param: &Param, rng: &mut Rng) -> Option<String> {
    let near = |rng: &mut Rng, min: u64, max: u64, bits: u64| {
        let spread = 1u64 << rng.below(bits + 1);
        min.saturating_add(rng.below(spread)).min(max)
    };
    match param.kind {
        Kind::Int { min, max } => Some(near(rng, min, max, 7).to_string()),
        Kind::Bytes { min, max } => Some(near(rng, min, max, 34).to_string()),
        Kind::Real { min, max } => {
            let whole = [min, max.min(min + 1.0), min + rng.unit() * (max - min).min(4.0)];
            Some(whole[rng.below(3) as usize].to_string())
        }
        Kind::Flag => Some(["yes", "no"][rng.below(2) as usize].to_string()),
        Kind::Choice(words) | Kind::Name(words) => Some(words[rng.below(words.len() as u64) as usize].to_string()),
        Kind::Ints { min, max } => {
            let count = 1 + rng.below(5);
            let numbers: Vec<String> = (0..count).map(|_| near(rng, min, max, 7).to_string()).collect();
            Some(numbers.join("+"))
        }
        Kind::Text(_, is_valid) => {
            let texts: Vec<&str> = TEXTS.iter().copied().filter(|text| is_valid(text).is_ok()).collect();
            (!texts.is_empty()).then(|| texts[rng.below(texts.len() as u64) as usize].to_string())
        }
    }
}

fn line(generator: &Generator, rng: &mut Rng) -> String {
    let mut items = Vec::new();
    // Few parameters or many: the more there are, the less often they go together.
    let often = 1 + rng.below(8);
    for param in generator.params.iter().flat_map(|group| group.iter()) {
        if rng.below(10) < often
            && let Some(value) = value(param, rng)
        {
            items.push(format!("{}={value}", param.key));
        }
    }
    format!("{}:{}", generator.name, items.join(","))
}

/// Every default is a value that the parameter may have, and every line that a generator accepts makes a trace that a replay
/// can rely on, twice the same. Where values do not go together, the error names one of the parameters.
#[test]
fn any_accepted_line_makes_a_sound_trace_and_makes_it_again() {
    for generator in generators() {
        let (mut rng, mut accepted, mut tried) = (Rng::new(6), 0, 0);
        while accepted < LINES {
            tried += 1;
            assert!(tried < TRIED, "{}: {accepted} of {TRIED} lines were accepted", generator.name);
            let line = line(generator, &mut rng);
            let spec = match Spec::parse(&line) {
                Ok(spec) => spec,
                Err(SpecError::Value { why, .. }) => {
                    let mut keys = generator.params.iter().flat_map(|group| group.iter()).map(|param| param.key);
                    assert!(keys.any(|key| why.contains(key)), "{line}: no parameter is named: {why}");
                    continue;
                }
                Err(error) => panic!("{line}: {error}"),
            };
            accepted += 1;
            let run = run_some(&spec, EVENTS);
            check(&run.trace).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(!run.blocks.is_empty(), "{line}: nothing is allocated");
            for block in &run.blocks {
                assert!(block.size > 0 && block.size < 1 << 53, "{line}: {block:?}");
                assert!(Role::ALL.iter().any(|role| role.word() == block.role()), "{line}: {block:?}");
            }
            let again = Spec::parse(&spec.to_string()).unwrap_or_else(|error| panic!("{spec}: {error}"));
            let again = run_some(&again, EVENTS);
            let common = run.trace.events.len().min(again.trace.events.len());
            // A workload that is stopped ends at once or a little later, as the two threads happen to run.
            assert!(
                run.trace.events[..common] == again.trace.events[..common],
                "{line}: another trace the second time"
            );
            assert!(common >= EVENTS || run.trace == again.trace, "{line}: another trace the second time");
            let labelled = run.blocks.len().min(again.blocks.len());
            assert!(
                run.trace.labels[..labelled] == again.trace.labels[..labelled],
                "{line}: other labels the second time"
            );
        }
    }
}

#[test]
fn a_default_that_is_given_changes_nothing() {
    for generator in generators() {
        let events = |line: &str| {
            let spec = Spec::parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            (
                spec.values().each().map(|(_, value)| value.to_string()).collect::<Vec<_>>(),
                run_some(&spec, 200).trace.events,
            )
        };
        let (defaults, plain) = events(generator.name);
        for param in generator.params.iter().flat_map(|group| group.iter()).filter(|param| !param.default.is_empty()) {
            let line = format!("{}:{}={}", generator.name, param.key, param.default);
            let (values, given) = events(&line);
            assert_eq!(values, defaults, "{line}: written as values are kept");
            // A workload that is stopped ends at once or a little later.
            let common = given.len().min(plain.len());
            assert!(given[..common] == plain[..common], "{line}: other events than without");
        }
    }
}

/// Help is made of these; a parameter without them could not be used.
#[test]
fn parameters_say_what_they_are() {
    for generator in generators() {
        assert!(generator.version > 0 && !generator.about.is_empty(), "{}", generator.name);
        let mut keys: Vec<&str> = Vec::new();
        for param in generator.params.iter().flat_map(|group| group.iter()) {
            assert!(!param.about.is_empty(), "{}: {}", generator.name, param.key);
            assert!(!keys.contains(&param.key), "{}: {} is declared twice", generator.name, param.key);
            keys.push(param.key);
        }
    }
}

/// A trace is the same after it was written and read.
#[test]
fn traces_survive_their_file() {
    for generator in generators() {
        let mut rng = Rng::new(1);
        let spec = (0..100).find_map(|_| Spec::parse(&line(generator, &mut rng)).ok()).expect("one of 100 is accepted");
        let trace = run_some(&spec, EVENTS).trace;
        let mut text = Vec::new();
        format::write(&trace, &mut text).expect("memory takes it");
        let back = format::read(&mut text.as_slice(), "memory").expect("it was just written");
        assert!(back.events == trace.events && back.texts == trace.texts, "{spec}");
        assert!(back.labels == trace.labels && back.label_texts == trace.label_texts, "{spec}");
        assert_eq!((back.header.source, back.header.pools), (trace.header.source, trace.header.pools));
    }
}
