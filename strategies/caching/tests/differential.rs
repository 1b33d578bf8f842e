//! Random programs on the strategy and on PyTorch 2.11's own library, compared event by event and counter by counter.
//!
//! Run by hand, since it needs PyTorch's library built against a stub CUDA runtime:
//!
//! ```sh
//! PYTORCH_ORACLE=path/to/oracle PROGRAMS=10000 cargo test --release -p strategy-caching --test differential -- --ignored --nocapture
//! ```
//!
//! Kept out of the programs is what PyTorch itself does not define: orders that come from a hash map are compared as
//! sets, and states in which PyTorch's own bookkeeping goes wrong are not entered (lowering the split limit at run time,
//! expandable private pools that are released with blocks alive, blocks used on another stream within a pool context
//! and freed after it).

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use common::{Event, Runner, STATS};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

const STREAMS: [&str; 3] = ["0", "b00", "d00"];

struct Program {
    total: u64,
    lines: Vec<String>,
}

/// A program of one of four kinds: default settings, other settings, expandable segments, pools.
fn program(seed: u64) -> Program {
    let mut rng = Pcg64::seed_from_u64(seed);
    let total = [160 << 20, 400 << 20, 1 << 30, 4 << 30][rng.random_range(0..4)];
    let kind = seed % 4;
    let split_limit = (kind != 0 && rng.random_range(0..3) == 0)
        .then(|| format!("max_split_size_mb:{}", [20, 24, 32, 40, 100][rng.random_range(0..5)]));
    let streams = if rng.random_range(0..3) == 0 { 1 } else { STREAMS.len() };
    // A second side stream per block makes the order of completion undefined; one does not.
    let conf = |rng: &mut Pcg64, expandable: Option<bool>| {
        let mut options: Vec<String> = split_limit.iter().cloned().collect();
        if let Some(on) = expandable {
            options.push(format!("expandable_segments:{}", if on { "True" } else { "False" }));
        }
        if rng.random_range(0..3) == 0 {
            options.push(format!("roundup_power2_divisions:{}", 1 << rng.random_range(0..7)));
        } else if rng.random_range(0..4) == 0 {
            options.push("roundup_power2_divisions:[1:8,4:0,16:2,>:4]".to_owned());
        }
        if rng.random_range(0..3) == 0 {
            options.push(format!("garbage_collection_threshold:0.{}", rng.random_range(1..9)));
        }
        if rng.random_range(0..4) == 0 {
            options.push(format!("max_non_split_rounding_mb:{}", rng.random_range(20..60)));
        }
        format!("conf {}", options.join(","))
    };
    let mut lines = Vec::new();
    let expandable = match kind {
        2 => Some(true),
        3 => Some(false),
        _ => None,
    };
    if kind != 0 {
        lines.push(conf(&mut rng, expandable));
    }
    if rng.random_range(0..2) == 0 {
        lines.push(format!("frac 0.{}", rng.random_range(3..10)));
    }
    let mut owned_forever = false;
    if kind == 3 {
        lines.push("mkpool 0 1".to_owned());
        if rng.random_range(0..2) == 0 {
            lines.push("nosplit 0 1".to_owned());
        }
        // PyTorch ends with an internal error when an overflow pool is used that nobody owns any more.
        owned_forever = rng.random_range(0..2) == 0;
        if owned_forever {
            lines.push("useoom 0 1".to_owned());
        }
    }
    let mut live: Vec<String> = Vec::new();
    let mut captured: Vec<String> = Vec::new();
    let mut open = false;
    let mut released = false;
    for step in 0..rng.random_range(60..400) {
        match rng.random_range(0..100) {
            0..46 => {
                let size: u64 = match rng.random_range(0..20) {
                    0 => 0,
                    1..9 => {
                        let doublings = rng.random_range(4..21);
                        rng.random_range(1..1 << doublings)
                    }
                    9..15 => rng.random_range(1 << 20..11 << 20),
                    15..19 => rng.random_range(10 << 20..total / 5),
                    _ => rng.random_range(total / 5..total / 5 * 6),
                };
                let stream = STREAMS[rng.random_range(0..streams)];
                lines.push(format!("a x{step} {size} {stream}"));
                live.push(format!("x{step}"));
            }
            46..80 if !live.is_empty() => {
                let id = live.swap_remove(rng.random_range(0..live.len()));
                lines.push(format!("f {id}"));
            }
            80..85 if !live.is_empty() && streams > 1 => {
                let id = &live[rng.random_range(0..live.len())];
                lines.push(format!("r {id} {}", STREAMS[rng.random_range(0..streams)]));
                if open && !captured.contains(id) {
                    captured.push(id.clone());
                }
            }
            85..89 => lines.push(format!("ev {}", rng.random_range(0..2))),
            89..91 => lines.push("empty".to_owned()),
            91 => lines.push(format!("frac 0.{}", rng.random_range(2..10))),
            92 => lines.push("frac 1.0".to_owned()),
            93 if kind != 0 => {
                // With a split limit, expandable segments may not be switched on.
                let switch = kind == 1 && split_limit.is_none() && rng.random_range(0..2) == 0;
                let expandable = switch.then(|| rng.random_range(0..2) == 0);
                lines.push(conf(&mut rng, expandable));
            }
            94..97 if kind == 3 && !released => {
                if open {
                    // PyTorch remembers uses within a context by the block's address on the heap, and forgets them
                    // only if the block is freed within it too: later another block may inherit them.
                    captured.retain(|id| live.contains(id));
                    live.retain(|id| !captured.contains(id));
                    lines.extend(captured.drain(..).map(|id| format!("f {id}")));
                }
                lines.push(format!("{} 0 1", if open { "end" } else { "begin" }));
                if open {
                    lines.push("release 0 1".to_owned());
                }
                open = !open;
            }
            97 if kind == 3 && !owned_forever && !released && !open && step > 100 => {
                lines.push("release 0 1".to_owned());
                released = true;
            }
            98 if kind == 3 && !open => lines.push("emptypool 0 1".to_owned()),
            _ => lines.push("s".to_owned()),
        }
    }
    if open {
        lines.push("end 0 1".to_owned());
    }
    lines.extend(["ev 1".to_owned(), "a last 512 0".to_owned(), "empty".to_owned(), "S".to_owned(), "s".to_owned()]);
    Program { total, lines }
}

/// What PyTorch answered to one command.
#[derive(Default, Debug)]
struct Answer {
    events: Vec<Event>,
    result: Option<String>,
    error: bool,
    stats: BTreeMap<String, i64>,
}

fn ask(oracle: &str, program: &Program) -> Vec<Answer> {
    let mut child = Command::new(oracle)
        .env("FAKE_TOTAL", program.total.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{oracle}: {error}"));
    let mut input = child.stdin.take().expect("a pipe");
    let text = program.lines.join("\n") + "\n";
    let writer = std::thread::spawn(move || drop(input.write_all(text.as_bytes())));
    let output = child.wait_with_output().expect("output");
    writer.join().expect("the writer");
    let mut answers: Vec<Answer> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if line.starts_with('>') {
            answers.push(Answer::default());
            continue;
        }
        let Some(answer) = answers.last_mut() else { continue };
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.first() {
            Some(&"*") => answer.events.push(event(&words)),
            Some(&"->") => answer.result = words.get(3).map(|word| (*word).to_owned()),
            Some(&"!!") => answer.error = true,
            Some(&"S:") => {
                for word in &words[1..] {
                    let (key, value) = word.rsplit_once('=').expect("key=value");
                    answer.stats.insert(key.to_owned(), value.parse().expect("a number"));
                }
            }
            Some(name) => full_stat(name, &words[1..], &mut answer.stats),
            None => {}
        }
    }
    // At its end the program frees what is left; the last command has no events of its own.
    if let Some(last) = answers.last_mut() {
        last.events.clear();
    }
    answers
}

/// `name [all cur=1 peak=2 al=3 fr=4] [small …] [large …]`
fn full_stat(name: &str, words: &[&str], stats: &mut BTreeMap<String, i64>) {
    let mut pool = "";
    for word in words {
        let word = word.trim_matches(['[', ']']);
        match word.split_once('=') {
            None => {
                pool = if word == "all" {
                    "all"
                } else if word == "small" {
                    "small_pool"
                } else {
                    "large_pool"
                }
            }
            Some((field, value)) => {
                let field = match field {
                    "cur" => "current",
                    "al" => "allocated",
                    "fr" => "freed",
                    other => other,
                };
                stats.insert(format!("{name}.{pool}.{field}"), value.parse().expect("a number"));
            }
        }
    }
}

fn event(words: &[&str]) -> Event {
    let after = |key: &str| {
        let word = words.iter().find_map(|word| word.strip_prefix(key));
        word.unwrap_or_else(|| panic!("{key} in {words:?}"))
    };
    let stream = after("stream=");
    let stream = u64::from_str_radix(stream.trim_start_matches("0x"), 16).unwrap_or(0);
    let (a, b) = after("pool=(").trim_end_matches(')').split_once(',').expect("a pair");
    Event {
        action: words[1].to_lowercase(),
        addr: after("addr=").to_owned(),
        size: after("size=").parse().expect("a number"),
        stream,
        pool: (a.parse().expect("a number"), b.parse().expect("a number")),
    }
}

/// Sorts runs of completions, whose order PyTorch takes from a hash map. Returns whether one was longer than one.
fn sort_completions(events: &mut [Event]) -> bool {
    let mut long = false;
    for run in events.chunk_by_mut(|a, b| a.action == "free_completed" && b.action == "free_completed") {
        run.sort_unstable();
        long |= run.len() > 1;
    }
    long
}

fn compare(oracle: &str, seed: u64) -> Result<usize, String> {
    let program = program(seed);
    let answers = ask(oracle, &program);
    let streams = STREAMS.iter().map(|hex| u64::from_str_radix(hex, 16).expect("hexadecimal")).collect();
    let mut runner = Runner::new(program.total, streams);
    let mut undefined_order = false;
    let mut compared = 0;
    for (number, (line, mut want)) in program.lines.iter().zip(answers).enumerate() {
        let at = || format!("seed {seed}, line {number}: {line}\nprogram:\n{}", program.lines[..=number].join("\n"));
        let cmd: Vec<&str> = line.split(' ').collect();
        let (mut have, result) = runner.run(if line == "S" { &["s"] } else { &cmd });
        undefined_order |= sort_completions(&mut have) | sort_completions(&mut want.events);
        if have != want.events {
            return Err(format!("{}\nhave {have:?}\nwant {:?}", at(), want.events));
        }
        compared += have.len();
        if let Some(result) = result
            && result.as_ref().ok() != want.result.as_ref()
        {
            return Err(format!("{}\nhave {result:?}\nwant {:?}", at(), want.result));
        }
        let stats = if want.stats.is_empty() { BTreeMap::new() } else { runner.stats() };
        for (key, value) in &want.stats {
            let full = STATS.iter().find(|(short, _)| short == key).map_or(key.as_str(), |(_, full)| full);
            let total = full.ends_with(".allocated") || full.ends_with(".freed") || full.ends_with(".peak");
            if undefined_order && full.starts_with("inactive_split") && total {
                continue;
            }
            if stats.get(full) != Some(value) {
                return Err(format!("{}\n{full}: have {:?}, want {value}", at(), stats.get(full)));
            }
            compared += 1;
        }
    }
    Ok(compared)
}

#[test]
#[ignore = "needs PyTorch's library: set PYTORCH_ORACLE to the program that shared/oracle/build.sh makes"]
fn random_programs_agree_with_pytorch() {
    let oracle = std::env::var("PYTORCH_ORACLE").expect("PYTORCH_ORACLE names the oracle program");
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (first, programs) = (number("FIRST_SEED", 0), number("PROGRAMS", 1000));
    let mut compared = 0;
    let mut failures = Vec::new();
    for seed in first..first + programs {
        match compare(&oracle, seed) {
            Ok(n) => compared += n,
            Err(text) => failures.push(text),
        }
        assert!(failures.len() < 3, "{}", failures.join("\n\n"));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    println!("{programs} programs from seed {first}: {compared} events and counters agree");
}
