//! Distributions: round trips, bounds, shares, and what is refused.

use super::distribution::Shape;
use super::tables::tables;
use super::{LONGEST, Lengths, Pair, Pairs, Rng};
use proptest::prelude::*;

fn lengths(text: &str) -> Lengths {
    Lengths::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn draw(text: &str, seed: u64, count: usize) -> Vec<u64> {
    lengths(text).sampler(Rng::new(seed)).take(count).collect()
}

fn tokens() -> BoxedStrategy<u64> {
    prop_oneof![1..=LONGEST, 1u64..=5_000, Just(1), Just(LONGEST)].boxed()
}

fn two_tokens() -> impl Strategy<Value = (u64, u64)> {
    (tokens(), tokens()).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![
        tokens().prop_map(Shape::Fixed),
        two_tokens().prop_map(|(low, high)| Shape::Uniform { low, high }),
        (0.0..=20.0, 0.0..=10.0).prop_map(|(mu, sigma)| Shape::LogNormal { mu, sigma }),
        (0.0..=10.0, tokens()).prop_map(|(s, max)| Shape::Zipf { s, max }),
        (two_tokens(), 0.0..=1.0).prop_map(|((short, long), p)| Shape::Bimodal { short, long, p }),
        prop::collection::vec(tokens(), 1..9).prop_map(Shape::List),
        prop::sample::select(tables()).prop_map(|table| Shape::Table(tables().iter().find(|t| **t == table).unwrap())),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec((1e-6..=1e6, inner.clone()), 1..4).prop_map(Shape::Mix),
            (inner.clone(), two_tokens()).prop_map(|(of, (low, high))| Shape::Clamp { of: Box::new(of), low, high }),
            (inner, 1e-6..=1e6).prop_map(|(of, factor)| Shape::Scale { of: Box::new(of), factor }),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(shape in shape()) {
        let lengths = Lengths(shape);
        prop_assert_eq!(Lengths::parse(&lengths.to_string()), Ok(lengths));
    }

    #[test]
    fn draws_stay_in_range_and_repeat(shape in shape(), seed: u64) {
        let lengths = Lengths(shape);
        let (low, high) = lengths.range();
        prop_assert!(1 <= low && low <= high && high <= LONGEST);
        let draws: Vec<u64> = lengths.sampler(Rng::new(seed)).take(100).collect();
        prop_assert!(draws.iter().all(|length| (low..=high).contains(length)), "{:?}", draws);
        prop_assert!(lengths.sampler(Rng::new(seed)).take(100).eq(draws));
    }

    #[test]
    fn no_text_is_a_panic(text in "[a-z0-9(),.*+-]{0,40}|(uniform|lognormal|zipf|mix|list|clamp|scale)\\([0-9a-z.,*()-]{0,20}\\)") {
        if let Ok(lengths) = Lengths::parse(&text) {
            prop_assert!(lengths.sampler(Rng::new(0)).draw() >= 1);
        }
    }
}

#[test]
fn short_and_loose_writings_have_one_canonical_form() {
    for (text, canonical) in [
        (" 512 ", "512"),
        ("uniform( 16 , 2048 )", "uniform(16,2048)"),
        ("lognormal(6.20,0.7,16,2048)", "clamp(lognormal(6.2,0.7),16,2048)"),
        ("mix(7e-1*azure-chat, 0.3 * scale(zipf(1,4),64))", "mix(0.7*azure-chat,0.3*scale(zipf(1,4),64))"),
    ] {
        assert_eq!(lengths(text).to_string(), canonical);
    }
}

#[test]
fn every_form_has_an_example_that_works() {
    for (form, example) in Lengths::forms().iter().zip([
        "1",
        "uniform(1,2)",
        "lognormal(6.2,0.7)",
        "zipf(1.1,64)",
        "bimodal(128,2048,0.2)",
        "mix(0.7*lognormal(5,1),0.3*uniform(1000,2000))",
        "list(237,276,441)",
        "clamp(gsm8k,1,256)",
        "scale(gsm8k,2)",
    ]) {
        assert_eq!(lengths(example).to_string(), example);
        assert_eq!(form.written.split('(').nth(1).is_some(), example.contains('('));
        assert!(form.written.split('(').next() == example.split('(').next() || form.written == "N");
    }
    assert_eq!(Lengths::forms().len(), 9);
}

/// An error has the value, the range, the unit and the way out, and an inner distribution's is not buried under the outer's.
#[test]
fn errors_say_what_to_write() {
    for (text, parts) in [
        ("uniform(16,x)", &["HIGH is `x`", "from 1 to 1000000000 tokens", "write uniform(LOW,HIGH): any length"][..]),
        ("uniform(9,3)", &["LOW is 9, more than HIGH, which is 3", "uniform(LOW,HIGH)"]),
        ("uniform(9)", &["`uniform` takes 2 arguments, not 1", "uniform(LOW,HIGH)"]),
        ("uniform", &["`uniform` lacks its arguments", "uniform(LOW,HIGH)"]),
        ("0", &["the length is `0`", "from 1 to 1000000000 tokens", "write N: every"]),
        ("-5", &["the length is `-5`"]),
        (
            "lognormal(21,1)",
            &["MU is `21`", "a number from 0 to 20 (logarithm of tokens)", "lognormal(MU,SIGMA,LOW,HIGH)"],
        ),
        ("lognormal(6,nan)", &["SIGMA is `nan`", "from 0 to 10"]),
        ("lognormal(6,1,5)", &["takes 2 or 4 arguments, not 3"]),
        ("zipf(11,9)", &["S is `11`", "from 0 to 10", "zipf(S,MAX)"]),
        ("bimodal(1,2,1.5)", &["P is `1.5`", "from 0 to 1"]),
        ("bimodal(3,2,0.5)", &["SHORT is 3, more than LONG"]),
        ("list(1,0)", &["length 2 is `0`", "list(N,...)"]),
        ("list()", &["length 1 is ``"]),
        ("mix(uniform(1,2))", &["`uniform(1,2)` has no weight", "mix(W*LENGTHS,...)"]),
        ("mix(0*5)", &["the weight W is `0`", "from 0.000001 to 1000000"]),
        ("mix(1*uniform(1,0))", &["HIGH is `0`", "write uniform(LOW,HIGH)"]),
        ("scale(5,0)", &["FACTOR is `0`", "scale(LENGTHS,FACTOR)"]),
        ("clamp(5,1)", &["`clamp` takes 3 arguments, not 2"]),
        ("azure", &["`azure` is no distribution of lengths in tokens", "uniform(LOW,HIGH)", "azure-chat-out", "gsm8k"]),
        ("gsm8k(3)", &["`gsm8k` is no distribution"]),
        ("N(3)", &["`N` is no distribution"]),
        ("N", &["`N` is no distribution"]),
        ("", &["`` is no distribution"]),
        ("uniform(1,2", &["a parenthesis without its other half"]),
    ] {
        let error = Lengths::parse(text).expect_err(text);
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        assert_eq!(error.matches("; write ").count().max(1), 1, "{text}: {error}");
    }
    let nested = |depth| "scale(".repeat(depth) + "5" + &",1)".repeat(depth);
    assert!(Lengths::parse(&nested(8)).is_ok());
    assert!(Lengths::parse(&nested(9)).unwrap_err().contains("more than 8 other distributions"));
    assert!(Lengths::parse(&nested(100_000)).is_err());
}

#[test]
fn a_list_is_given_in_order_and_starts_again() {
    assert_eq!(draw("list(237,276,441)", 0, 7), [237, 276, 441, 237, 276, 441, 237]);
    let mixed = draw("mix(1*list(1,2,3),1*10)", 1, 200);
    let listed: Vec<u64> = mixed.iter().copied().filter(|length| *length < 10).collect();
    assert!((80..120).contains(&listed.len()));
    assert!(listed.iter().zip((1..=3).cycle()).all(|(length, expected)| *length == expected));
}

#[test]
fn shares_and_moments_are_those_asked_for() {
    let count = 50_000;
    let share = |text, of: fn(&u64) -> bool| {
        draw(text, 2, count).iter().filter(|length| of(length)).count() as f64 / count as f64
    };
    assert!((share("bimodal(128,2048,0.2)", |length| *length == 2048) - 0.2).abs() < 0.01);
    assert_eq!(share("bimodal(128,2048,0)", |length| *length == 2048), 0.0);
    assert_eq!(share("bimodal(128,2048,1)", |length| *length == 2048), 1.0);
    assert!((share("mix(3*5,1*7)", |length| *length == 7) - 0.25).abs() < 0.01);
    // e^6.2 is 492.7, e^(6.2 + 0.7) is 992.3.
    assert!((share("lognormal(6.2,0.7)", |length| *length <= 492) - 0.5).abs() < 0.01);
    assert!((share("lognormal(6.2,0.7)", |length| *length <= 992) - 0.8413).abs() < 0.01);
    assert!((share("uniform(16,2048)", |length| *length < 16 + 508) - 0.25).abs() < 0.01);
    assert!((share("lognormal(6.2,0.7,16,992)", |length| *length == 992) - 0.1587).abs() < 0.01);
    assert!((share("scale(zipf(1,2),64)", |length| *length == 128) - 1.0 / 3.0).abs() < 0.01);
    assert_eq!(share("scale(10,0.001)", |length| *length == 1), 1.0);
}

#[test]
fn contexts_do_not_depend_on_what_is_generated() {
    let context = |generated| {
        Pairs::new(&lengths("azure-chat"), &lengths(generated), &Rng::new(3))
            .take(50)
            .map(|pair| pair.context)
            .collect::<Vec<_>>()
    };
    assert_eq!(context("azure-chat-out"), context("7"));
    let pairs: Vec<Pair> =
        Pairs::new(&lengths("uniform(1,9)"), &lengths("uniform(1,9)"), &Rng::new(3)).take(50).collect();
    assert!(pairs.iter().any(|pair| pair.context != pair.generated));
}

/// What is part of every workload's version; another program, written from the descriptions, draws the same.
#[test]
fn the_first_lengths_of_a_seed_never_change() {
    for (text, first) in [
        ("uniform(16,2048)", [1061, 44, 1175, 1448, 788]),
        ("lognormal(6.2,0.7)", [1139, 381, 350, 2238, 924]),
        ("zipf(1.2,4096)", [9, 1, 14, 46, 4]),
        ("mix(0.7*lognormal(5,1),0.3*uniform(1000,2000))", [128, 1380, 1289, 1166, 464]),
        ("azure-code", [1551, 2, 1899, 2963, 641]),
        ("servegen-mid-out", [20, 1, 22, 34, 4]),
    ] {
        assert_eq!(draw(text, 42, 5), first, "{text}");
    }
}
