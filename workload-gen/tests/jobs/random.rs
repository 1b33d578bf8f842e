//! Workloads that chance makes have the statistics they were asked for.

use crate::run::{Run, run};
use workload_gen::Event;
use workload_gen::spec::Spec;

fn refusal(line: &str) -> String {
    Spec::parse(line).expect_err("refused").to_string()
}

/// Little's law: what lives is a mean size times a mean lifetime.
#[test]
fn churn_has_the_sizes_and_lifetimes_it_was_asked_for() {
    let run = run("churn:allocations=20000,size=uniform(1,999),lifetime=uniform(1,399),grain=1KiB");
    let mean = run.blocks.iter().map(|block| block.size).sum::<u64>() as f64 / 20_000.0;
    assert!((mean / (500.0 * 1024.0) - 1.0).abs() < 0.02, "{mean}");
    let live: Vec<u64> = (0..8).map(|at| run.live_at(5_000 + at * 4_000).map(|block| block.size).sum()).collect();
    let live = live.iter().sum::<u64>() as f64 / 8.0;
    assert!((live / (500.0 * 1024.0 * 200.0) - 1.0).abs() < 0.1, "{live}");
    let births: Vec<usize> = run.blocks.iter().map(|block| block.born).collect();
    let lifetimes: Vec<usize> = (run.blocks.iter().enumerate())
        .filter_map(|(number, block)| block.died.map(|died| births.partition_point(|&born| born < died) - number))
        .collect();
    assert_eq!((lifetimes.iter().min(), lifetimes.iter().max()), (Some(&1), Some(&399)));
}

#[test]
fn churn_stays_within_what_may_live_and_comes_near() {
    let run = run("churn:allocations=5000,size=uniform(1,1000),lifetime=100000,live=50000");
    assert!(run.peak() <= 50_000 && run.peak() > 49_000, "{}", run.peak());
    // All lifetimes are the same, so whoever dies early is the oldest.
    let deaths: Vec<usize> = run.blocks.iter().filter_map(|block| block.died).collect();
    assert!(deaths.is_sorted() && deaths.len() > 4_000);
}

#[test]
fn what_churn_keeps_stays_to_the_end() {
    let run = run("churn:allocations=5000,size=100,lifetime=10,kept=0.1");
    let kept: Vec<_> = run.blocks.iter().filter(|block| block.label == "buffer kept").collect();
    assert!((400..600).contains(&kept.len()), "{}", kept.len());
    assert!(kept.iter().all(|block| block.died.is_none()));
    let tight = self::run("churn:allocations=5000,size=100,lifetime=10,kept=1,live=20000");
    let kept: u64 = tight.blocks.iter().filter(|block| block.label == "buffer kept").map(|block| block.size).sum();
    assert_eq!(kept, 10_000);
    assert!(tight.peak() <= 20_000);
}

/// Another count of streams leaves sizes and lifetimes as they were.
#[test]
fn churn_spreads_over_its_streams() {
    let (one, four) = (run("churn:allocations=4000"), run("churn:allocations=4000,streams=4"));
    let counts: Vec<usize> = (0..4).map(|stream| four.blocks.iter().filter(|b| b.stream == stream).count()).collect();
    assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    let shape = |run: &Run| run.blocks.iter().map(|block| (block.size, block.born, block.died)).collect::<Vec<_>>();
    assert_eq!(shape(&one), shape(&four));
    assert_eq!((one.trace.header.streams.len(), four.trace.header.streams.len()), (1, 4));
}

#[test]
fn seeds_make_other_traces() {
    for line in ["churn:allocations=100", "dataframe:allocations=100", "pow2:allocations=100", "pipeline:items=100"] {
        let joint = if line.ends_with(':') { "" } else { "," };
        let (one, two) = (run(&format!("{line}{joint}seed=1")), run(&format!("{line}{joint}seed=2")));
        assert!(one.trace.events != two.trace.events, "{line}");
    }
}

/// RMM's benchmark: as many frees as allocations, never above the limit, uniform sizes.
#[test]
fn dataframes_follow_the_benchmark() {
    let run = run("dataframe:allocations=4000");
    assert_eq!(run.blocks.len(), 4_000);
    assert!(run.blocks.iter().all(|block| block.died.is_some() && block.size <= 4096 << 20));
    assert!(run.peak() < 16_000 << 20 && run.peak() > 15_000 << 20);
    // Small ones find room more often, so the mean is below the middle.
    let mean = run.blocks.iter().map(|block| block.size >> 20).sum::<u64>() / 4_000;
    assert!((1_200..2_000).contains(&mean), "{mean} MiB");
}

/// Without the limit, the share of allocations is the one that was asked for until all have been made.
#[test]
fn dataframes_allocate_in_their_share_of_steps() {
    let run = run("dataframe:allocations=10000,most=1MiB,live=1TiB");
    let last = run.blocks.last().expect("10000 of them").born as f64;
    assert!((10_000.0 / last - 0.73).abs() < 0.02, "{last} steps");
}

#[test]
fn dataframes_fit_their_device() {
    assert!(run("dataframe:device=8GiB").peak() < 8 << 30);
    let error = refusal("dataframe:device=8GiB,live=9GiB");
    assert_eq!(error, "dataframe: live=9GiB is more than device=8GiB");
    assert!(refusal("dataframe:device=2GiB").contains("most=4096MiB"));
}

/// Whoever reads a block of another stream has waited for it, and the owner knows of it before the block is freed.
#[test]
fn items_are_handed_over_safely() {
    for shape in ["chain", "fan"] {
        let record = run(&format!("pipeline:items=60,streams=5,shape={shape},sync=0"));
        let wait = run(&format!("pipeline:items=60,streams=5,shape={shape},sync=0,handover=wait"));
        let uses = |run: &Run| run.trace.events.iter().filter(|event| matches!(event, Event::Use { .. })).count();
        assert_eq!((uses(&record), uses(&wait)), (if shape == "chain" { 240 } else { 60 }, 0));
        let mut owners = vec![0; record.trace.header.slots as usize];
        for (at, event) in record.trace.events.iter().enumerate() {
            match *event {
                Event::Alloc { slot, stream, .. } => owners[slot as usize] = stream.0,
                Event::Use { slot, stream } => {
                    assert!(stream.0 != owners[slot as usize]);
                    let Event::Wait { stream: reader, on } = record.trace.events[at - 1] else {
                        panic!("{shape}: event {at}: nobody waited");
                    };
                    assert_eq!((reader, on.0), (stream, owners[slot as usize]));
                }
                _ => {}
            }
        }
        let backward = |event: &&Event| matches!(event, Event::Wait { stream, on } if stream < on);
        assert_eq!(wait.trace.events.iter().filter(backward).count(), uses(&record));
        assert!(!record.trace.events.iter().any(|event| backward(&event)));
    }
}

#[test]
fn a_pipeline_holds_its_queues_and_ends_empty() {
    let shallow = run("pipeline:items=50,streams=3,size=1000,temporaries=0,depth=0");
    let deep = run("pipeline:items=50,streams=3,size=1000,temporaries=0,depth=10");
    assert!([&shallow, &deep].iter().all(|run| run.blocks.iter().all(|block| block.died.is_some())));
    // Ten items wait before each of the two consumers, and a stage has its input and its output.
    assert_eq!((shallow.peak(), deep.peak()), (2_000, 22_000));
    assert_eq!(shallow.blocks.len(), 150);
}

#[test]
fn values_that_do_not_go_together_are_refused_by_name() {
    let cases = [
        ("robson:live=64,rounds=7", ["rounds=7", "live=64"]),
        ("comb:gap=64MiB,wide=32MiB", ["wide=32MiB", "gap=64MiB"]),
        ("comb:teeth=2,wide=1GiB", ["wide=1GiB", "teeth=2"]),
        ("saw:period=16,iterations=16", ["period=16", "iterations=16"]),
        ("pow2:least=20,most=10", ["least=20", "most=10"]),
        ("pow2:most=30,live=1GiB", ["live=1GiB", "most"]),
        ("dataframe:least=2MiB,most=1MiB", ["least=2MiB", "most=1MiB"]),
        ("churn:size=1000,grain=1MiB,live=1MiB", ["live=1MiB", "size"]),
    ];
    for (line, words) in cases {
        let error = refusal(line);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
