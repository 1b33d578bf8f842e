//! What is special about `arena`: one block, who may use which part of it, and when the host waits.

use allocator_core::{
    AllocError, Block, CallKind, Configure, Device, LogDevice, Machine, Request, SimDevice, SpanState, Strategy,
    StreamId,
};
use strategy_arena::{Arena, Params};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

struct Rig {
    dev: LogDevice<SimDevice>,
    arena: Arena,
}

impl Rig {
    fn new(capacity: u64, arena_size: Option<u64>) -> Rig {
        Rig::with(capacity, Params { arena_size, ..Params::default() })
    }

    fn with(capacity: u64, params: Params) -> Rig {
        let dev = LogDevice::new(SimDevice::new(capacity));
        let arena = Arena::new(params, &dev.info()).unwrap();
        Rig { dev, arena }
    }

    fn try_allocate(&mut self, size: u64, stream: StreamId) -> Result<Block, AllocError> {
        self.arena.allocate(&mut self.dev, Request::new(size, stream))
    }

    fn allocate(&mut self, size: u64, stream: StreamId) -> Block {
        self.try_allocate(size, stream).unwrap()
    }

    fn free(&mut self, block: Block) {
        self.arena.free(&mut self.dev, block).unwrap();
    }

    fn calls(&self, kind: CallKind) -> u64 {
        self.dev.usage().calls[kind as usize]
    }

    fn reserved(&self) -> u64 {
        self.dev.usage().reserved
    }
}

#[test]
fn it_takes_half_of_the_device_and_never_more() {
    let mut rig = Rig::new(64 * MIB, None);
    let block = rig.allocate(20 * MIB, A);
    assert_eq!(rig.reserved(), 32 * MIB);
    assert_eq!(rig.try_allocate(13 * MIB, A), Err(AllocError::OutOfMemory));
    assert_eq!((rig.reserved(), rig.calls(CallKind::Malloc)), (32 * MIB, 1));
    assert_eq!(rig.arena.trim(&mut rig.dev, 0), Ok(0), "a block is live");
    rig.free(block);
    assert_eq!(rig.arena.trim(&mut rig.dev, 32 * MIB), Ok(0), "all of it is kept");
    assert_eq!(rig.arena.trim(&mut rig.dev, 1), Ok(32 * MIB));
    assert_eq!(rig.reserved(), 0);
}

#[test]
fn where_there_is_no_room_half_has_to_do() {
    let mut rig = Rig::new(64 * MIB, Some(200 * MIB));
    rig.allocate(1, A);
    assert_eq!((rig.reserved(), rig.calls(CallKind::Malloc)), (50 * MIB, 3));
    let mut tiny = Rig::new(MIB, None);
    assert_eq!(tiny.try_allocate(1, A), Err(AllocError::OutOfMemory), "less than a superblock");
}

#[test]
fn streams_have_superblocks_of_their_own_for_small_blocks() {
    let mut rig = Rig::new(1 << 30, None);
    let places = [(300, A), (200, B), (100, A), (800, A)].map(|(size, stream)| rig.allocate(size * KIB, stream).ptr());
    let start = places[0];
    assert_eq!(places.map(|ptr| ptr - start), [0, MIB, 300 * KIB, 2 * MIB]);
}

#[test]
fn large_blocks_are_superblocks_of_their_size() {
    let mut rig = Rig::new(1 << 30, None);
    let (a, b, c) = (rig.allocate(3 * MIB + 512, A), rig.allocate(MIB + 512, B), rig.allocate(MIB, A));
    assert_eq!(b.ptr() - a.ptr(), 3 * MIB + 512);
    assert_eq!(c.ptr() - b.ptr(), MIB + 512);
    let ptr = a.ptr();
    rig.free(a);
    assert_eq!(rig.allocate(2 * MIB, B).ptr(), ptr, "the other stream may have it");
}

#[test]
fn a_small_free_does_not_wait_and_a_large_one_does() {
    let mut rig = Rig::new(1 << 30, None);
    let (small, large) = (rig.allocate(MIB, A), rig.allocate(MIB + 1, A));
    rig.dev.work(A, 7_000_000).unwrap();
    rig.free(small);
    assert_eq!(rig.calls(CallKind::Sync), 0);
    rig.free(large);
    assert_eq!(rig.calls(CallKind::Sync), 1);
    assert!(rig.dev.usage().now_ns >= 7_000_000);
}

#[test]
fn want_of_memory_collects_the_superblocks_of_all_streams() {
    let mut rig = Rig::new(1 << 30, Some(4 * MIB));
    let blocks = [A, B, StreamId(2), StreamId(3)].map(|stream| rig.allocate(700 * KIB, stream));
    let [a, b, c, d] = blocks;
    [b, c].into_iter().for_each(|block| rig.free(block));
    assert_eq!(rig.calls(CallKind::Sync), 0);
    let large = rig.allocate(2 * MIB, A);
    assert_eq!((large.ptr() - a.ptr(), rig.calls(CallKind::Sync)), (MIB, 1));
    // Stream 0 takes over the superblock of stream 3, which has room; stream 3 then waits when it frees into it.
    let e = rig.allocate(100 * KIB, B);
    let f = rig.allocate(300 * KIB, StreamId(2));
    assert_eq!((e.ptr() - a.ptr(), f.ptr() - d.ptr()), (700 * KIB, 700 * KIB));
    rig.free(a);
    rig.free(d);
    assert_eq!(rig.calls(CallKind::Sync), 3);
}

#[test]
fn a_block_in_use_elsewhere_waits_for_its_fences() {
    let mut rig = Rig::new(1 << 30, Some(8 * MIB));
    let block = rig.allocate(3 * MIB, A);
    let ptr = block.ptr();
    rig.arena.record_stream(&mut rig.dev, &block, StreamId::ticket(0)).unwrap();
    rig.free(block);
    let mut pending = 0;
    rig.arena.inspect(&mut |span| pending += u64::from(span.state == SpanState::Pending));
    assert_eq!(pending, 1);
    assert_ne!(rig.allocate(3 * MIB, A).ptr(), ptr);
    rig.dev.complete(0);
    assert_eq!(rig.allocate(3 * MIB, B).ptr(), ptr);
}

#[test]
fn size_classes_round_up() {
    for (size_classes, size) in [(false, 2600 * KIB), (true, 3 * MIB)] {
        let mut rig = Rig::with(1 << 30, Params { arena_size: None, size_classes });
        rig.allocate(2600 * KIB, A);
        let mut live = 0;
        rig.arena.inspect(&mut |span| live += if span.state == SpanState::Live { span.size } else { 0 });
        assert_eq!(live, size);
    }
}

#[test]
fn a_parameter_that_makes_no_sense_is_named() {
    let info = SimDevice::new(MIB).info();
    for size in [0, MIB - 512, MIB + 1] {
        let text = format!("arena_size={size}: write none or a multiple of 512 bytes from 1048576 on");
        let params = Params { arena_size: Some(size), ..Params::default() };
        assert_eq!(Arena::new(params, &info).unwrap_err().to_string(), text);
    }
}
