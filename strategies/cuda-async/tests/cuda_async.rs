//! What is special about `cuda-async`: the order of its calls, and when the host waits.

use allocator_core::{
    AllocError, AsyncSettings, Block, Call, CallKind, Configure, Device, FreeFailure, LogDevice, Machine, PoolId,
    Request, SimDevice, Span, SpanState, Strategy, StreamId,
};
use strategy_cuda_async::{CudaAsync, Params};

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

fn start(capacity: u64) -> (LogDevice<SimDevice>, CudaAsync) {
    let dev = SimDevice::new(capacity).with_stream_ordered();
    let strategy = CudaAsync::new(Params::default(), &dev.info()).unwrap();
    (LogDevice::new(dev), strategy)
}

fn calls(dev: &LogDevice<SimDevice>, kind: CallKind) -> u64 {
    dev.usage().calls[kind as usize]
}

fn retired(dev: &LogDevice<SimDevice>) -> Vec<u64> {
    let told = |step: &allocator_core::Step| match step.call {
        Call::Retired { ptr } => Some(ptr),
        _ => None,
    };
    dev.steps().iter().filter_map(told).collect()
}

fn spans(strategy: &CudaAsync) -> Vec<Span> {
    let mut spans = Vec::new();
    strategy.inspect(&mut |span| spans.push(span));
    spans
}

#[test]
fn a_free_is_ordered_behind_the_other_streams_and_the_host_does_not_wait() {
    let (mut dev, mut strategy) = start(64 * MIB);
    let block = strategy.allocate(&mut dev, Request::new(3 * MIB, A)).unwrap();
    let ptr = block.ptr();
    for stream in [B, A, B, StreamId(2)] {
        strategy.record_stream(&mut dev, &block, stream).unwrap();
    }
    dev.work(B, 1_000_000_000).unwrap();
    let before = dev.steps().len();
    strategy.free(&mut dev, block).unwrap();
    let made: Vec<Call> = dev.steps()[before..].iter().map(|step| step.call.clone()).collect();
    let [Call::Fence { stream: B }, Call::OrderAfter { stream: A, fence: on_b }, rest @ ..] = &made[..] else {
        panic!("{made:?}")
    };
    let [Call::Fence { stream: StreamId(2) }, Call::OrderAfter { stream: A, .. }, free] = rest else {
        panic!("{made:?}")
    };
    assert_eq!((on_b.stream, free), (B, &Call::FreeAsync { ptr, stream: A }));
    assert!(dev.usage().now_ns < 1_000_000, "the host has waited");
    assert!(spans(&strategy).is_empty() && retired(&dev).is_empty());
    dev.trim_async(0).unwrap();
    assert_eq!(dev.usage().reserved, 3 * MIB, "the pool has it back when the other stream is done");
    assert_eq!(strategy.trim(&mut dev, 0), Ok(0), "nothing waited here; what the pool gave back it does not tell");
    assert_eq!(dev.usage().reserved, 0);
}

#[test]
fn a_block_in_use_until_tickets_end_is_freed_when_they_have() {
    let (mut dev, mut strategy) = start(64 * MIB);
    let block = strategy.allocate(&mut dev, Request::new(MIB, A)).unwrap();
    let (ptr, slot, generation) = (block.ptr(), block.slot(), block.generation());
    for stream in [StreamId::ticket(0), B, StreamId::ticket(1)] {
        strategy.record_stream(&mut dev, &block, stream).unwrap();
    }
    strategy.free(&mut dev, block).unwrap();
    for generation in [generation, generation + 1] {
        let copy = Block::new(ptr, slot, generation).unwrap();
        assert_eq!(strategy.free(&mut dev, copy).unwrap_err().reason, FreeFailure::NotLive);
    }
    for ticket in [1, 0] {
        strategy.allocate(&mut dev, Request::new(512, A)).unwrap();
        assert_eq!(calls(&dev, CallKind::FreeAsync), 0, "ticket {ticket} has not ended");
        assert_eq!(spans(&strategy).iter().filter(|span| span.state == SpanState::Pending).count(), 1);
        assert_eq!(strategy.trim(&mut dev, 1), Ok(0));
        dev.complete(ticket);
    }
    assert_eq!(strategy.trim(&mut dev, u64::MAX), Ok(0), "there is no more than may stay");
    assert!(retired(&dev).is_empty());
    assert_eq!(strategy.trim(&mut dev, MIB), Ok(MIB));
    assert_eq!(retired(&dev), [ptr]);
    assert_eq!(dev.steps().iter().filter(|step| step.call == Call::FreeAsync { ptr, stream: A }).count(), 1);
    assert_eq!(calls(&dev, CallKind::Sync), 0);
}

#[test]
fn one_fence_of_a_ticket_is_looked_at_however_many_blocks_wait() {
    let (mut dev, mut strategy) = start(64 * MIB);
    let blocks: Vec<_> = (0..100).map(|_| strategy.allocate(&mut dev, Request::new(512, A)).unwrap()).collect();
    for block in blocks {
        strategy.record_stream(&mut dev, &block, StreamId::ticket(7)).unwrap();
        strategy.free(&mut dev, block).unwrap();
    }
    strategy.allocate(&mut dev, Request::new(512, A)).unwrap();
    assert_eq!(calls(&dev, CallKind::Poll), 1);
    dev.complete(7);
    strategy.allocate(&mut dev, Request::new(512, A)).unwrap();
    assert_eq!((calls(&dev, CallKind::Poll), retired(&dev).len()), (101, 100));
    strategy.allocate(&mut dev, Request::new(512, A)).unwrap();
    assert_eq!(calls(&dev, CallKind::Poll), 101, "nothing waits any more");
}

#[test]
fn want_of_memory_has_the_host_wait_once() {
    let (mut dev, mut strategy) = start(4 * MIB);
    let request = Request::new(4 * MIB, A);
    let block = strategy.allocate(&mut dev, request).unwrap();
    dev.work(A, 1_000_000).unwrap();
    strategy.free(&mut dev, block).unwrap();
    let block = strategy.allocate(&mut dev, request).unwrap();
    assert_eq!(calls(&dev, CallKind::Sync), 1);
    // Held by a ticket: the wait ends it.
    strategy.record_stream(&mut dev, &block, StreamId::ticket(0)).unwrap();
    strategy.free(&mut dev, block).unwrap();
    let block = strategy.allocate(&mut dev, request).unwrap();
    assert_eq!((calls(&dev, CallKind::Sync), retired(&dev).len()), (2, 1));
    assert_eq!(strategy.allocate(&mut dev, request), Err(AllocError::OutOfMemory));
    assert_eq!((calls(&dev, CallKind::Sync), calls(&dev, CallKind::TrimAsync)), (3, 3));
    assert_eq!(calls(&dev, CallKind::MallocAsync), 1 + 2 + 2 + 2);
    strategy.free(&mut dev, block).unwrap();
    strategy.allocate(&mut dev, request).unwrap();
}

#[test]
fn the_pool_gets_its_settings_with_the_first_request() {
    let (mut dev, _) = start(64 * MIB);
    let params = Params { release_threshold: 5 * MIB, opportunistic: false, ..Params::default() };
    let mut strategy = CudaAsync::new(params, &dev.info()).unwrap();
    assert_eq!(strategy.trim(&mut dev, 0), Ok(0));
    strategy.allocate(&mut dev, Request::new(0, A)).unwrap();
    assert!(dev.steps().is_empty(), "there is no pool yet: {:?}", dev.steps());
    strategy.allocate(&mut dev, Request::new(512, A)).unwrap();
    strategy.allocate(&mut dev, Request::new(512, A)).unwrap();
    let settings = AsyncSettings {
        release_threshold: 5 * MIB,
        follow_event_dependencies: true,
        opportunistic: false,
        internal_dependencies: true,
    };
    let malloc = Call::MallocAsync { size: 512, stream: A };
    let made: Vec<Call> = dev.steps().iter().map(|step| step.call.clone()).collect();
    assert_eq!(made, [Call::ConfigureAsync { settings }, malloc.clone(), malloc]);
}

#[test]
fn a_device_without_the_pool_is_refused_with_the_way_out() {
    let why = CudaAsync::new(Params::default(), &SimDevice::new(MIB).info()).unwrap_err();
    assert_eq!(why.to_string(), "cuda-async needs the driver's stream-ordered pool: run it with -d cuda");
}

#[test]
fn a_request_for_a_pool_is_refused() {
    let (mut dev, mut strategy) = start(64 * MIB);
    let request = Request::new(512, A).in_pool(PoolId(2));
    assert_eq!(strategy.allocate(&mut dev, request), Err(AllocError::UnknownPool));
    assert!(dev.steps().is_empty());
}
