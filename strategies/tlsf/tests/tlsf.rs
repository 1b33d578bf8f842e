//! What is special about `tlsf`: when segments come and go, and what waits for other streams.

use allocator_core::{
    AllocError, Block, CallKind, Configure, Device, DeviceError, FaultDevice, FreeFailure, Machine, PoolId, Request,
    SimDevice, Span, SpanState, Strategy, StreamId,
};
use strategy_tlsf::{Params, Tlsf};

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

fn start(params: Params) -> (SimDevice, Tlsf) {
    let dev = SimDevice::new(4 << 30);
    let strategy = Tlsf::new(params, &dev.info()).unwrap();
    (dev, strategy)
}

fn take(strategy: &mut Tlsf, dev: &mut SimDevice, size: u64, stream: StreamId) -> Block {
    strategy.allocate(dev, Request::new(size, stream)).unwrap()
}

fn calls(dev: &SimDevice, kind: CallKind) -> u64 {
    dev.usage().calls[kind as usize]
}

fn states(strategy: &Tlsf) -> Vec<(u64, SpanState)> {
    let mut spans = Vec::new();
    strategy.inspect(&mut |span: Span| spans.push((span.size, span.state)));
    spans
}

#[test]
fn segments_grow_and_each_stream_has_its_own() {
    let (mut dev, mut tlsf) = start(Params::default());
    let _a = take(&mut tlsf, &mut dev, 1, A);
    assert_eq!(dev.usage().reserved, 32 * MIB);
    let _b = take(&mut tlsf, &mut dev, 1, B);
    assert_eq!(dev.usage().reserved, 64 * MIB);
    let _c = take(&mut tlsf, &mut dev, 32 * MIB, A);
    assert_eq!(dev.usage().reserved, 128 * MIB);
    let _d = take(&mut tlsf, &mut dev, 300 * MIB, A);
    assert_eq!(dev.usage().reserved, 428 * MIB, "a segment of its own");
    assert_eq!(calls(&dev, CallKind::Malloc), 4);
}

#[test]
fn one_empty_segment_stays_and_the_next_goes_back() {
    for (keep_empty, left) in [(0, 0), (1, 300 * MIB), (2, 700 * MIB)] {
        let (mut dev, mut tlsf) = start(Params { keep_empty, ..Params::default() });
        let first = take(&mut tlsf, &mut dev, 300 * MIB, A);
        let second = take(&mut tlsf, &mut dev, 400 * MIB, A);
        tlsf.free(&mut dev, first).unwrap();
        tlsf.free(&mut dev, second).unwrap();
        assert_eq!(dev.usage().reserved, left, "keep_empty {keep_empty}");
        assert_eq!(tlsf.trim(&mut dev, 0), Ok(left));
        assert_eq!(dev.usage().reserved, 0);
    }
}

#[test]
fn a_free_whose_segment_the_device_refuses_changes_nothing() {
    let error = DeviceError::Driver { call: CallKind::Free, code: 999 };
    let mut dev = FaultDevice::new(SimDevice::new(4 << 30)).fail_nth(CallKind::Free, 1, error);
    let mut tlsf = Tlsf::new(Params { keep_empty: 0, ..Params::default() }, &dev.info()).unwrap();
    let block = tlsf.allocate(&mut dev, Request::new(MIB, A)).unwrap();
    let before = states(&tlsf);
    let refused = tlsf.free(&mut dev, block).unwrap_err();
    assert_eq!((refused.reason, states(&tlsf)), (FreeFailure::Device(error), before));
    tlsf.free(&mut dev, refused.block).unwrap();
    assert_eq!(dev.usage().reserved, 0);
}

#[test]
fn a_block_of_two_streams_waits_for_the_other_one() {
    let (mut dev, mut tlsf) = start(Params::default());
    let block = take(&mut tlsf, &mut dev, MIB, A);
    let ptr = block.ptr();
    tlsf.record_stream(&mut dev, &block, A).unwrap();
    for _ in 0..2 {
        tlsf.record_stream(&mut dev, &block, B).unwrap();
    }
    dev.work(B, 1_000_000).unwrap();
    tlsf.free(&mut dev, block).unwrap();
    assert_eq!(calls(&dev, CallKind::Fence), 1);
    assert_eq!(states(&tlsf), [(MIB, SpanState::Pending), (31 * MIB, SpanState::Cached)]);
    assert_ne!(take(&mut tlsf, &mut dev, MIB, A).ptr(), ptr);
    dev.host_work(2_000_000);
    assert_eq!(take(&mut tlsf, &mut dev, MIB, A).ptr(), ptr);
    assert_eq!(calls(&dev, CallKind::Sync), 0);
}

#[test]
fn want_of_memory_ends_waits_and_gives_empty_segments_of_all_streams_back() {
    let (mut dev, mut tlsf) = start(Params::default());
    let big = 3 << 30;
    let block = take(&mut tlsf, &mut dev, big, A);
    tlsf.record_stream(&mut dev, &block, StreamId::ticket(0)).unwrap();
    tlsf.free(&mut dev, block).unwrap();
    let block = take(&mut tlsf, &mut dev, big, B);
    assert_eq!((calls(&dev, CallKind::Sync), calls(&dev, CallKind::Free), dev.usage().reserved), (1, 1, big));
    assert_eq!(tlsf.allocate(&mut dev, Request::new(big, A)), Err(AllocError::OutOfMemory));
    tlsf.free(&mut dev, block).unwrap();
    take(&mut tlsf, &mut dev, big, A);
}

#[test]
fn a_request_for_a_pool_is_refused() {
    let (mut dev, mut tlsf) = start(Params::default());
    let request = Request::new(512, A).in_pool(PoolId(2));
    assert_eq!(tlsf.allocate(&mut dev, request), Err(AllocError::UnknownPool));
    assert_eq!(dev.usage().calls.iter().sum::<u64>(), 0);
}
