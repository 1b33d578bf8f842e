//! Random settings texts, as PyTorch 2.11's own parser reads and refuses them.
//!
//! Run by hand, like the differential test:
//!
//! ```sh
//! PYTORCH_ORACLE=path/to/oracle cargo test -p strategy-caching --test settings -- --ignored --nocapture
//! ```

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::io::Write;
use std::process::{Command, Stdio};
use strategy_caching::Settings;

const KEYS: [&str; 18] = [
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "roundup_power2_divisions",
    "large_segment_size_mb",
    "expandable_segments",
    "per_process_memory_fraction",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "throw_on_cudamalloc_oom",
    "nonsense",
];
const VALUES: [&str; 34] = [
    "True",
    "False",
    "true",
    "0",
    "1",
    "2",
    "4",
    "8",
    "3",
    "16",
    "19",
    "20",
    "21",
    "25abc",
    "-1",
    "+32",
    "40",
    "64",
    "100",
    "128",
    "256",
    "0.5",
    "0.25x",
    "1.0",
    "1.5",
    "-0.5",
    ".5",
    "5e-1",
    "abc",
    "[4:2]",
    "[256:1,512:2,1024:4,>:8]",
    "[>:4]",
    "[64:8,>:0]",
    "[32:2,3:4]",
];

/// Values that the option may have.
fn fitting(key: &str) -> &'static [&'static str] {
    match key {
        "max_split_size_mb" | "max_non_split_rounding_mb" => &["20", "21", "40", "100", "25abc", "-1"],
        "large_segment_size_mb" => &["11", "16", "20", "40"],
        "garbage_collection_threshold" => &["0.5", "0.25x", ".5", "5e-1"],
        "per_process_memory_fraction" => &["0", "0.5", "1.0"],
        "roundup_power2_divisions" => &["4", "[4:2]", "[256:1,512:2,1024:4,>:8]", "[>:4]", "[64:8,>:0]", "[4:2,:8:4]"],
        "pinned_num_register_threads" => &["1", "8", "128"],
        "pinned_reserve_segment_size_mb" => &["1", "256"],
        _ => &["True", "False"],
    }
}

fn text(rng: &mut Pcg64) -> String {
    let options = rng.random_range(1..4);
    let mut text = String::new();
    for option in 0..options {
        if option > 0 {
            text.push(',');
        }
        let key = KEYS[rng.random_range(0..KEYS.len())];
        let values = if rng.random_range(0..6) == 0 { &VALUES } else { fitting(key) };
        let value = values[rng.random_range(0..values.len())];
        match rng.random_range(0..60) {
            0 => text.push_str(key),
            1 => text.push_str(&format!("{key},{value}")),
            2 => text.push_str(&format!("{key}::{value}")),
            3 => text.push_str(&format!("{key}:{value},")),
            4 => text.push_str(&format!(",{key}:{value}")),
            _ => text.push_str(&format!("{key}:{value}")),
        }
    }
    text
}

/// What the oracle prints of the settings in force.
fn shown(settings: &Settings) -> String {
    let divisions: String = settings.roundup_power2_divisions.iter().map(|d| format!(" {d}")).collect();
    format!(
        "{divisions}  mss={} mnsr={} lss={} gc={} exp={}",
        settings.max_split_size,
        settings.max_non_split_rounding,
        settings.large_segment_size,
        settings.garbage_collection_threshold,
        u8::from(settings.expandable_segments)
    )
}

#[test]
#[ignore = "needs PyTorch's library: set PYTORCH_ORACLE to the program that shared/oracle/build.sh makes"]
fn random_settings_agree_with_pytorch() {
    let oracle = std::env::var("PYTORCH_ORACLE").expect("PYTORCH_ORACLE names the oracle program");
    let mut rng = Pcg64::seed_from_u64(1);
    let texts: Vec<String> = (0..20_000).map(|_| text(&mut rng)).collect();
    let mut child =
        Command::new(&oracle).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the oracle starts");
    let mut input = child.stdin.take().expect("a pipe");
    let program: String = texts.iter().map(|text| format!("conf {text}\ndiv\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(program.as_bytes()));
    let output = child.wait_with_output().expect("output");
    writer.join().expect("the writer").expect("the oracle reads everything");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = output.lines().peekable();
    let mut settings = Settings::default();
    let mut refused = 0;
    for text in &texts {
        assert_eq!(lines.next(), Some(format!("> conf {text}").as_str()));
        let error = lines.next_if(|line| line.contains("!!")).map(|line| line.trim_start_matches([' ', '!']));
        let have = settings.parse(text).map_err(|error| error.0);
        match (&have, error) {
            // PyTorch puts its source position before the text of an internal assertion.
            (Err(have), Some(error)) if error.ends_with(have.as_str()) => {}
            (Ok(()), None) => {}
            _ => panic!("{text}: have {have:?}, want {error:?}"),
        }
        refused += usize::from(error.is_some());
        assert_eq!(lines.next(), Some("> div"));
        assert_eq!(lines.next(), Some(shown(&settings).as_str()), "{text}");
    }
    println!("{} settings texts agree, {refused} of them refused", texts.len());
}
