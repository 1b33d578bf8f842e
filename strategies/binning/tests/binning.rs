//! What is special about `binning`: which requests share a size, and where their memory comes from.

use allocator_core::{
    AllocError, Block, Call, CallKind, Configure, Device, LogDevice, Machine, Request, SimDevice, Span, SpanState,
    Strategy, StreamId,
};
use strategy_binning::{Binning, Params};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

struct Rig {
    dev: LogDevice<SimDevice>,
    binning: Binning,
}

impl Rig {
    fn new(capacity: u64, params: Params) -> Rig {
        let dev = LogDevice::new(SimDevice::new(capacity));
        let binning = Binning::new(params, &dev.info()).unwrap();
        Rig { dev, binning }
    }

    fn try_allocate(&mut self, size: u64, stream: StreamId) -> Result<Block, AllocError> {
        self.binning.allocate(&mut self.dev, Request::new(size, stream))
    }

    fn allocate(&mut self, size: u64, stream: StreamId) -> Block {
        self.try_allocate(size, stream).unwrap()
    }

    fn free(&mut self, block: Block) {
        self.binning.free(&mut self.dev, block).unwrap();
    }

    /// The sizes that the device was asked for.
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

    fn reserved(&self) -> u64 {
        self.dev.usage().reserved
    }

    fn live(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        self.binning.inspect(&mut |span| spans.extend((span.state == SpanState::Live).then_some(span)));
        spans
    }
}

/// Bins of 4, 8 and 16 KiB with chunks of 4 blocks, 112 KiB in all.
fn small() -> Params {
    Params { min_size_exponent: 12, max_size_exponent: 14, blocks_to_preallocate: 4, ..Params::default() }
}

#[test]
fn every_bin_starts_with_a_chunk() {
    let mut rig = Rig::new(4 << 30, Params::default());
    rig.allocate(512, A);
    // 128 blocks each; the pool grows by just as much, since each chunk is larger than all before it.
    assert_eq!(rig.reserved(), 32 * MIB + 64 * MIB + 128 * MIB + 256 * MIB + 512 * MIB);
}

#[test]
fn a_request_gets_a_block_of_the_smallest_bin_that_holds_it() {
    let mut rig = Rig::new(1 << 30, small());
    let blocks = [1, 4 * KIB, 4 * KIB + 1, 9 * KIB, 16 * KIB, 16 * KIB + 1].map(|size| rig.allocate(size, A));
    let mut sizes: Vec<u64> = rig.live().iter().map(|span| span.size).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [4 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 16 * KIB, 16 * KIB + 512]);
    blocks.into_iter().for_each(|block| rig.free(block));
    assert!(rig.live().is_empty());
}

#[test]
fn blocks_are_used_in_turn() {
    let mut rig = Rig::new(1 << 30, small());
    let mut places = Vec::new();
    for _ in 0..5 {
        let block = rig.allocate(KIB, A);
        places.push(block.ptr());
        rig.free(block);
    }
    assert_eq!(places[4], places[0]);
    places.dedup();
    assert_eq!(places.len(), 5);
}

#[test]
fn a_bin_grows_by_a_chunk_when_no_stream_has_a_block() {
    let mut rig = Rig::new(1 << 30, small());
    let blocks = [B; 4].map(|stream| rig.allocate(4 * KIB, stream));
    let before = rig.reserved();
    let fifth = rig.allocate(4 * KIB, B);
    assert!(rig.reserved() > before);
    assert!(blocks.iter().all(|block| block.ptr() != fifth.ptr()));
}

#[test]
fn a_stream_waits_for_the_one_whose_chunk_it_uses() {
    let params = Params { min_size_exponent: 20, max_size_exponent: 20, blocks_to_preallocate: 1, ..Params::default() };
    let mut rig = Rig::new(1 << 30, params);
    let large = rig.allocate(3 * MIB, A);
    let ptr = large.ptr();
    rig.dev.work(A, 1_000_000).unwrap();
    rig.free(large);
    // The first chunk, and a second one, which the pool cuts from what stream 0 may still be at work in.
    let (first, second) = (rig.allocate(MIB, A), rig.allocate(MIB, A));
    assert_eq!(second.ptr(), ptr);
    rig.free(first);
    rig.free(second);
    let before = rig.calls(CallKind::OrderAfter);
    rig.allocate(MIB, B);
    assert_eq!(rig.calls(CallKind::OrderAfter), before + 1);
}

#[test]
fn without_room_for_all_first_chunks_requests_are_served_all_the_same() {
    let mut rig = Rig::new(40 * MIB, Params::default());
    let sizes = [300 * KIB, MIB, 4 * MIB, 5 * MIB];
    let blocks = sizes.map(|size| rig.allocate(size, A));
    assert_eq!(rig.live().iter().map(|span| span.size).sum::<u64>(), sizes.iter().sum::<u64>(), "all from the pool");
    blocks.into_iter().for_each(|block| rig.free(block));
    rig.binning.trim(&mut rig.dev, 0).unwrap();
    assert_eq!(rig.reserved(), 0);
}

/// One bin of 4 MiB with a chunk of 16 MiB, on a device of 42 MiB: the chunk is used up, a region of 16 has two blocks of the
/// streams 0 and 1 side by side, and 10 are left, which no further chunk fits into.
fn full() -> (Rig, [Block; 2]) {
    let params = Params { min_size_exponent: 22, max_size_exponent: 22, blocks_to_preallocate: 4, ..Params::default() };
    let mut rig = Rig::new(42 * MIB, params);
    let _blocks = [A; 4].map(|stream| rig.allocate(4 * MIB, stream));
    let blocks = [(10 * MIB, A), (6 * MIB, B)].map(|(size, stream)| rig.allocate(size, stream));
    assert_eq!(rig.mallocs(), [16 * MIB, 16 * MIB]);
    rig.allocate(4 * MIB, A);
    assert_eq!(rig.mallocs()[2..], [32, 16, 32, 16, 8].map(|kib| kib * MIB), "the chunk, then the request itself");
    (rig, blocks)
}

#[test]
fn a_chunk_that_was_refused_is_not_asked_for_again() {
    let (mut rig, [a, b]) = full();
    rig.allocate(4 * MIB, B);
    assert_eq!(rig.mallocs().len(), 7, "it is in the region that the one before brought");
    assert_eq!(rig.try_allocate(4 * MIB, B), Err(AllocError::OutOfMemory));
    assert_eq!(rig.mallocs()[7..], [40, 20, 10, 5, 4].map(|kib| kib * MIB), "for the request itself");
    // 10 and 6 lie side by side, which the lists of their streams do not show.
    let ptr = a.ptr();
    rig.free(a);
    rig.free(b);
    let places = [A; 4].map(|stream| rig.allocate(4 * MIB, stream).ptr());
    assert_eq!(places, [0, 4, 8, 12].map(|kib| ptr + kib * MIB), "a chunk");
    assert_eq!(rig.mallocs().len(), 12);
}

#[test]
fn trim_tries_anew_what_was_refused() {
    // Another holder of memory makes the chunk fail, and gives its memory back.
    let params = Params { min_size_exponent: 22, max_size_exponent: 22, blocks_to_preallocate: 4, ..Params::default() };
    let mut rig = Rig::new(50 * MIB, params);
    let other = rig.dev.malloc(20 * MIB).unwrap();
    let _blocks = [A; 5].map(|stream| rig.allocate(4 * MIB, stream));
    assert_eq!(rig.mallocs()[1..], [16, 16, 16, 8].map(|kib| kib * MIB));
    rig.dev.free(other).unwrap();
    rig.allocate(4 * MIB, A);
    assert_eq!(rig.mallocs().len(), 5, "the pool knows nothing of it");
    rig.binning.trim(&mut rig.dev, u64::MAX).unwrap();
    rig.allocate(4 * MIB, A);
    assert_eq!(rig.mallocs()[5..], [24 * MIB], "a chunk, and the pool doubles for it");
    let mut cached = Vec::new();
    rig.binning.inspect(&mut |span| cached.extend((span.state == SpanState::Cached).then_some(span.size)));
    assert_eq!(cached, [4, 4, 4, 8].map(|mib| mib * MIB), "the rest of the chunk, and of the region");
}

#[test]
fn the_pool_has_the_request_before_the_host_waits() {
    let (mut rig, [a, b]) = full();
    rig.binning.record_stream(&mut rig.dev, &a, StreamId::ticket(0)).unwrap();
    let ptr = a.ptr();
    rig.free(a);
    rig.allocate(4 * MIB, A);
    assert_eq!(rig.calls(CallKind::Sync), 0);
    rig.allocate(4 * MIB, A);
    assert_eq!((rig.calls(CallKind::Sync), rig.live().iter().filter(|span| span.ptr == ptr).count()), (1, 1));
    rig.free(b);
}

#[test]
fn trim_gives_chunks_back_that_no_block_is_live_in() {
    let mut rig = Rig::new(1 << 30, small());
    let (kept, freed) = (rig.allocate(4 * KIB, A), rig.allocate(16 * KIB, B));
    rig.free(freed);
    let before = rig.reserved();
    let released = rig.binning.trim(&mut rig.dev, 0).unwrap();
    assert_eq!((released, rig.reserved()), (96 * KIB, before - 96 * KIB), "the chunks of 8 and 16 KiB blocks");
    rig.free(kept);
    assert_eq!(rig.binning.trim(&mut rig.dev, 0), Ok(16 * KIB));
    rig.allocate(1, A);
    assert_eq!(rig.reserved(), before, "the bins start anew");
}

#[test]
fn a_block_in_use_elsewhere_waits_for_its_fences() {
    let params = Params { blocks_to_preallocate: 1, ..small() };
    let mut rig = Rig::new(1 << 30, params);
    let block = rig.allocate(4 * KIB, A);
    let ptr = block.ptr();
    rig.binning.record_stream(&mut rig.dev, &block, StreamId::ticket(0)).unwrap();
    rig.free(block);
    let other = rig.allocate(4 * KIB, A);
    assert_ne!(other.ptr(), ptr);
    rig.dev.complete(0);
    assert_eq!(rig.allocate(4 * KIB, A).ptr(), ptr);
}

#[test]
fn a_parameter_that_makes_no_sense_is_named() {
    let info = SimDevice::new(MIB).info();
    let params = Params::default;
    for (params, text) in [
        (Params { min_size_exponent: 8, ..params() }, "min_size_exponent=8: write a number from 9 to 40"),
        (
            Params { max_size_exponent: 17, ..params() },
            "max_size_exponent=17: write a number from min_size_exponent=18 to 40",
        ),
        (Params { blocks_to_preallocate: 0, ..params() }, "blocks_to_preallocate=0: write a number from 1 to 65536"),
        (Params { initial_pool_size: 1, ..params() }, "initial_pool_size=1: write 0 or a multiple of 512 bytes"),
    ] {
        assert_eq!(Binning::new(params, &info).unwrap_err().to_string(), text);
    }
}
