//! What only a real card can show. Without one, each test says why it is skipped; `scripts/gpu-check` runs them from a
//! carried folder. The program to run is that of the build, or `HARNESS`.

mod common;
mod patterns;

use allocator_core::cuda::{Card, CudaDevice};
use allocator_core::{CallKind, Device, DeviceError, Machine, PoolId, Request, SimDevice, Strategy, StreamId, Sync};
use harness::integrity::integrity;
use harness::interrupt::Interrupt;
use harness::registry::{Configured, STRATEGIES};
use harness::replay::Outcome;
use patterns::{CORRUPTING, churn, paged::Paged, toy::Toy};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PAGE: u64 = 2 << 20;
const MIB: u64 = 1 << 20;

/// One test at a time: each looks at the memory of the whole card.
static TURN: Mutex<()> = Mutex::new(());

fn card() -> Option<(Arc<Card>, MutexGuard<'static, ()>)> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Card::open(0) {
        Ok(card) => Some((card, turn)),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn free(card: &Card) -> u64 {
    card.memory().unwrap().0
}

#[test]
fn memory_is_what_was_asked_for_and_comes_back() {
    let Some((card, _turn)) = card() else { return };
    let before = free(&card);
    let mut dev = CudaDevice::new(card.clone(), None).unwrap();
    dev.watch_memory().unwrap();
    let info = dev.info();
    assert_eq!((info.granularity, info.alignment), (PAGE, 512));
    let ptr = dev.malloc(3 * MIB).unwrap();
    assert_eq!((dev.usage().reserved, dev.usage().device_used), (3 * MIB, 2 * PAGE));
    let va = dev.reserve(8 * PAGE).unwrap();
    let handles = [dev.create(PAGE).unwrap(), dev.create(2 * PAGE).unwrap()];
    dev.map(va, &handles).unwrap();
    assert_eq!((dev.usage().reserved, dev.usage().device_used), (3 * MIB + 3 * PAGE, 5 * PAGE));
    dev.release(handles[0]).unwrap();
    assert_eq!(dev.usage().reserved, 3 * MIB + 3 * PAGE, "mapped memory stays");
    dev.unmap(va, 3 * PAGE).unwrap();
    assert_eq!(dev.usage().reserved, 3 * MIB + 2 * PAGE);
    dev.free(ptr).unwrap();
    assert!(dev.usage().calls[CallKind::Map as usize] == 2 && dev.usage().call_ns[CallKind::Map as usize] > 1000);
    // One handle, a range and a mapping less are left behind.
    dev.map(va, &handles[1..]).unwrap();
    drop(dev);
    assert_eq!(free(&card), before, "what is dropped is given back");
}

#[test]
fn mistakes_are_errors_and_harm_nothing() {
    let Some((card, _turn)) = card() else { return };
    let before = free(&card);
    let mut dev = CudaDevice::new(card.clone(), None).unwrap();
    let invalid = |kind| Err(DeviceError::Invalid(kind));
    assert_eq!(dev.malloc(0), Err(DeviceError::Invalid(CallKind::Malloc)));
    assert_eq!(dev.free(0x1000), invalid(CallKind::Free));
    assert_eq!(dev.reserve(PAGE + 1), Err(DeviceError::Invalid(CallKind::Reserve)));
    assert_eq!(dev.malloc(1 << 50), Err(DeviceError::OutOfMemory));
    assert_eq!(dev.create(1 << 50), Err(DeviceError::OutOfMemory));
    let va = dev.reserve(2 * PAGE).unwrap();
    let handle = dev.create(PAGE).unwrap();
    assert_eq!(dev.map(va + 2 * PAGE, &[handle]), invalid(CallKind::Map), "behind the range");
    assert_eq!(dev.unmap(va, PAGE), invalid(CallKind::Unmap));
    dev.map(va, &[handle]).unwrap();
    assert_eq!(dev.map(va, &[handle]), invalid(CallKind::Map), "there is a mapping");
    assert_eq!(dev.unreserve(va, 2 * PAGE), invalid(CallKind::Unreserve), "with a mapping");
    dev.release(handle).unwrap();
    assert_eq!(dev.release(handle), invalid(CallKind::Release), "twice");
    let fence = dev.fence(StreamId(1)).unwrap();
    assert!(dev.poll(allocator_core::Fence { seq: fence.seq + 1, ..fence }).is_err());
    drop(dev);
    assert_eq!(free(&card), before);
    let refused = Card::open(4_000_000).unwrap_err().to_string();
    assert!(refused.contains("no CUDA device 4000000"), "{refused}");
}

#[test]
fn a_capacity_is_held_and_more_is_out_of_memory() {
    let Some((card, _turn)) = card() else { return };
    let before = free(&card);
    let mut dev = CudaDevice::new(card.clone(), Some(1 << 30)).unwrap();
    assert_eq!(dev.info().total, 1 << 30);
    let left = dev.memory_info().unwrap().free;
    assert!(left.abs_diff(1 << 30) <= PAGE, "{left}");
    assert_eq!(dev.malloc((1 << 30) + 64 * MIB), Err(DeviceError::OutOfMemory));
    let ptr = dev.malloc(900 * MIB).unwrap();
    assert_eq!(dev.create(200 * MIB), Err(DeviceError::OutOfMemory));
    dev.free(ptr).unwrap();
    drop(dev);
    assert_eq!(free(&card), before);
}

#[test]
fn streams_wait_for_work_for_each_other_and_for_tickets() {
    let Some((card, _turn)) = card() else { return };
    let mut dev = CudaDevice::new(card, None).unwrap();
    let [a, b] = [StreamId(1), StreamId(2)];
    let start = Instant::now();
    dev.work(a, 50_000_000).unwrap();
    let on_a = dev.fence(a).unwrap();
    dev.order_after(b, on_a).unwrap();
    let on_b = dev.fence(b).unwrap();
    assert_eq!((dev.poll(on_a), dev.poll(on_b)), (Ok(false), Ok(false)));
    dev.sync(Sync::Fence(on_b)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
    assert_eq!((dev.poll(on_a), dev.poll(on_b)), (Ok(true), Ok(true)));
    let ticket = dev.fence(StreamId::ticket(7)).unwrap();
    dev.order_after(a, ticket).unwrap();
    let on_a = dev.fence(a).unwrap();
    dev.sync(Sync::Stream(b)).unwrap();
    assert_eq!((dev.poll(ticket), dev.poll(on_a)), (Ok(false), Ok(false)));
    dev.complete(7);
    assert_eq!(dev.poll(ticket), Ok(true));
    dev.sync(Sync::Fence(on_a)).unwrap();
}

#[test]
fn patterns_are_written_and_compared_in_stream_order() {
    let Some((card, _turn)) = card() else { return };
    let mut dev = CudaDevice::new(card, None).unwrap();
    let ptr = dev.malloc(5 * MIB).unwrap();
    let stream = StreamId(1);
    // Sizes around a word, and one that keeps every thread busy more than once.
    for (number, size) in [1, 7, 8, 9, 4095, 5 * MIB - 3].into_iter().enumerate() {
        let number = number as u64;
        dev.fill(stream, ptr, size, number).unwrap();
        dev.check(stream, ptr, size, number, 10 + number).unwrap();
        assert_eq!(dev.take_mismatches(), Ok(Vec::new()), "{size}");
    }
    dev.fill(stream, ptr, MIB, 1).unwrap();
    dev.fill(stream, ptr + 4096, 16, 2).unwrap();
    dev.check(stream, ptr, MIB, 1, 77).unwrap();
    let found = dev.take_mismatches().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].tag, found[0].words), (77, 2));
    assert!((512..514).contains(&found[0].index) && found[0].found == (2 << 40) + found[0].index - 512, "{found:?}");
    // The last, unfinished word counts too.
    dev.fill(stream, ptr, 13, 3).unwrap();
    dev.fill(stream, ptr + 8, 5, 4).unwrap();
    dev.check(stream, ptr, 13, 3, 78).unwrap();
    assert_eq!(dev.take_mismatches().unwrap().iter().map(|one| (one.tag, one.index)).collect::<Vec<_>>(), [(78, 1)]);
}

#[test]
fn one_handle_is_the_same_memory_at_two_addresses() {
    let Some((card, _turn)) = card() else { return };
    let mut dev = CudaDevice::new(card, None).unwrap();
    let va = dev.reserve(2 * PAGE).unwrap();
    let handle = dev.create(PAGE).unwrap();
    dev.map(va, &[handle]).unwrap();
    dev.map(va + PAGE, &[handle]).unwrap();
    dev.fill(StreamId(1), va, PAGE, 9).unwrap();
    dev.sync(Sync::Device).unwrap();
    dev.check(StreamId(1), va + PAGE, PAGE, 9, 0).unwrap();
    assert_eq!(dev.take_mismatches(), Ok(Vec::new()));
}

#[test]
fn the_stream_ordered_pool_gives_back_what_is_freed() {
    let Some((card, _turn)) = card() else { return };
    if !card.stream_ordered {
        return println!("skipped: {} has no stream-ordered pools", card.name);
    }
    let before = free(&card);
    let mut dev = CudaDevice::new(card.clone(), None).unwrap();
    let ptr = dev.malloc_async(5 * MIB, StreamId(1)).unwrap();
    assert!(dev.usage().reserved >= 5 * MIB);
    dev.fill(StreamId(1), ptr, 5 * MIB, 1).unwrap();
    dev.check(StreamId(1), ptr, 5 * MIB, 1, 0).unwrap();
    assert_eq!(dev.take_mismatches(), Ok(Vec::new()));
    dev.free_async(ptr, StreamId(1)).unwrap();
    assert_eq!(dev.free_async(ptr, StreamId(1)), Err(DeviceError::Invalid(CallKind::FreeAsync)));
    dev.sync(Sync::Device).unwrap();
    dev.trim_async(0).unwrap();
    assert_eq!(dev.usage().reserved, 0);
    let _left = dev.malloc_async(5 * MIB, StreamId(1)).unwrap();
    drop(dev);
    assert_eq!(free(&card), before);
}

/// Chunks of address space come from the kernel, which puts other things between them; inside a chunk every address is the
/// card's.
#[test]
fn the_simulated_malloc_gives_the_cards_places_and_losses() {
    const CHUNK: u64 = 32 * MIB;
    let Some((card, _turn)) = card() else { return };
    let mut real = CudaDevice::new(card, None).unwrap();
    real.watch_memory().unwrap();
    let mut sim = SimDevice::new(real.info().total);
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut shift = None;
    let mut state = 5u64;
    for step in 0..3_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        if live.len() > 100 || (random.is_multiple_of(3) && !live.is_empty()) {
            let (one, other) = live.swap_remove((random / 3) as usize % live.len());
            real.free(one).unwrap();
            sim.free(other).unwrap();
        } else {
            let size = 1 + (random >> 5) % (1 << (9 + random % 19));
            let (one, other) = (real.malloc(size).unwrap(), sim.malloc(size).unwrap());
            let apart = one.wrapping_sub(other) % CHUNK;
            assert_eq!(*shift.get_or_insert(apart), apart, "step {step}, {size} bytes");
            live.push((one, other));
        }
        assert_eq!(real.usage().device_used, sim.usage().device_used, "step {step}");
    }
}

fn strategies() -> impl Iterator<Item = Configured> {
    STRATEGIES.iter().map(|entry| Configured { entry, params: entry.defaults() })
}

#[test]
fn strategies_that_keep_the_rules_pass_the_integrity_check() {
    let Some((card, _turn)) = card() else { return };
    let mut before = None;
    for seed in 1..4 {
        let trace = churn(seed, 4_000);
        for configured in strategies() {
            let mut dev = CudaDevice::new(card.clone(), Some(4 << 30)).unwrap();
            let mut strategy = configured.strategy(&mut dev).unwrap();
            let result = integrity(&trace, strategy.as_mut(), dev, &Interrupt::default());
            assert_eq!(result.finding, None, "{}", configured.entry.name);
            assert!(result.checks > 1_000 && result.cross_checks > 300, "{result:?}");
        }
        for mut healthy in [Box::new(Toy::new(None)) as Box<dyn Strategy>, Box::new(Paged::new(None))] {
            let dev = CudaDevice::new(card.clone(), Some(4 << 30)).unwrap();
            assert_eq!(integrity(&trace, healthy.as_mut(), dev, &Interrupt::default()).finding, None);
        }
        // The driver keeps something for streams that were busy once.
        let left = free(&card);
        assert_eq!(left, *before.get_or_insert(left));
    }
}

#[test]
fn memory_with_two_owners_is_found() {
    let Some((card, _turn)) = card() else { return };
    let find = |make: &dyn Fn() -> Box<dyn Strategy>| {
        (1..9).find_map(|seed| {
            let dev = CudaDevice::new(card.clone(), Some(4 << 30)).unwrap();
            let result = integrity(&churn(seed, 4_000), make().as_mut(), dev, &Interrupt::default());
            result.finding.filter(|finding| finding.outcome == Outcome::Invalid)
        })
    };
    let mut before = None;
    for bug in CORRUPTING {
        let finding = find(&|| Box::new(Toy::new(Some(bug)))).unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: event {:?}: {}", finding.event, finding.text);
        // The driver keeps something for streams that were busy once.
        let left = free(&card);
        assert_eq!(left, *before.get_or_insert(left), "{bug:?}: faulty strategies lose their memory too");
    }
    let twice = find(&|| Box::new(Paged::new(Some(patterns::paged::Bug::MapsTheSameTwice))));
    println!("MapsTheSameTwice: {}", twice.expect("a wrong mapping was not found").text);
}

#[test]
fn a_strategy_that_fails_half_way_leaves_nothing() {
    let Some((card, _turn)) = card() else { return };
    let before = free(&card);
    for configured in strategies() {
        let mut dev = CudaDevice::new(card.clone(), Some(4 << 30)).unwrap();
        let mut strategy = configured.strategy(&mut dev).unwrap();
        let mut blocks = Vec::new();
        let refused = loop {
            match strategy.allocate(&mut dev, Request::new(40 * MIB, StreamId(1)).in_pool(PoolId::DEFAULT)) {
                Ok(block) => blocks.push(block),
                Err(why) => break why,
            }
        };
        // 102 would fit; RMM's arena takes half of what is free, its bins the first gibibyte.
        assert!(blocks.len() >= 40, "{}: {refused} after {}", configured.entry.name, blocks.len());
        drop(dev);
        assert_eq!(free(&card), before, "{}", configured.entry.name);
    }
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let Some((card, _turn)) = card() else { return };
    let before = free(&card);
    let folder = std::env::temp_dir().join(format!("harness-gpu-test-{}", std::process::id()));
    let mut run = common::program()
        .args(["run", "-d", "cuda", "--pass", "time", "--repeats", "1000", "-w", "gpt2", "-o"])
        .arg(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while free(&card) + (1 << 30) > before {
        assert!(start.elapsed() < Duration::from_secs(60), "the run does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(killed.success());
    run.wait().unwrap();
    let start = Instant::now();
    while free(&card) != before {
        assert!(start.elapsed() < Duration::from_secs(20), "{} bytes are still gone", before - free(&card));
        std::thread::sleep(Duration::from_millis(20));
    }
    // A run without a row leaves no folder.
    let _ = std::fs::remove_dir_all(&folder);
}
