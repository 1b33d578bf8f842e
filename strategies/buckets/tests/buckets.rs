//! What is special about `buckets`: who shares a slab, when a slab goes back, and what an empty one may become.

use allocator_core::{
    AllocError, Block, CallKind, Configure, Device, DeviceError, FaultDevice, FreeFailure, Machine, Request, SimDevice,
    Strategy, StreamId,
};
use strategy_buckets::{Buckets, Params};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

fn start(params: Params) -> (SimDevice, Buckets) {
    let dev = SimDevice::new(64 * MIB);
    let strategy = Buckets::new(params, &dev.info()).unwrap();
    (dev, strategy)
}

fn mallocs(dev: &SimDevice) -> u64 {
    dev.usage().calls[CallKind::Malloc as usize]
}

fn allocate(dev: &mut SimDevice, strategy: &mut Buckets, size: u64, stream: StreamId) -> Block {
    strategy.allocate(dev, Request::new(size, stream)).unwrap()
}

#[test]
fn a_class_fills_its_slab_before_it_gets_another() {
    let (mut dev, mut strategy) = start(Params::default());
    let blocks: Vec<Block> = (0..4).map(|_| allocate(&mut dev, &mut strategy, 512 * KIB, A)).collect();
    assert_eq!((mallocs(&dev), dev.usage().reserved), (1, 2 * MIB));
    let ptrs: Vec<u64> = blocks.iter().map(|block| block.ptr() - blocks[0].ptr()).collect();
    assert_eq!(ptrs, [0, 512 * KIB, MIB, MIB + 512 * KIB]);
    allocate(&mut dev, &mut strategy, 512 * KIB, A);
    allocate(&mut dev, &mut strategy, 384 * KIB, A);
    allocate(&mut dev, &mut strategy, 512 * KIB, B);
    assert_eq!(mallocs(&dev), 4, "another slab, another class, another stream");
    allocate(&mut dev, &mut strategy, 512 * KIB + 1, A);
    assert_eq!(dev.usage().reserved, 4 * 2 * MIB + 640 * KIB, "above a quarter of a slab: its own memory");
}

#[test]
fn an_empty_slab_serves_another_class() {
    let (mut dev, mut strategy) = start(Params::default());
    let small: Vec<Block> = (0..100).map(|_| allocate(&mut dev, &mut strategy, 512, A)).collect();
    for block in small {
        strategy.free(&mut dev, block).unwrap();
    }
    for size in [3 * KIB, 512 * KIB, 512] {
        let blocks: Vec<Block> = (0..4).map(|_| allocate(&mut dev, &mut strategy, size, A)).collect();
        for block in blocks {
            strategy.free(&mut dev, block).unwrap();
        }
    }
    assert_eq!(mallocs(&dev), 1);
    assert_eq!((strategy.trim(&mut dev, 0), dev.usage().reserved), (Ok(2 * MIB), 0));
}

#[test]
fn what_falls_empty_beyond_the_limit_goes_back() {
    for (keep_empty, left) in [(0, 0), (6 * MIB, 6 * MIB), (7 * MIB, 6 * MIB), (u64::MAX, 12 * MIB)] {
        let (mut dev, mut strategy) = start(Params { keep_empty, ..Params::default() });
        let sizes = [4 * MIB, 512, 6 * MIB];
        let blocks = sizes.map(|size| allocate(&mut dev, &mut strategy, size, A));
        for block in blocks {
            strategy.free(&mut dev, block).unwrap();
        }
        assert_eq!(dev.usage().reserved, left, "{keep_empty}");
    }
}

#[test]
fn a_slab_that_the_device_does_not_take_back_leaves_its_block_live() {
    let refusal = DeviceError::Invalid(CallKind::Free);
    let mut dev = FaultDevice::new(SimDevice::new(64 * MIB)).fail_nth(CallKind::Free, 1, refusal);
    let mut strategy = Buckets::new(Params { keep_empty: 0, ..Params::default() }, &dev.info()).unwrap();
    let block = strategy.allocate(&mut dev, Request::new(512, A)).unwrap();
    let refused = strategy.free(&mut dev, block).unwrap_err();
    assert_eq!(refused.reason, FreeFailure::Device(refusal));
    strategy.free(&mut dev, refused.block).unwrap();
    assert_eq!(dev.into_inner().usage().reserved, 0);
}

#[test]
fn want_of_memory_ends_the_waiting_of_shared_blocks() {
    let (mut dev, mut strategy) = start(Params::default());
    for other in [B, StreamId::ticket(0)] {
        let block = allocate(&mut dev, &mut strategy, 40 * MIB, A);
        strategy.record_stream(&mut dev, &block, other).unwrap();
        dev.work(B, 1_000_000_000).unwrap();
        strategy.free(&mut dev, block).unwrap();
        let block = allocate(&mut dev, &mut strategy, 36 * MIB, A);
        assert_eq!(strategy.allocate(&mut dev, Request::new(36 * MIB, A)), Err(AllocError::OutOfMemory));
        strategy.free(&mut dev, block).unwrap();
    }
}

#[test]
fn where_no_slab_fits_a_block_gets_memory_of_its_own() {
    let (mut dev, mut strategy) = start(Params { slab: 8 * MIB, ..Params::default() });
    let large = allocate(&mut dev, &mut strategy, 60 * MIB, A);
    let blocks: Vec<Block> = (0..10).map(|_| allocate(&mut dev, &mut strategy, 64 * KIB, A)).collect();
    assert_eq!(dev.usage().reserved, 60 * MIB + 640 * KIB);
    for block in blocks {
        strategy.free(&mut dev, block).unwrap();
    }
    strategy.free(&mut dev, large).unwrap();
    assert_eq!((strategy.trim(&mut dev, 0), dev.usage().reserved), (Ok(60 * MIB + 640 * KIB), 0));
}

#[test]
fn a_parameter_that_makes_no_sense_is_named() {
    let refusal = |params: Params| Buckets::new(params, &SimDevice::new(MIB).info()).unwrap_err().to_string();
    let base = Params::default;
    assert_eq!(refusal(Params { per_doubling: 3, ..base() }), "per_doubling=3: write 1, 2, 4 or 8");
    let power = |params, text: &str, least: u64, most: u64| {
        assert_eq!(refusal(params), format!("{text}: write a power of two from {least} to {most}"));
    };
    power(Params { smallest: 100, ..base() }, "smallest=100", 512, 1 << 30);
    power(Params { cutoff: 256, ..base() }, "cutoff=256", 512, 1 << 40);
    power(Params { tail: 32 * MIB, ..base() }, "tail=33554432", 512, 16 * MIB);
    power(Params { slab: 3 * MIB, ..base() }, "slab=3145728", 512, 1 << 40);
}
