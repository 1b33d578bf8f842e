//! What is special about `bfc`: how regions grow, when chunks are split, and when memory changes its stream.

use allocator_core::{
    AllocError, Block, Call, CallKind, Configure, DeviceError, FaultDevice, LogDevice, Machine, PoolId, Request,
    SimDevice, Span, SpanState, Strategy, StreamId,
};
use strategy_bfc::{Bfc, Params};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

struct Rig<D: Machine> {
    dev: LogDevice<D>,
    bfc: Bfc,
}

impl Rig<SimDevice> {
    fn new(capacity: u64, params: Params) -> Rig<SimDevice> {
        Rig::on(SimDevice::new(capacity), params)
    }
}

impl<D: Machine> Rig<D> {
    fn on(dev: D, params: Params) -> Rig<D> {
        let bfc = Bfc::new(params, &dev.info()).unwrap();
        Rig { dev: LogDevice::new(dev), bfc }
    }

    fn try_allocate(&mut self, size: u64, stream: StreamId) -> Result<Block, AllocError> {
        self.bfc.allocate(&mut self.dev, Request::new(size, stream))
    }

    fn allocate(&mut self, size: u64, stream: StreamId) -> Block {
        self.try_allocate(size, stream).unwrap()
    }

    fn free(&mut self, block: Block) {
        self.bfc.free(&mut self.dev, block).unwrap();
    }

    /// The sizes that the device was asked for, and how often it was called in another way.
    fn mallocs(&self) -> Vec<u64> {
        let sizes = self.dev.steps().iter().filter_map(|step| match step.call {
            Call::Malloc { size } => Some(size),
            _ => None,
        });
        sizes.collect()
    }

    fn calls(&self, kind: CallKind) -> u64 {
        self.dev.usage().calls[kind as usize]
    }

    fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        self.bfc.inspect(&mut |span| spans.push(span));
        spans
    }

    fn live_bytes(&self) -> u64 {
        self.spans().iter().filter(|span| span.state == SpanState::Live).map(|span| span.size).sum()
    }
}

#[test]
fn regions_double_and_the_last_one_takes_what_the_limit_leaves() {
    let mut rig = Rig::new(64 * MIB, Params { memory_fraction: 0.5, ..Params::default() });
    let mut blocks: Vec<Block> = [MIB, 2 * MIB, 9 * MIB].map(|size| rig.allocate(size, A)).into();
    assert_eq!(rig.mallocs(), [2 * MIB, 4 * MIB, 16 * MIB], "9 MiB do not fit into the 8 MiB that were next");
    // A region that was doubled for its request does not double the next one again: 16 MiB, of which 10 are left.
    blocks.push(rig.allocate(8 * MIB, A));
    assert_eq!(rig.mallocs()[3..], [10 * MIB]);
    assert_eq!(rig.try_allocate(8 * MIB, A), Err(AllocError::OutOfMemory));
    assert_eq!(rig.try_allocate(33 * MIB, A), Err(AllocError::OutOfMemory));
    assert_eq!((rig.mallocs().len(), rig.calls(CallKind::Free)), (4, 0));
    blocks.into_iter().for_each(|block| rig.free(block));
    assert_eq!(rig.bfc.trim(&mut rig.dev, 20 * MIB), Ok(16 * MIB));
    assert_eq!(rig.bfc.trim(&mut rig.dev, 0), Ok(16 * MIB));
    rig.allocate(MIB, A);
    assert_eq!(rig.mallocs()[4..], [2 * MIB], "an empty strategy starts anew");
}

#[test]
fn one_region_as_jax_takes_it() {
    let mut rig = Rig::new(64 * MIB, Params { memory_fraction: 0.75, preallocate: true, ..Params::default() });
    let first = rig.allocate(1, A);
    rig.allocate(40 * MIB, A);
    assert_eq!(rig.mallocs(), [48 * MIB]);
    assert_eq!(rig.try_allocate(9 * MIB, A), Err(AllocError::OutOfMemory));
    rig.free(first);
    assert_eq!(rig.mallocs().len(), 1);
}

#[test]
fn a_chunk_is_split_from_twice_the_request_on_or_where_much_is_left() {
    let params = Params { initial_region: 16 * MIB, max_slack: 6 * MIB, ..Params::default() };
    for (size, params, served) in [
        (8 * MIB, params.clone(), 8 * MIB),
        (8 * MIB + 512, Params { max_slack: 8 * MIB, ..params.clone() }, 16 * MIB),
        (10 * MIB, params.clone(), 10 * MIB),
        (10 * MIB + 1, params.clone(), 16 * MIB),
        (12 * MIB, params.clone(), 16 * MIB),
        // 1/16 of the limit of 64 MiB.
        (12 * MIB, Params { fragmentation_fraction: 0.0625, ..params }, 12 * MIB),
    ] {
        let mut rig = Rig::new(64 * MIB, params);
        rig.allocate(size, A);
        assert_eq!(rig.live_bytes(), served, "{size}");
    }
}

#[test]
fn the_best_fit_is_the_smallest_chunk_at_the_lowest_address() {
    let mut rig = Rig::new(64 * MIB, Params::default());
    let sizes = [64, 1, 40, 1, 48, 1, 40, 1].map(|size| rig.allocate(size * KIB, A));
    let places: Vec<u64> = sizes.iter().map(Block::ptr).collect();
    for (at, block) in sizes.into_iter().enumerate() {
        if at % 2 == 0 {
            rig.free(block);
        }
    }
    let got = [33, 33, 33, 33].map(|size| rig.allocate(size * KIB, A).ptr());
    assert_eq!(got, [places[2], places[6], places[4], places[0]]);
}

#[test]
fn unused_regions_go_back_where_they_make_room() {
    for garbage_collection in [true, false] {
        let mut rig = Rig::new(16 * MIB, Params { garbage_collection, ..Params::default() });
        let (a, b) = (rig.allocate(6 * MIB, A), rig.allocate(7 * MIB, A));
        rig.free(a);
        rig.free(b);
        assert_eq!(rig.mallocs(), [8 * MIB, 8 * MIB]);
        rig.allocate(12 * MIB, A);
        // Collected, or given back after a wait when all else has failed.
        let (size, syncs) = if garbage_collection { (16 * MIB, 0) } else { (12 * MIB, 1) };
        assert_eq!((rig.mallocs()[2..].to_vec(), rig.calls(CallKind::Sync)), (vec![size], syncs));
        assert_eq!(rig.calls(CallKind::Free), 2);
    }
}

/// Sizes that the device is asked for in a run of requests, when it refuses the calls of those numbers.
fn asked(initial_region: u64, refused: &[u64], requests: &[u64]) -> Vec<u64> {
    let dev = FaultDevice::new(SimDevice::new(64 * MIB));
    let refuse = |dev: FaultDevice<_>, &nth: &u64| dev.fail_nth(CallKind::Malloc, nth, DeviceError::OutOfMemory);
    let mut rig = Rig::on(refused.iter().fold(dev, refuse), Params { initial_region, ..Params::default() });
    for &size in requests {
        rig.allocate(size, A);
    }
    rig.mallocs()
}

#[test]
fn a_region_that_the_device_refuses_shrinks_by_tenths() {
    let sizes = asked(10 * MIB, &[1, 2, 4], &[MIB, 9 * MIB]);
    let third = (81 * MIB / 10).next_multiple_of(512);
    assert_eq!(sizes, [10 * MIB, 9 * MIB, third, 20 * MIB, 18 * MIB]);
    assert_eq!(asked(5 * 512, &[1, 2, 3, 4], &[1]), [5, 4, 3, 2, 1].map(|units| units * 512), "small ones, by units");
}

#[test]
fn an_idle_stream_leaves_its_memory_to_the_others() {
    let mut rig = Rig::new(64 * MIB, Params::default());
    let block = rig.allocate(2 * MIB, A);
    let ptr = block.ptr();
    rig.free(block);
    rig.dev.host_work(1_000_000);
    assert_eq!(rig.allocate(2 * MIB, B).ptr(), ptr);
    assert_eq!((rig.mallocs().len(), rig.calls(CallKind::Sync), rig.calls(CallKind::OrderAfter)), (1, 0, 0));
}

#[test]
fn a_busy_stream_keeps_its_memory_until_there_is_no_other() {
    let mut rig = Rig::new(4 * MIB, Params::default());
    let block = rig.allocate(2 * MIB, A);
    let ptr = block.ptr();
    rig.dev.work(A, 1_000_000_000).unwrap();
    rig.free(block);
    let other = rig.allocate(2 * MIB, B);
    assert_ne!(other.ptr(), ptr);
    let borrowed = rig.allocate(2 * MIB, B);
    assert_eq!((borrowed.ptr(), rig.calls(CallKind::OrderAfter), rig.calls(CallKind::Sync)), (ptr, 1, 0));
    assert!(rig.dev.usage().now_ns < 1_000_000_000, "the host has not waited");
}

#[test]
fn a_block_in_use_elsewhere_waits_for_its_fences() {
    let mut rig = Rig::new(64 * MIB, Params::default());
    let block = rig.allocate(MIB, A);
    let ptr = block.ptr();
    for stream in [B, A, B, StreamId::ticket(3), StreamId::ticket((1 << 31) - 1)] {
        rig.bfc.record_stream(&mut rig.dev, &block, stream).unwrap();
    }
    rig.free(block);
    rig.dev.host_work(1_000_000);
    assert_eq!(rig.calls(CallKind::Fence), 3);
    for ticket in [3, (1 << 31) - 1] {
        let other = rig.allocate(512, A);
        assert_ne!(other.ptr(), ptr);
        assert_eq!(rig.spans().iter().filter(|span| span.state == SpanState::Pending).count(), 1);
        rig.free(other);
        rig.dev.complete(ticket);
    }
    assert_eq!(rig.allocate(MIB, A).ptr(), ptr);
    assert_eq!(rig.dev.steps().iter().filter(|step| step.call == Call::Retired { ptr }).count(), 1);
}

#[test]
fn a_request_for_a_pool_is_refused() {
    let mut rig = Rig::new(64 * MIB, Params::default());
    let request = Request::new(512, A).in_pool(PoolId(2));
    assert_eq!(rig.bfc.allocate(&mut rig.dev, request), Err(AllocError::UnknownPool));
    assert!(rig.dev.steps().is_empty());
}

#[test]
fn counters_are_tensorflow_s() {
    let mut rig = Rig::new(64 * MIB, Params::default());
    let (a, _b) = (rig.allocate(512 * KIB, A), rig.allocate(256 * KIB, A));
    rig.free(a);
    let mut counters = Vec::new();
    rig.bfc.counters(&mut |name, value| counters.push((name.to_string(), value as u64)));
    let expected = [
        ("num_allocs", 2),
        ("bytes_in_use", 256 * KIB),
        ("peak_bytes_in_use", 768 * KIB),
        ("bytes_limit", 64 * MIB),
        ("pool_bytes", 2 * MIB),
        ("largest_free_block_bytes", 1280 * KIB),
    ];
    assert_eq!(counters, expected.map(|(name, value)| (name.to_string(), value)));
}
