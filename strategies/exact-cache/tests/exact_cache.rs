//! What is special about `exact-cache`: what matches, what goes back, and how little a hit does.

use allocator_core::{
    AllocError, CallKind, Configure, Device, DeviceInfo, Machine, Request, SimDevice, Strategy, StreamId,
};
use strategy_exact_cache::{ExactCache, Params, Rounding};

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

fn start(capacity: u64, params: Params) -> (SimDevice, ExactCache) {
    let dev = SimDevice::new(capacity);
    let strategy = ExactCache::new(params, &dev.info()).unwrap();
    (dev, strategy)
}

fn calls(dev: &SimDevice) -> u64 {
    dev.usage().calls.iter().sum()
}

#[test]
fn only_the_same_rounded_size_matches_and_a_hit_calls_nothing() {
    for (rounding, same, other) in [(Rounding::Page, 4097, 12 * 1024), (Rounding::Power, 4097, 8193)] {
        let (mut dev, mut strategy) = start(1 << 30, Params { rounding, ..Params::default() });
        let block = strategy.allocate(&mut dev, Request::new(8192, A)).unwrap();
        let ptr = block.ptr();
        strategy.free(&mut dev, block).unwrap();
        let before = calls(&dev);
        let block = strategy.allocate(&mut dev, Request::new(same, A)).unwrap();
        assert_eq!((block.ptr(), calls(&dev)), (ptr, before));
        strategy.free(&mut dev, block).unwrap();
        for request in [Request::new(other, A), Request::new(4096, A), Request::new(same, B)] {
            assert_ne!(strategy.allocate(&mut dev, request).unwrap().ptr(), ptr, "{request:?}");
        }
    }
}

#[test]
fn the_cache_goes_back_before_the_reserve_is_touched() {
    for (reserve_percent, frees) in [(0, 0), (5, 0), (50, 1)] {
        let (mut dev, mut strategy) = start(100 * MIB, Params { reserve_percent, ..Params::default() });
        let block = strategy.allocate(&mut dev, Request::new(20 * MIB, A)).unwrap();
        strategy.free(&mut dev, block).unwrap();
        strategy.allocate(&mut dev, Request::new(40 * MIB, A)).unwrap();
        let usage = dev.usage();
        assert_eq!(usage.calls[CallKind::Free as usize], frees, "{reserve_percent} %");
        let looks = if reserve_percent == 0 { 0 } else { 2 };
        assert_eq!(usage.calls[CallKind::MemoryInfo as usize], looks, "{reserve_percent} %");
    }
}

#[test]
fn want_of_memory_ends_the_waiting_of_shared_blocks() {
    let (mut dev, mut strategy) = start(8 * MIB, Params { reserve_percent: 0, ..Params::default() });
    for other in [B, StreamId::ticket(0)] {
        let block = strategy.allocate(&mut dev, Request::new(6 * MIB, A)).unwrap();
        strategy.record_stream(&mut dev, &block, other).unwrap();
        dev.work(B, 1_000_000_000).unwrap();
        strategy.free(&mut dev, block).unwrap();
        let block = strategy.allocate(&mut dev, Request::new(5 * MIB, A)).unwrap();
        assert_eq!(strategy.allocate(&mut dev, Request::new(5 * MIB, A)), Err(AllocError::OutOfMemory));
        strategy.free(&mut dev, block).unwrap();
    }
}

#[test]
fn a_parameter_that_makes_no_sense_is_named() {
    let info: DeviceInfo = SimDevice::new(MIB).info();
    let refusal = |params: Params| ExactCache::new(params, &info).unwrap_err().to_string();
    for page in [0, 256, 3000, 1 << 31] {
        let text = refusal(Params { page, ..Params::default() });
        assert_eq!(text, format!("page={page}: write a power of two from 512 to 1073741824"));
    }
    for cutoff in [0, 2048, 5 * MIB, 1 << 41] {
        let text = refusal(Params { cutoff, ..Params::default() });
        assert_eq!(text, format!("cutoff={cutoff}: write a power of two from page=4096 to 1099511627776"));
    }
    let text = refusal(Params { reserve_percent: 101, ..Params::default() });
    assert_eq!(text, "reserve_percent=101: write a number from 0 to 100");
}
