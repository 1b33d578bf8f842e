//! What is special about `buddy`: where blocks lie, when they merge, and when it asks the driver.

use allocator_core::{
    AllocError, Answer, Block, Call, CallKind, Configure, Device, DeviceInfo, LogDevice, Machine, PoolId, Request,
    ScriptDevice, SimDevice, SpanState, Step, Strategy, StreamId,
};
use strategy_buddy::{Buddy, Merge, Params};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

struct Run {
    dev: LogDevice<SimDevice>,
    buddy: Buddy,
}

/// Units of 1 KiB, arenas of 8 MiB.
fn start(capacity: u64, merge: Merge) -> Run {
    let dev = SimDevice::new(capacity);
    let buddy = Buddy::new(Params { unit: KIB, arena: 8 * MIB, merge }, &dev.info()).unwrap();
    Run { dev: LogDevice::new(dev), buddy }
}

impl Run {
    fn try_allocate(&mut self, size: u64, stream: StreamId) -> Result<Block, AllocError> {
        self.buddy.allocate(&mut self.dev, Request::new(size, stream))
    }

    fn allocate(&mut self, size: u64, stream: StreamId) -> Block {
        self.try_allocate(size, stream).unwrap()
    }

    fn free(&mut self, block: Block) {
        self.buddy.free(&mut self.dev, block).unwrap();
    }

    fn calls(&self, kind: CallKind) -> u64 {
        self.dev.usage().calls[kind as usize]
    }

    fn reserved(&self) -> u64 {
        self.dev.usage().reserved
    }

    /// Sizes of the spans in a state, by address.
    fn sizes(&self, state: SpanState) -> Vec<u64> {
        let mut sizes = Vec::new();
        self.buddy.inspect(&mut |span| sizes.extend((span.state == state).then_some(span.size)));
        sizes
    }
}

#[test]
fn blocks_are_powers_of_two_at_multiples_of_their_size() {
    let mut run = start(64 * MIB, Merge::Eager);
    let blocks = [1, 3 * KIB, KIB + 1, 2 * MIB, 2 * MIB + 1, KIB].map(|size| run.allocate(size, A));
    let base = blocks[0].ptr();
    let offsets = blocks.each_ref().map(|block| block.ptr() - base);
    assert_eq!(offsets, [0, 4 * KIB, 2 * KIB, 2 * MIB, 4 * MIB, KIB]);
    assert_eq!(run.sizes(SpanState::Live), [KIB, KIB, 2 * KIB, 4 * KIB, 2 * MIB, 4 * MIB]);
    blocks.into_iter().for_each(|block| run.free(block));
    assert_eq!(run.sizes(SpanState::Cached), [8 * MIB]);
    assert_eq!((run.calls(CallKind::Malloc), run.reserved()), (1, 8 * MIB));
}

#[test]
fn lazy_merging_waits_for_a_request_that_needs_it() {
    let mut run = start(64 * MIB, Merge::Lazy);
    let blocks = [(); 8].map(|()| run.allocate(MIB, A));
    let base = blocks[0].ptr();
    blocks.into_iter().for_each(|block| run.free(block));
    assert_eq!(run.sizes(SpanState::Cached), [MIB; 8]);
    let small = run.allocate(MIB, A);
    assert_eq!(small.ptr(), base);
    // Merged: the upper half serves, and the second quarter.
    let half = run.allocate(4 * MIB, A);
    assert_eq!(half.ptr() - base, 4 * MIB);
    assert_eq!(run.sizes(SpanState::Cached), [MIB, 2 * MIB]);
    run.free(small);
    run.free(half);
    assert_eq!(run.buddy.trim(&mut run.dev, 0), Ok(8 * MIB), "a trim merges, too");
    assert_eq!(run.calls(CallKind::Malloc), 1);
}

#[test]
fn a_request_above_the_arena_has_a_segment_that_goes_back_at_once() {
    let mut run = start(64 * MIB, Merge::Eager);
    let block = run.allocate(8 * MIB + 1, A);
    assert_eq!(run.reserved(), 8 * MIB + KIB);
    run.buddy.record_stream(&mut run.dev, &block, B).unwrap();
    run.dev.work(B, 7_000_000).unwrap();
    run.free(block);
    assert!(run.dev.usage().now_ns >= 7_000_000, "the driver's free has waited");
    assert_eq!(run.reserved(), 0);
    // The slot's next block is nobody else's.
    let block = run.allocate(KIB, A);
    run.free(block);
    assert_eq!((run.calls(CallKind::Fence), run.sizes(SpanState::Pending)), (0, vec![]));
}

#[test]
fn each_stream_has_arenas_of_its_own_until_memory_is_out() {
    let mut run = start(16 * MIB, Merge::Eager);
    let [a, b] = [A, B].map(|stream| run.allocate(MIB, stream));
    assert_eq!(run.reserved(), 16 * MIB);
    run.free(a);
    // B's arena holds a block; A's goes to B.
    let large = run.allocate(8 * MIB, B);
    assert_eq!((run.calls(CallKind::Malloc), run.calls(CallKind::Free)), (4, 1));
    assert_eq!(run.try_allocate(MIB, A), Err(AllocError::OutOfMemory));
    let more = run.allocate(4 * MIB, B);
    [b, large, more].into_iter().for_each(|block| run.free(block));
    assert_eq!(run.buddy.trim(&mut run.dev, 8 * MIB), Ok(8 * MIB));
    assert_eq!(run.buddy.trim(&mut run.dev, 8 * MIB), Ok(0));
    assert_eq!(run.buddy.trim(&mut run.dev, 0), Ok(8 * MIB));
}

#[test]
fn where_an_arena_does_not_fit_a_smaller_one_or_the_bytes_may() {
    let mut run = start(6 * MIB, Merge::Eager);
    let three = run.allocate(3 * MIB, A);
    assert_eq!((run.reserved(), run.sizes(SpanState::Live)), (4 * MIB, vec![4 * MIB]), "an arena of 4 MiB");
    let exact = run.allocate(2 * MIB - 1, A);
    assert_eq!(run.reserved(), 6 * MIB);
    assert_eq!(run.try_allocate(1, A), Err(AllocError::OutOfMemory));
    run.free(three);
    let five = run.try_allocate(5 * MIB, A);
    assert_eq!(five, Err(AllocError::OutOfMemory));
    run.free(exact);
    // 8 MiB would be its block; the device has 6.
    let five = run.allocate(5 * MIB, A);
    assert_eq!((run.reserved(), run.sizes(SpanState::Live)), (5 * MIB, vec![5 * MIB]));
    run.free(five);
    assert_eq!(run.reserved(), 0, "a segment, though it is below the arena");
}

#[test]
fn a_block_that_others_use_waits_for_them() {
    for merge in [Merge::Eager, Merge::Lazy] {
        let mut run = start(8 * MIB, merge);
        let block = run.allocate(8 * MIB, A);
        let ptr = block.ptr();
        for stream in [B, A, StreamId::ticket(0), B] {
            run.buddy.record_stream(&mut run.dev, &block, stream).unwrap();
        }
        run.free(block);
        assert_eq!((run.calls(CallKind::Fence), run.sizes(SpanState::Pending)), (2, vec![8 * MIB]));
        // Out of memory: the host waits for the device, which ends the ticket too.
        let block = run.allocate(MIB, A);
        assert_eq!((run.calls(CallKind::Sync), run.calls(CallKind::Free)), (1, 1));
        assert!(run.dev.steps().iter().any(|step| step.call == Call::Retired { ptr }));
        // It waits again, and is found to have passed when memory is next asked for.
        run.buddy.record_stream(&mut run.dev, &block, StreamId::ticket(1)).unwrap();
        run.free(block);
        let other = run.allocate(MIB, A);
        assert_eq!(run.sizes(SpanState::Pending), [MIB]);
        run.dev.complete(1);
        let again = run.allocate(MIB, A);
        assert_eq!(run.sizes(SpanState::Live), [MIB; 2]);
        assert_eq!(run.calls(CallKind::Sync), 1);
        [other, again].into_iter().for_each(|block| run.free(block));
    }
}

#[test]
fn parameters_that_make_no_sense_are_refused_with_the_way_out() {
    let info = SimDevice::new(64 * MIB).info();
    let refuse = |unit, arena| Buddy::new(Params { unit, arena, merge: Merge::Eager }, &info).unwrap_err().0;
    for unit in [0, 256, 768, u64::MAX] {
        assert_eq!(refuse(unit, 64 * MIB), format!("unit={unit}: write a power of two, 512 or more"));
    }
    let ends = "write a power of two from 1024 (the unit) to 68719476736 (2^26 units)";
    for arena in [0, 512, 3 * MIB, 1 << 37, u64::MAX] {
        assert_eq!(refuse(1024, arena), format!("arena={arena}: {ends}"));
    }
    for (unit, arena) in [(512, 512), (512, 512 << 26), (1 << 63, 1 << 63), (1 << 40, 1 << 63)] {
        let params = Params { unit, arena, merge: Merge::Lazy };
        let mut buddy = Buddy::new(params, &info).unwrap();
        let mut dev = SimDevice::new(64 * MIB);
        for size in [1, 512, u64::MAX] {
            if let Ok(block) = buddy.allocate(&mut dev, Request::new(size, A)) {
                buddy.free(&mut dev, block).unwrap();
            }
        }
        assert!(buddy.trim(&mut dev, 0).is_ok() && dev.usage().reserved == 0);
    }
}

#[test]
fn memory_that_would_end_beyond_all_addresses_is_refused() {
    let info: DeviceInfo = SimDevice::new(64 * MIB).info();
    for ptr in [0, u64::MAX - 8 * MIB + 1] {
        let steps = [
            Step { call: Call::Malloc { size: 8 * MIB }, answer: Ok(Answer::Address(ptr)) },
            Step { call: Call::Free { ptr }, answer: Ok(Answer::Done) },
        ];
        let mut dev = ScriptDevice::play(info, steps.to_vec());
        let mut buddy = Buddy::new(Params { unit: KIB, arena: 8 * MIB, merge: Merge::Eager }, &info).unwrap();
        assert_eq!(buddy.allocate(&mut dev, Request::new(1, A)), Err(AllocError::AddressSpace));
        assert_eq!((buddy.trim(&mut dev, 0), dev.finish()), (Ok(0), Ok(())));
    }
}

#[test]
fn a_request_for_a_pool_is_refused() {
    let mut run = start(64 * MIB, Merge::Eager);
    let request = Request::new(512, A).in_pool(PoolId(2));
    assert_eq!(run.buddy.allocate(&mut run.dev, request), Err(AllocError::UnknownPool));
    assert!(run.dev.steps().is_empty());
}
