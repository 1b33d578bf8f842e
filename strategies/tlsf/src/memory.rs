//! All memory: the streams' heaps, what is held of the device, and which empty segments go back.

use crate::heap::Heap;
use crate::params::Rules;
use crate::slab::{Node, Slab, State};
use allocator_core::{AllocError, Block, Device, DeviceError, PoolId, Span, SpanState, StreamId};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub rules: Rules,
    pub slab: Slab,
    heaps: Vec<Heap>,
    /// Bytes held of the device.
    pub reserved: u64,
}

impl Memory {
    pub(crate) fn new(rules: Rules) -> Memory {
        Memory { rules, slab: Slab::new(), heaps: Vec::new(), reserved: 0 }
    }

    /// The number of a stream's heap. There are few streams.
    #[inline]
    pub(crate) fn heap(&mut self, stream: StreamId) -> u32 {
        match self.heaps.iter().position(|heap| heap.stream == stream) {
            Some(at) => at as u32,
            None => {
                self.heaps.push(Heap::new(stream, &self.rules));
                (self.heaps.len() - 1) as u32
            }
        }
    }

    /// The stream that a block belongs to.
    pub(crate) fn stream(&self, slot: u32) -> StreamId {
        self.heaps[self.slab.nodes[slot as usize].heap as usize].stream
    }

    /// The slot of a live block, or `None` if it is not ours or not live any more.
    #[inline]
    pub(crate) fn live(&self, block: &Block) -> Option<u32> {
        let node = self.slab.nodes.get(block.slot() as usize)?;
        let is_live = matches!(node.state, State::Live | State::Shared);
        let is_same = node.generation == block.generation() && node.ptr == block.ptr();
        (is_live && is_same).then_some(block.slot())
    }

    /// A free block of `size` granules or more.
    #[inline]
    pub(crate) fn find(&self, heap: u32, size: u64) -> Option<u32> {
        self.heaps[heap as usize].find(&self.slab, size, self.rules.search)
    }

    /// Hands a free block out, cut to `size` granules.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32, size: u64) -> Option<Block> {
        let heap = self.slab.nodes[slot as usize].heap;
        self.heaps[heap as usize].take(&mut self.slab, slot, size, 1 << self.rules.granule_log);
        let node = &self.slab.nodes[slot as usize];
        Block::new(node.ptr, slot, node.generation)
    }

    /// Frees a block. A segment that becomes empty by it goes back to the device if the stream keeps enough empty ones
    /// and `gives_back` allows it. After an error nothing has changed.
    #[inline]
    pub(crate) fn put(&mut self, dev: &mut dyn Device, slot: u32, gives_back: bool) -> Result<(), DeviceError> {
        let number = self.slab.nodes[slot as usize].heap as usize;
        let heap = &mut self.heaps[number];
        let surplus = (gives_back && heap.empty >= self.rules.keep_empty).then(|| self.slab.would_be_whole(slot));
        let Some(segment) = surplus.flatten() else {
            heap.put(&mut self.slab, slot);
            return Ok(());
        };
        dev.free(segment)?;
        let whole = heap.put(&mut self.slab, slot);
        self.reserved -= self.slab.nodes[whole as usize].size << self.rules.granule_log;
        heap.remove(&mut self.slab, whole);
        Ok(())
    }

    /// A new segment with room for `size` granules, as one free block; `None` if the device has no memory for it.
    pub(crate) fn grow(&mut self, dev: &mut dyn Device, heap: u32, size: u64) -> Result<Option<u32>, AllocError> {
        let largest = self.heaps[heap as usize].segments.iter().map(|&(_, size)| size).max().unwrap_or(0);
        for size in self.rules.segments(size, largest) {
            let bytes = size << self.rules.granule_log;
            let ptr = match dev.malloc(bytes) {
                Ok(ptr) => ptr,
                Err(DeviceError::OutOfMemory) => continue,
                Err(other) => return Err(other.into()),
            };
            if ptr == 0 || ptr.checked_add(bytes).is_none() {
                dev.free(ptr)?;
                return Err(AllocError::AddressSpace);
            }
            self.reserved += bytes;
            let segment = Node { ptr, size, heap, state: State::Free, ..Node::default() };
            return Ok(Some(self.heaps[heap as usize].add(&mut self.slab, segment)));
        }
        Ok(None)
    }

    /// Gives empty segments back until at most `keep` bytes are held.
    pub(crate) fn give_back(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        for heap in &mut self.heaps {
            let mut at = 0;
            while self.reserved > keep && at < heap.segments.len() {
                let (slot, size) = heap.segments[at];
                let node = &self.slab.nodes[slot as usize];
                if node.state != State::Free || !node.is_whole() {
                    at += 1;
                    continue;
                }
                dev.free(node.ptr)?;
                self.reserved -= size << self.rules.granule_log;
                heap.remove(&mut self.slab, slot);
            }
        }
        Ok(())
    }

    /// The blocks of a segment by address.
    fn blocks(&self, first: u32) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(&self.slab.nodes[first as usize]), |node| {
            (node.above != 0).then(|| &self.slab.nodes[node.above as usize])
        })
    }

    pub(crate) fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        let mut segments: Vec<u32> =
            self.heaps.iter().flat_map(|heap| &heap.segments).map(|&(first, _)| first).collect();
        segments.sort_unstable_by_key(|&first| self.slab.nodes[first as usize].ptr);
        for first in segments {
            let segment = self.slab.nodes[first as usize].ptr;
            let stream = self.stream(first);
            for node in self.blocks(first) {
                let state = match node.state {
                    State::Free | State::Unused => SpanState::Cached,
                    State::Live | State::Shared => SpanState::Live,
                    State::Pending => SpanState::Pending,
                };
                let size = node.size << self.rules.granule_log;
                visit(Span { segment, ptr: node.ptr, size, state, stream, pool: PoolId::DEFAULT });
            }
        }
    }
}
