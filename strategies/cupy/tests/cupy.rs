//! What is special about `cupy`: exact segments, the choice among free chunks, the limit, and what goes back when.

use allocator_core::{
    AllocError, Block, Call, CallKind, Configure, Control, ControlError, Device, LogDevice, Machine, PoolId, Request,
    SimDevice, Strategy, StreamId,
};
use strategy_cupy::{Cupy, Params};

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

struct Rig {
    dev: LogDevice<SimDevice>,
    cupy: Cupy,
}

impl Rig {
    fn new(capacity: u64, params: Params) -> Rig {
        let dev = SimDevice::new(capacity);
        let cupy = Cupy::new(params, &dev.info()).unwrap();
        Rig { dev: LogDevice::new(dev), cupy }
    }

    fn limited(limit: u64) -> Rig {
        Rig::new(1 << 30, Params { limit, ..Params::default() })
    }

    fn try_allocate(&mut self, size: u64, stream: StreamId) -> Result<Block, AllocError> {
        self.cupy.allocate(&mut self.dev, Request::new(size, stream))
    }

    fn allocate(&mut self, size: u64, stream: StreamId) -> Block {
        self.try_allocate(size, stream).unwrap()
    }

    fn free(&mut self, block: Block) {
        self.cupy.free(&mut self.dev, block).unwrap();
    }

    /// The sizes that the device was asked for.
    fn mallocs(&self) -> Vec<u64> {
        let sizes = self.dev.steps().iter().filter_map(|step| match step.call {
            Call::Malloc { size } => Some(size),
            _ => None,
        });
        sizes.collect()
    }

    /// The addresses that the device got back.
    fn returned(&self) -> Vec<u64> {
        let ptrs = self.dev.steps().iter().filter_map(|step| match step.call {
            Call::Free { ptr } => Some(ptr),
            _ => None,
        });
        ptrs.collect()
    }

    fn calls(&self, kind: CallKind) -> u64 {
        self.dev.usage().calls[kind as usize]
    }

    fn counters(&self) -> Vec<i64> {
        let mut values = Vec::new();
        self.cupy.counters(&mut |_, value| values.push(value));
        values
    }
}

#[test]
fn a_miss_takes_just_what_is_missed_and_a_hit_is_cut_to_the_request() {
    let mut rig = Rig::new(1 << 30, Params::default());
    let block = rig.allocate(3 * MIB - 100, A);
    let ptr = block.ptr();
    rig.free(block);
    let (first, second) = (rig.allocate(700, A), rig.allocate(1, A));
    assert_eq!((first.ptr(), second.ptr()), (ptr, ptr + 1024));
    assert_eq!(rig.allocate(3 * MIB - 1536, A).ptr(), ptr + 1536, "the rest, to the last byte");
    assert_eq!(rig.mallocs(), [3 * MIB]);
    rig.free(second);
    rig.free(first);
    assert_eq!(rig.allocate(1536, A).ptr(), ptr, "both parts are one again");
}

#[test]
fn the_best_fit_is_the_smallest_chunk_of_the_lowest_record() {
    let mut rig = Rig::new(1 << 30, Params::default());
    let blocks = [64, 40, 48, 40].map(|kib| rig.allocate(kib << 10, A));
    let places: Vec<u64> = blocks.iter().map(Block::ptr).collect();
    // Whichever is freed last.
    blocks.into_iter().rev().for_each(|block| rig.free(block));
    let got = [33, 33, 33, 33].map(|kib| rig.allocate(kib << 10, A).ptr());
    assert_eq!(got, [places[1], places[3], places[2], places[0]]);
}

#[test]
fn a_new_segment_s_record_is_the_one_that_became_unused_last() {
    let mut rig = Rig::new(1 << 30, Params::default());
    let (low, high) = (rig.allocate(1024, A), rig.allocate(1024, A));
    let (low_ptr, high_ptr) = (low.ptr(), high.ptr());
    rig.free(low);
    rig.free(high);
    // The records of both go, the lower one first: the next segment has the higher one.
    rig.cupy.trim(&mut rig.dev, 0).unwrap();
    assert_eq!(rig.returned(), [low_ptr, high_ptr]);
    let (first, second) = (rig.allocate(1024, A), rig.allocate(1024, A));
    let lower = second.ptr();
    rig.free(first);
    rig.free(second);
    assert_eq!(rig.allocate(1024, A).ptr(), lower);
}

#[test]
fn memory_changes_streams_by_way_of_the_device_only() {
    let mut rig = Rig::limited(10 * MIB);
    let (a, b) = (rig.allocate(4 * MIB, A), rig.allocate(4 * MIB, A));
    let a_ptr = a.ptr();
    rig.free(a);
    let other = rig.allocate(2 * MIB, B);
    assert_eq!(rig.mallocs(), [4 * MIB, 4 * MIB, 2 * MIB], "free memory of another stream is left alone");
    rig.allocate(3 * MIB, B);
    assert_eq!(rig.returned(), [a_ptr], "the limit is met");
    rig.free(other);
    rig.free(b);
    assert_eq!(rig.cupy.trim(&mut rig.dev, 0), Ok(6 * MIB));
}

#[test]
fn a_segment_with_a_block_in_use_does_not_go_back() {
    let mut rig = Rig::limited(10 * MIB);
    let (big, small) = (rig.allocate(6 * MIB, A), rig.allocate(MIB, A));
    rig.free(big);
    let part = rig.allocate(512, A);
    assert_eq!(rig.try_allocate(6 * MIB, A), Err(AllocError::OutOfMemory));
    rig.free(small);
    assert_eq!(rig.try_allocate(6 * MIB, A), Err(AllocError::OutOfMemory));
    assert_eq!(rig.returned().len(), 1);
    rig.free(part);
    rig.allocate(6 * MIB, A);
    assert_eq!(rig.mallocs(), [6 * MIB, MIB], "merged, it is there again");
}

#[test]
fn what_the_limit_can_never_hold_gives_nothing_back() {
    for (limit, percent) in [(10 * MIB, 0.0), (0, 62.5)] {
        let mut rig = Rig::new(16 * MIB, Params { limit, limit_percent: percent });
        let block = rig.allocate(10 * MIB, A);
        rig.free(block);
        assert_eq!(rig.try_allocate(10 * MIB + 1, A), Err(AllocError::OutOfMemory));
        assert_eq!((rig.mallocs().len(), rig.returned().len()), (1, 0));
        rig.allocate(10 * MIB, B);
        assert_eq!((rig.mallocs().len(), rig.returned().len()), (2, 1));
    }
}

#[test]
fn the_limit_changes_at_run_time_and_touches_nothing_held() {
    let mut rig = Rig::new(1 << 30, Params::default());
    let block = rig.allocate(8 * MIB, A);
    rig.cupy.control(&mut rig.dev, Control::Limit(Some(4 * MIB))).unwrap();
    rig.free(block);
    let block = rig.allocate(8 * MIB, A);
    assert_eq!((rig.mallocs().len(), rig.returned().len()), (1, 0));
    assert_eq!(rig.try_allocate(512, A), Err(AllocError::OutOfMemory));
    rig.cupy.control(&mut rig.dev, Control::Limit(None)).unwrap();
    rig.allocate(512, A);
    rig.free(block);
    assert_eq!(rig.counters()[4], 0, "as CuPy's `get_limit` without a limit");
    rig.cupy.control(&mut rig.dev, Control::Limit(Some(0))).unwrap();
    assert_eq!(rig.try_allocate(9 * MIB, A), Err(AllocError::OutOfMemory));
    assert_eq!(rig.counters()[4], 1, "a limit that nothing fits is one");
    let answer = rig.cupy.control(&mut rig.dev, Control::PoolCreate(PoolId(1)));
    assert_eq!(answer, Err(ControlError::Unsupported));
}

#[test]
fn streams_give_back_in_the_order_in_which_they_came_to_hold_memory() {
    let mut rig = Rig::new(1 << 30, Params::default());
    let fill = |rig: &mut Rig, stream| {
        let blocks = [3 * MIB, MIB, 2 * MIB].map(|size| rig.allocate(size, stream));
        let places = [1, 2, 0].map(|at| blocks[at].ptr());
        blocks.into_iter().for_each(|block| rig.free(block));
        places
    };
    let (first, second) = (fill(&mut rig, B), fill(&mut rig, A));
    rig.cupy.trim(&mut rig.dev, 0).unwrap();
    assert_eq!(rig.returned(), [first, second].concat(), "each the smallest segment first");
    let (first, second) = (fill(&mut rig, A), fill(&mut rig, B));
    rig.cupy.trim(&mut rig.dev, 3 * MIB).unwrap();
    assert_eq!(rig.returned()[6..], [&first[..], &second[..2]].concat(), "no more than is asked for");
}

#[test]
fn a_block_in_use_elsewhere_is_waited_for_when_there_is_no_other_memory() {
    for other in [B, StreamId::ticket(0)] {
        let mut rig = Rig::new(8 * MIB, Params::default());
        let block = rig.allocate(6 * MIB, A);
        let ptr = block.ptr();
        rig.cupy.record_stream(&mut rig.dev, &block, other).unwrap();
        rig.dev.work(B, 1_000_000_000).unwrap();
        rig.free(block);
        assert_eq!(rig.counters(), [6 * MIB as i64, 0, 6 * MIB as i64, 0, 0]);
        assert_eq!((rig.allocate(5 * MIB, A).ptr(), rig.calls(CallKind::Sync)), (ptr, 1));
        assert_eq!(rig.returned(), [0; 0], "it is used again without the device");
        assert_eq!(rig.dev.steps().iter().filter(|step| step.call == Call::Retired { ptr }).count(), 1);
        assert_eq!(rig.try_allocate(3 * MIB, A), Err(AllocError::OutOfMemory));
    }
}

#[test]
fn a_block_that_waits_is_free_when_its_fences_have_passed() {
    let mut rig = Rig::new(1 << 30, Params::default());
    let block = rig.allocate(MIB, A);
    let ptr = block.ptr();
    for stream in [A, B, StreamId::ticket(3)] {
        rig.cupy.record_stream(&mut rig.dev, &block, stream).unwrap();
    }
    rig.free(block);
    assert_ne!(rig.allocate(MIB, A).ptr(), ptr);
    rig.dev.host_work(1_000_000);
    assert_ne!(rig.allocate(MIB, A).ptr(), ptr);
    rig.dev.complete(3);
    assert_eq!(rig.allocate(MIB, A).ptr(), ptr);
    assert_eq!((rig.calls(CallKind::Fence), rig.calls(CallKind::Sync)), (2, 0));
}

#[test]
fn counters_are_cupy_s() {
    let mut rig = Rig::limited(64 * MIB);
    let (a, _b) = (rig.allocate(3 * MIB, A), rig.allocate(2 * MIB, B));
    rig.free(a);
    let _part = rig.allocate(MIB, A);
    let expected = [3, 2, 5, 0, 64].map(|mib| mib * MIB as i64);
    assert_eq!(rig.counters(), [&expected[..3], &[1], &expected[4..]].concat());
}
