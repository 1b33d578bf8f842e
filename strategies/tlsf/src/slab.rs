//! Blocks as records in one vector, and the chain of neighbours in a segment.
//!
//! ```text
//! segment   [ a | free | b | free ]      below ◀── record ──▶ above; 0 at both ends
//! ```
//!
//! Slot 0 stands for "none" and is never free, so a neighbour can be looked at without asking whether there is one.

/// What a record stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum State {
    /// Nothing.
    #[default]
    Unused,
    /// A block in an index.
    Free,
    /// A block that was handed out.
    Live,
    /// The same, and other streams use it, too.
    Shared,
    /// A block that was freed and waits for other streams.
    Pending,
}

/// One block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Node {
    /// Address of the first byte.
    pub ptr: u64,
    /// Size in granules.
    pub size: u64,
    /// The neighbour at lower addresses.
    pub below: u32,
    /// The neighbour at higher addresses.
    pub above: u32,
    /// Free: the block before it in its list.
    pub prev: u32,
    /// Free: the block behind it in its list. Unused: the next unused record.
    pub next: u32,
    /// How often the record's block had been freed.
    pub generation: u32,
    /// Number of its stream's heap.
    pub heap: u32,
    /// What it is.
    pub state: State,
}

impl Node {
    /// Whether it is all of its segment.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.below | self.above == 0
    }
}

/// The records.
#[derive(Clone, Debug)]
pub(crate) struct Slab {
    pub nodes: Vec<Node>,
    /// First of the chain of unused records; 0 ends it.
    unused: u32,
}

impl Slab {
    pub(crate) fn new() -> Slab {
        Slab { nodes: vec![Node::default()], unused: 0 }
    }

    /// A record to use, given its contents; only its generation survives.
    #[inline]
    pub(crate) fn take(&mut self, node: Node) -> u32 {
        let slot = self.unused;
        if slot == 0 {
            self.nodes.push(node);
            return (self.nodes.len() - 1) as u32;
        }
        let record = &mut self.nodes[slot as usize];
        self.unused = record.next;
        *record = Node { generation: record.generation, ..node };
        slot
    }

    /// Gives a record back.
    #[inline]
    pub(crate) fn give(&mut self, slot: u32) {
        let node = &mut self.nodes[slot as usize];
        node.state = State::Unused;
        node.next = self.unused;
        self.unused = slot;
    }

    /// Whether the block would be all of its segment once it is free and merged; then, the segment's first byte.
    #[inline]
    pub(crate) fn would_be_whole(&self, slot: u32) -> Option<u64> {
        let node = &self.nodes[slot as usize];
        let below = &self.nodes[node.below as usize];
        let above = &self.nodes[node.above as usize];
        // Free blocks have no free neighbours: behind one is a block in use, or the segment's end.
        let ends_below = node.below == 0 || below.state == State::Free && below.below == 0;
        let ends_above = node.above == 0 || above.state == State::Free && above.above == 0;
        (ends_below && ends_above).then_some(if node.below == 0 { node.ptr } else { below.ptr })
    }

    /// Cuts the part above the first `size` granules off a larger block. The new block is in no list.
    #[inline]
    pub(crate) fn split(&mut self, slot: u32, size: u64, granule: u64) -> u32 {
        let node = self.nodes[slot as usize];
        let rest =
            Node { ptr: node.ptr + size * granule, size: node.size - size, below: slot, state: State::Free, ..node };
        let rest = self.take(rest);
        if node.above != 0 {
            self.nodes[node.above as usize].below = rest;
        }
        let node = &mut self.nodes[slot as usize];
        node.size = size;
        node.above = rest;
        rest
    }

    /// Adds the neighbour above, which is in no list, to a block.
    #[inline]
    pub(crate) fn absorb_above(&mut self, slot: u32) {
        let gone = self.nodes[slot as usize].above;
        let Node { size, above, .. } = self.nodes[gone as usize];
        let node = &mut self.nodes[slot as usize];
        node.size += size;
        node.above = above;
        if above != 0 {
            self.nodes[above as usize].below = slot;
        }
        self.give(gone);
    }
}
