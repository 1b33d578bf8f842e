//! Blocks of equal sizes, cut from chunks, in queues.
//!
//! A chunk is one block of the pool. Its blocks are records that stand side by side in one table. A free block is at the
//! end of the queue of its bin and of the stream that used it last, and is taken from the front:
//!
//! ```text
//! chunk of bin 256 KiB    [ 0 ][ 1 ][ 2 ][ 3 ]                     128 of them
//! queue of stream 0        0 ▸ 1 ▸ 2 ▸ 3
//! stream 0 takes one       1 ▸ 2 ▸ 3                  stream 1 takes one, and waits for 0:   2 ▸ 3
//! both are freed           stream 0: 2 ▸ 3 ▸ 0        stream 1: 1
//! ```

use allocator_core::{Block, Fence, StreamId};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The pool has the chunk back.
    Gone,
    Free,
    Live,
    /// Live, and used on further streams.
    Shared,
    /// Freed by its owner, waiting for other streams.
    Pending,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub ptr: u64,
    /// The next one in its queue.
    next: u32,
    /// The stream whose queue it is in, or whose block it is.
    pub stream: u32,
    /// How often the record had been handed out when it is handed out.
    pub generation: u32,
    pub bin: u32,
    pub state: State,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    /// Covers all work on the queue's blocks; `None` if a chunk came since it was taken.
    fence: Option<Fence>,
}

const EMPTY: Queue = Queue { first: NONE, last: NONE, fence: None };

#[derive(Debug)]
pub(crate) struct Chunk {
    pub block: Block,
    pub bin: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Bins {
    min_exponent: u32,
    /// Blocks in a chunk.
    blocks: u32,
    table: Vec<Record>,
    /// Chunk `n` has the records from `n · blocks` on.
    chunks: Vec<Option<Chunk>>,
    /// Queues by bin and stream.
    queues: Vec<Vec<Queue>>,
}

impl Bins {
    pub(crate) fn new(exponents: std::ops::RangeInclusive<u32>, blocks: u32) -> Bins {
        let (min_exponent, count) = (*exponents.start(), exponents.count());
        Bins { min_exponent, blocks, table: Vec::new(), chunks: Vec::new(), queues: vec![Vec::new(); count] }
    }

    pub(crate) fn count(&self) -> u32 {
        self.queues.len() as u32
    }

    /// Bytes of a bin's blocks.
    pub(crate) fn size(&self, bin: u32) -> u64 {
        1 << (self.min_exponent + bin)
    }

    /// Bytes of a bin's chunks.
    pub(crate) fn chunk_size(&self, bin: u32) -> u64 {
        self.size(bin) * u64::from(self.blocks)
    }

    /// The bin for a request of `size` > 0 bytes, or `None` if it is above all of them.
    #[inline]
    pub(crate) fn bin(&self, size: u64) -> Option<u32> {
        let exponent = u64::BITS - (size - 1).leading_zeros();
        let bin = exponent.saturating_sub(self.min_exponent);
        (bin < self.count()).then_some(bin)
    }

    /// Makes sure that the stream has queues.
    #[inline]
    pub(crate) fn open(&mut self, stream: StreamId) {
        if self.queues.first().is_some_and(|queues| queues.len() <= stream.index()) {
            self.queues.iter_mut().for_each(|queues| queues.resize(stream.index() + 1, EMPTY));
        }
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Record> {
        self.table.get(slot as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Record> {
        self.table.get_mut(slot as usize)
    }

    /// Covers all work on the free blocks of a bin and stream. `None` if there is no such fence yet.
    pub(crate) fn fence(&self, bin: u32, stream: u32) -> Option<Fence> {
        self.queues[bin as usize][stream as usize].fence
    }

    #[inline]
    pub(crate) fn set_fence(&mut self, bin: u32, fence: Fence) {
        self.queues[bin as usize][fence.stream.index()].fence = Some(fence);
    }

    /// The first stream with a free block in a bin.
    pub(crate) fn any(&self, bin: u32) -> Option<u32> {
        self.queues[bin as usize].iter().position(|queue| queue.first != NONE).map(|stream| stream as u32)
    }

    /// Hands the block at the front of a queue to a stream.
    #[inline]
    pub(crate) fn pop(&mut self, bin: u32, from: u32, stream: u32) -> Option<(u32, Record)> {
        let queue = &mut self.queues[bin as usize][from as usize];
        let slot = queue.first;
        let record = self.table.get_mut(slot as usize)?;
        queue.first = record.next;
        (record.stream, record.state) = (stream, State::Live);
        Some((slot, *record))
    }

    /// Puts a block at the end of its stream's queue.
    #[inline]
    pub(crate) fn push(&mut self, slot: u32) {
        let record = &mut self.table[slot as usize];
        (record.next, record.state) = (NONE, State::Free);
        let queue = &mut self.queues[record.bin as usize][record.stream as usize];
        let last = std::mem::replace(&mut queue.last, slot);
        if queue.first == NONE {
            queue.first = slot;
        } else {
            self.table[last as usize].next = slot;
        }
    }

    /// Cuts a chunk into blocks, at the end of the stream's queue. The stream may still be at work in its memory: the
    /// pool hands out what was freed on it.
    pub(crate) fn add(&mut self, block: Block, bin: u32, stream: u32) {
        let (ptr, size, blocks) = (block.ptr(), self.size(bin), self.blocks);
        let at = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        let chunk = Some(Chunk { block, bin });
        match self.chunks.get_mut(at) {
            Some(place) => *place = chunk,
            None => {
                self.chunks.push(chunk);
                let gone = Record { ptr: 0, next: NONE, stream, generation: 0, bin, state: State::Gone };
                self.table.resize(self.table.len() + blocks as usize, gone);
            }
        }
        for n in 0..blocks {
            let slot = at as u32 * blocks + n;
            let record = &mut self.table[slot as usize];
            (record.ptr, record.stream, record.bin) = (ptr + u64::from(n) * size, stream, bin);
            self.push(slot);
        }
        self.queues[bin as usize][stream as usize].fence = None;
    }

    /// Whether the table has room for another chunk: slots stay below 2³¹.
    pub(crate) fn has_room(&self) -> bool {
        self.chunks.iter().any(Option::is_none) || self.table.len() + (self.blocks as usize) < 1 << 31
    }

    fn records(&self, chunk: usize) -> &[Record] {
        let first = chunk * self.blocks as usize;
        &self.table[first..first + self.blocks as usize]
    }

    /// Chunks whose blocks are all free.
    pub(crate) fn unused_chunks(&self) -> Vec<usize> {
        let is_free = |chunk: &usize| self.records(*chunk).iter().all(|record| record.state == State::Free);
        (0..self.chunks.len()).filter(|&chunk| self.chunks[chunk].is_some()).filter(is_free).collect()
    }

    /// Takes the pool's block out of an unused chunk; [`Bins::restore`] undoes it. Its blocks are still in queues.
    pub(crate) fn remove(&mut self, chunk: usize) -> Option<Chunk> {
        self.chunks[chunk].take()
    }

    pub(crate) fn restore(&mut self, at: usize, chunk: Chunk) {
        self.chunks[at] = Some(chunk);
    }

    /// Takes the blocks of removed chunks out of the queues.
    pub(crate) fn purge(&mut self) {
        for (chunk, records) in self.chunks.iter().zip(self.table.chunks_mut(self.blocks as usize)) {
            if chunk.is_none() {
                records.iter_mut().for_each(|record| record.state = State::Gone);
            }
        }
        for queue in self.queues.iter_mut().flatten() {
            let mut at = std::mem::replace(&mut queue.first, NONE);
            while let Some(&Record { next, state, .. }) = self.table.get(at as usize) {
                if state == State::Free {
                    match queue.first {
                        NONE => queue.first = at,
                        _ => self.table[queue.last as usize].next = at,
                    }
                    queue.last = at;
                    self.table[at as usize].next = NONE;
                }
                at = next;
            }
        }
    }

    /// The chunks: address, bytes of their blocks, and those.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (u64, u64, &[Record])> {
        let chunks = self.chunks.iter().enumerate().filter_map(|(at, chunk)| Some((at, chunk.as_ref()?)));
        chunks.map(|(at, chunk)| (chunk.block.ptr(), self.size(chunk.bin), self.records(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const CHUNK: u32 = 4;

    fn chunk(number: u32) -> Block {
        Block::new(u64::from(number + 1) << 20, number, 0).unwrap()
    }

    #[test]
    fn a_request_goes_to_the_smallest_bin_that_holds_it() {
        let bins = Bins::new(18..=22, 128);
        let cases =
            [(1, Some(0)), (1 << 18, Some(0)), ((1 << 18) + 1, Some(1)), (3 << 20, Some(4)), (4 << 20, Some(4))];
        for (size, bin) in cases.into_iter().chain([((4 << 20) + 1, None), (u64::MAX, None)]) {
            assert_eq!(bins.bin(size), bin, "{size}");
        }
        assert_eq!((bins.size(2), bins.chunk_size(4)), (1 << 20, 512 << 20));
    }

    #[test]
    fn blocks_come_back_in_the_order_of_their_frees() {
        let mut bins = Bins::new(9..=10, CHUNK);
        bins.open(StreamId(1));
        let mut queues: [[VecDeque<u64>; 2]; 2] = Default::default();
        let (mut live, mut chunks, mut removed): (Vec<u32>, u32, u32) = (Vec::new(), 0, 0);
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            let (bin, from, stream) = (random(2) as u32, random(2) as u32, random(2) as u32);
            match random(64) {
                0..31 if !live.is_empty() => {
                    let slot = live.swap_remove(random(live.len() as u64) as usize);
                    let &Record { ptr, stream, bin, .. } = bins.get(slot).unwrap();
                    bins.push(slot);
                    queues[bin as usize][stream as usize].push_back(ptr);
                }
                31 if live.len() < 40 => {
                    bins.add(chunk(chunks), bin, stream);
                    let blocks = (0..CHUNK).map(|n| chunk(chunks).ptr() + u64::from(n) * bins.size(bin));
                    queues[bin as usize][stream as usize].extend(blocks);
                    chunks += 1;
                }
                32 => {
                    for at in bins.unused_chunks() {
                        let Chunk { block, bin } = bins.remove(at).unwrap();
                        let end = block.ptr() + bins.chunk_size(bin);
                        for queue in queues.iter_mut().flatten() {
                            queue.retain(|ptr| !(block.ptr()..end).contains(ptr));
                        }
                        removed += 1;
                    }
                    bins.purge();
                }
                _ => {
                    let expected = queues[bin as usize][from as usize].pop_front();
                    let got = bins.pop(bin, from, stream);
                    assert_eq!(got.map(|(_, record)| record.ptr), expected);
                    live.extend(got.map(|(slot, _)| slot));
                }
            }
        }
        assert!(chunks > 20 && removed > 10, "{chunks} {removed}");
    }
}
