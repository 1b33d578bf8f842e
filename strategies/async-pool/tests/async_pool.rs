//! What is special about `async-pool`: how it grows, what moves, which stream gets what, and when memory goes back.

use allocator_core::{
    AllocError, Block, Call, CallKind, Configure, LogDevice, Machine, PoolId, Request, SimDevice, SpanState, Strategy,
    StreamId, Sync,
};
use strategy_async_pool::{AsyncPool, Params};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);
const SECOND: u64 = 1_000_000_000;

struct Rig {
    dev: LogDevice<SimDevice>,
    pool: AsyncPool,
}

impl Rig {
    fn new(capacity: u64, params: Params) -> Rig {
        let dev = SimDevice::new(capacity);
        let pool = AsyncPool::new(params, &allocator_core::Device::info(&dev)).unwrap();
        Rig { dev: LogDevice::new(dev), pool }
    }

    /// As PyTorch sets it: nothing goes back by itself.
    fn keeping(capacity: u64) -> Rig {
        Rig::new(capacity, Params { release_threshold: u64::MAX, ..Params::default() })
    }

    fn try_allocate(&mut self, mib: u64, stream: StreamId) -> Result<Block, AllocError> {
        self.pool.allocate(&mut self.dev, Request::new(mib * MIB, stream))
    }

    fn allocate(&mut self, mib: u64, stream: StreamId) -> Block {
        self.try_allocate(mib, stream).unwrap()
    }

    fn free(&mut self, block: Block) {
        self.pool.free(&mut self.dev, block).unwrap();
    }

    fn use_on(&mut self, block: &Block, stream: StreamId) {
        self.pool.record_stream(&mut self.dev, block, stream).unwrap();
    }

    fn sync(&mut self, what: Sync) {
        allocator_core::Device::sync(&mut self.dev, what).unwrap();
    }

    fn calls(&self, kind: CallKind) -> u64 {
        self.dev.usage().calls[kind as usize]
    }

    fn reserved_mib(&self) -> u64 {
        self.dev.usage().reserved / MIB
    }

    fn counter(&self, wanted: &str) -> u64 {
        let mut found = None;
        self.pool.counters(&mut |name, value| {
            if name == wanted {
                found = Some(value as u64);
            }
        });
        found.unwrap()
    }
}

/// As a card was seen to do.
#[test]
fn it_grows_in_steps_of_32_mib_and_uses_what_was_left() {
    let mut rig = Rig::keeping(8 * GIB);
    let first = rig.allocate(1025, A);
    assert_eq!(rig.reserved_mib(), 1056);
    let second = rig.allocate(1025, A);
    assert_eq!((rig.reserved_mib(), second.ptr()), (2080, first.ptr() + 1025 * MIB));
    rig.allocate(30, A);
    assert_eq!((rig.reserved_mib(), rig.calls(CallKind::Create)), (2080, 2));
}

/// As a card was seen to do.
#[test]
fn memory_around_a_live_block_serves_a_larger_request() {
    let mut rig = Rig::keeping(GIB);
    let [a, b, c] = [64, 64, 64].map(|mib| rig.allocate(mib, A));
    rig.free(a);
    rig.free(c);
    let d = rig.allocate(128, A);
    assert_eq!((rig.reserved_mib(), rig.counter("moved_bytes")), (192, 64 * MIB), "one of them stays where it is");
    let (b_at, d_at) = (b.ptr(), d.ptr());
    assert!(d_at + 128 * MIB <= b_at || b_at + 64 * MIB <= d_at);
}

#[test]
fn a_piece_in_use_does_not_move() {
    let mut rig = Rig::keeping(GIB);
    let [a, _b, c] = [64, 64, 64].map(|mib| rig.allocate(mib, A));
    rig.dev.work(A, SECOND).unwrap();
    rig.free(a);
    rig.free(c);
    rig.allocate(128, A);
    assert_eq!((rig.reserved_mib(), rig.counter("moved_bytes")), (256, 0), "64 more, behind c");
}

#[test]
fn a_piece_with_a_live_block_does_not_move() {
    let mut rig = Rig::keeping(GIB);
    let [a, _b, c, _d] = [24, 8, 31, 1].map(|mib| rig.allocate(mib, A));
    rig.free(a);
    rig.free(c);
    assert_eq!(rig.reserved_mib(), 64);
    rig.allocate(40, A);
    assert_eq!((rig.reserved_mib(), rig.counter("moved_bytes")), (128, 0));
}

#[test]
fn a_done_stream_leaves_its_memory_to_others() {
    for (opportunistic, reserved) in [(true, 32), (false, 64)] {
        let params = Params { opportunistic, release_threshold: u64::MAX, ..Params::default() };
        let mut rig = Rig::new(GIB, params);
        let block = rig.allocate(32, A);
        rig.free(block);
        rig.allocate(32, B);
        assert_eq!(rig.reserved_mib(), reserved, "{opportunistic}");
    }
}

#[test]
fn a_stream_follows_one_that_its_frees_waited_for() {
    for (follow_event_dependencies, reserved) in [(true, 64), (false, 96)] {
        let params = Params { follow_event_dependencies, release_threshold: u64::MAX, ..Params::default() };
        let mut rig = Rig::new(GIB, params);
        let (of_a, of_b) = (rig.allocate(32, A), rig.allocate(32, B));
        rig.use_on(&of_b, A);
        rig.dev.work(A, SECOND).unwrap();
        let at = of_a.ptr();
        rig.free(of_a);
        // B waits for A here, and so comes after the free on A.
        rig.free(of_b);
        assert_eq!(rig.calls(CallKind::OrderAfter), 1);
        let first = rig.allocate(32, B);
        let second = rig.allocate(32, B);
        assert_ne!(first.ptr(), at, "its own memory comes first");
        assert_eq!(rig.reserved_mib(), reserved, "{follow_event_dependencies}");
        assert_eq!(second.ptr() == at, follow_event_dependencies);
    }
}

/// What was freed on B becomes common at a request, which merges it with common memory only. A's own lies beside it.
#[test]
fn a_row_of_own_and_common_memory_serves_without_waiting() {
    for end in [0, 32] {
        let mut rig = Rig::new(GIB, Params::default());
        let all = rig.allocate(96 + end, A);
        rig.free(all);
        let (a, b) = (rig.allocate(48, A), rig.allocate(48, B));
        // Without a live block above, the row ends in a hole.
        let _above = (end > 0).then(|| rig.allocate(end, A));
        let at = a.ptr();
        rig.dev.work(A, SECOND).unwrap();
        rig.dev.work(B, SECOND / 1000).unwrap();
        rig.free(a);
        rig.free(b);
        rig.dev.host_work(SECOND / 100);
        assert_eq!(rig.allocate(80, A).ptr(), at, "{end}");
        assert!(rig.dev.usage().now_ns < SECOND, "{end}: the host does not wait");
        assert_eq!((rig.calls(CallKind::Sync), rig.calls(CallKind::Create)), (0, 1), "{end}");
    }
}

/// 1,000 pieces, every other one free: each goes to the new place once, and none is made.
#[test]
fn many_pieces_move_at_once() {
    const FREE: u64 = 500;
    let params = Params { chunk: 2 * MIB, release_threshold: u64::MAX, ..Params::default() };
    let mut rig = Rig::new(4 * GIB, params);
    let (mut freed, mut held) = (Vec::new(), Vec::new());
    for _ in 0..FREE {
        freed.push(rig.allocate(2, A));
        held.push(rig.allocate(2, A));
    }
    freed.into_iter().for_each(|block| rig.free(block));
    rig.allocate(2 * FREE, A);
    assert_eq!((rig.calls(CallKind::Unmap), rig.calls(CallKind::Create)), (FREE, 2 * FREE));
    assert_eq!(rig.counter("moved_bytes"), 2 * FREE * MIB);
}

#[test]
fn a_hit_may_give_memory_back() {
    let mut rig = Rig::new(GIB, Params::default());
    let [_held, small, large] = [16, 16, 64].map(|mib| rig.allocate(mib, A));
    rig.dev.work(A, SECOND).unwrap();
    rig.free(large);
    rig.sync(Sync::Device);
    rig.free(small);
    let kinds = [CallKind::Fence, CallKind::Poll, CallKind::Unmap, CallKind::Release, CallKind::Create];
    let before = kinds.map(|kind| rig.calls(kind));
    rig.allocate(16, A);
    let made: Vec<u64> = kinds.iter().zip(before).map(|(&kind, before)| rig.calls(kind) - before).collect();
    assert_eq!(made, [1, 2, 1, 1, 0], "the part is there, and the 64 MiB that were free go back");
}

#[test]
fn a_wait_is_inserted_where_there_is_no_more_memory() {
    for (internal_dependencies, syncs) in [(true, 0), (false, 1)] {
        let mut rig = Rig::new(64 * MIB, Params { internal_dependencies, ..Params::default() });
        let (block, _other) = (rig.allocate(32, A), rig.allocate(32, B));
        let at = block.ptr();
        rig.dev.work(A, SECOND).unwrap();
        rig.free(block);
        assert_eq!(rig.allocate(32, B).ptr(), at);
        assert_eq!((rig.calls(CallKind::Sync), rig.calls(CallKind::OrderAfter)), (syncs, 1 - syncs));
        assert_eq!(rig.counter("inserted_waits"), 1 - syncs);
        assert_eq!(rig.dev.usage().now_ns < SECOND, internal_dependencies, "the host does not wait");
    }
}

#[test]
fn at_a_synchronise_memory_goes_back_down_to_the_threshold() {
    for (release_threshold, kept) in [(0, 32), (64 * MIB, 64), (GIB, 160)] {
        let mut rig = Rig::new(GIB, Params { release_threshold, ..Params::default() });
        let [small, a, b] = [32, 32, 96].map(|mib| rig.allocate(mib, A));
        rig.dev.work(A, SECOND).unwrap();
        rig.free(b);
        rig.free(a);
        let busy = rig.allocate(1, A);
        assert_eq!((rig.reserved_mib(), rig.counter("releases")), (160, 0), "A is at work");
        rig.free(busy);
        rig.sync(Sync::Stream(A));
        let next = rig.allocate(1, A);
        // What the next request needs is taken anew.
        assert_eq!(rig.reserved_mib(), if release_threshold == 0 { kept + 32 } else { kept });
        rig.free(next);
        rig.free(small);
    }
}

#[test]
fn an_idle_stream_is_no_synchronise_unless_it_shall_be() {
    for (release_when_idle, creates) in [(false, 1), (true, 3)] {
        let mut rig = Rig::new(GIB, Params { release_when_idle, ..Params::default() });
        for _ in 0..3 {
            let block = rig.allocate(256, A);
            rig.free(block);
            rig.dev.host_work(SECOND);
        }
        assert_eq!((rig.reserved_mib(), rig.calls(CallKind::Create)), (256, creates));
        assert_eq!(rig.counter("releases"), creates - 1);
    }
}

#[test]
fn the_longest_free_goes_back_first() {
    let mut rig = Rig::keeping(GIB);
    let [a, _b, c, _d] = [32; 4].map(|mib| rig.allocate(mib, A));
    let (early, late) = (c.ptr(), a.ptr());
    rig.free(c);
    rig.free(a);
    assert_eq!(rig.pool.trim(&mut rig.dev, 96 * MIB), Ok(32 * MIB));
    let unmapped = rig.dev.steps().iter().filter_map(|step| match step.call {
        Call::Unmap { va, .. } => Some(va),
        _ => None,
    });
    assert_eq!(unmapped.collect::<Vec<_>>(), [early]);
    assert_eq!(rig.allocate(32, A).ptr(), late);
}

#[test]
fn no_more_than_the_maximum_is_taken() {
    let mut rig = Rig::new(GIB, Params { max_size: 100 * MIB, ..Params::default() });
    let blocks = [40, 50].map(|mib| rig.allocate(mib, A));
    assert_eq!(rig.reserved_mib(), 96);
    assert_eq!(rig.try_allocate(11, A), Err(AllocError::OutOfMemory));
    assert_eq!(rig.try_allocate(101, A), Err(AllocError::OutOfMemory));
    rig.allocate(10, A);
    assert_eq!(rig.reserved_mib(), 100, "a whole step has no room");
    blocks.into_iter().for_each(|block| rig.free(block));
    rig.allocate(90, A);
    assert_eq!(rig.counter("reserved_mem_high"), 100 * MIB);
}

#[test]
fn a_ticket_holds_a_block_back() {
    let mut rig = Rig::keeping(GIB);
    let block = rig.allocate(32, A);
    let ptr = block.ptr();
    rig.use_on(&block, StreamId::ticket(3));
    rig.free(block);
    rig.allocate(32, A);
    let mut states = Vec::new();
    rig.pool.inspect(&mut |span| states.push(span.state));
    assert_eq!(states, [SpanState::Pending, SpanState::Live, SpanState::Unmapped]);
    rig.dev.complete(3);
    assert_eq!(rig.allocate(32, A).ptr(), ptr);
    assert_eq!(rig.dev.steps().iter().filter(|step| step.call == Call::Retired { ptr }).count(), 1);
}

#[test]
fn a_request_for_a_pool_is_refused() {
    let mut rig = Rig::keeping(GIB);
    let request = Request::new(512, A).in_pool(PoolId(2));
    assert_eq!(rig.pool.allocate(&mut rig.dev, request), Err(AllocError::UnknownPool));
    assert!(rig.dev.steps().is_empty());
}
