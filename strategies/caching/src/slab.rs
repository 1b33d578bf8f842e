//! Blocks as 32-byte records in one vector.
//!
//! Everything is counted in granules of 512 bytes. A block's key holds its size above its address token, so that
//! comparing keys is PyTorch's (size, address) order and splitting and merging are one addition:
//!
//! ```text
//! key   63 ........ 34 33 .......... 0        meta  31 ....... 8 7 ... 0
//!       size, granules  address token               arena        flags
//! ```
//!
//! Slot 0 is a permanent block that is never free. A missing neighbour is slot 0, so neighbour tests and link writes
//! need no null checks; what gets written into slot 0 is never read.

/// log2 of the granule in bytes.
pub(crate) const GRANULE_SHIFT: u32 = 9;
/// Bits of the address token: 8 TiB of granules.
pub(crate) const TOKEN_BITS: u32 = 34;
/// All token bits.
pub(crate) const TOKEN_MASK: u64 = (1 << TOKEN_BITS) - 1;
/// Sizes have 30 bits: blocks below 512 GiB.
pub(crate) const SIZE_LIMIT: u64 = 1 << (64 - TOKEN_BITS);

/// Free, with memory behind it, in its arena's index.
pub(crate) const FREE: u32 = 1;
/// Free addresses of an expandable segment without memory.
pub(crate) const UNMAPPED: u32 = 1 << 1;
/// Part of an expandable segment.
pub(crate) const EXPANDABLE: u32 = 1 << 2;
/// Used on further streams since it was handed out.
pub(crate) const USED: u32 = 1 << 3;
/// Freed by its owner, waiting for other streams.
pub(crate) const PENDING: u32 = 1 << 4;
/// Handed out.
pub(crate) const LIVE: u32 = 1 << 5;
/// In the small pool.
pub(crate) const SMALL: u32 = 1 << 6;
/// Any of these says that the record stands for a block.
pub(crate) const IN_USE: u32 = FREE | UNMAPPED | PENDING | LIVE;
/// Position of the arena number.
pub(crate) const ARENA_SHIFT: u32 = 8;

/// One block, or the head of a list of free blocks.
#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
pub(crate) struct Node {
    /// Size and address token.
    pub key: u64,
    /// The neighbour below in the same segment, or 0.
    pub prev: u32,
    /// The neighbour above, or 0. In a list head: the number of spilled blocks of its bin. In an unused record: the
    /// next unused one.
    pub next: u32,
    /// Free: the previous block in its list (itself, if it is not in a list but in the index's ordered map). Handed
    /// out: the low half of the requested bytes.
    pub l: u32,
    /// Free: the next block in its list (or itself). Handed out: the high half of the requested bytes.
    pub r: u32,
    /// How often the record had been handed out.
    pub generation: u32,
    /// Arena number and flags.
    pub meta: u32,
}

impl Node {
    #[inline(always)]
    pub(crate) fn size(&self) -> u64 {
        self.key >> TOKEN_BITS
    }

    #[inline(always)]
    pub(crate) fn token(&self) -> u64 {
        self.key & TOKEN_MASK
    }

    #[inline(always)]
    pub(crate) fn arena(&self) -> usize {
        (self.meta >> ARENA_SHIFT) as usize
    }

    #[inline(always)]
    pub(crate) fn requested(&self) -> u64 {
        u64::from(self.l) | u64::from(self.r) << 32
    }

    #[inline(always)]
    pub(crate) fn set_requested(&mut self, bytes: u64) {
        self.l = bytes as u32;
        self.r = (bytes >> 32) as u32;
    }

    /// Whether a flag of `mask` is set.
    #[inline(always)]
    pub(crate) fn is(&self, mask: u32) -> bool {
        self.meta & mask != 0
    }

    /// Whether the block shares its segment with others.
    #[inline(always)]
    pub(crate) fn is_split(&self) -> bool {
        self.prev | self.next != 0
    }
}

/// Key of a block of `size` granules at `token`.
#[inline(always)]
pub(crate) fn key(size: u64, token: u64) -> u64 {
    size << TOKEN_BITS | token
}

/// The records.
#[derive(Clone)]
pub(crate) struct Slab {
    nodes: Vec<Node>,
    unused: Unused,
}

/// The chain of unused records, through their `next`.
#[derive(Clone)]
pub(crate) struct Unused {
    /// 0 ends the chain.
    first: u32,
}

impl Unused {
    /// A record to use; its generation survives, the rest is to be written. There must be one: see [`Slab::reserve`].
    #[inline(always)]
    pub(crate) fn take(&mut self, nodes: &[Node]) -> u32 {
        let slot = self.first;
        self.first = nodes[slot as usize].next;
        slot
    }

    /// Gives a record back.
    #[inline(always)]
    pub(crate) fn give(&mut self, nodes: &mut [Node], slot: u32) {
        let node = &mut nodes[slot as usize];
        node.meta = 0;
        node.next = self.first;
        self.first = slot;
    }
}

impl std::ops::Index<u32> for Slab {
    type Output = Node;
    #[inline(always)]
    fn index(&self, slot: u32) -> &Node {
        &self.nodes[slot as usize]
    }
}

impl std::ops::IndexMut<u32> for Slab {
    #[inline(always)]
    fn index_mut(&mut self, slot: u32) -> &mut Node {
        &mut self.nodes[slot as usize]
    }
}

impl Slab {
    pub(crate) fn new() -> Slab {
        Slab { nodes: vec![Node::default()], unused: Unused { first: 0 } }
    }

    /// The records as a slice, for code that must not read their place and number again after each write to one.
    #[inline(always)]
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The same, to write to.
    #[inline(always)]
    pub(crate) fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// The records and the chain of unused ones.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut [Node], &mut Unused) {
        (&mut self.nodes, &mut self.unused)
    }

    /// Makes sure that there is an unused record.
    #[inline(always)]
    pub(crate) fn reserve(&mut self) {
        if self.unused.first == 0 {
            self.grow();
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.nodes.push(Node::default());
        self.unused.first = self.len() - 1;
    }

    /// A record to use; its generation survives, the rest is to be written.
    pub(crate) fn take(&mut self) -> u32 {
        self.reserve();
        self.unused.take(&self.nodes)
    }

    /// Gives a record back.
    pub(crate) fn give(&mut self, slot: u32) {
        self.unused.give(&mut self.nodes, slot);
    }

    /// `n` fresh records in a row, for list heads. Returns the first.
    pub(crate) fn take_run(&mut self, n: u32) -> u32 {
        let first = self.len();
        self.nodes.resize(self.nodes.len() + n as usize, Node::default());
        first
    }

    /// The number of records, used and unused.
    pub(crate) fn len(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The record, or `None` for a number that was never given out.
    #[inline(always)]
    pub(crate) fn get(&self, slot: u32) -> Option<&Node> {
        self.nodes.get(slot as usize)
    }
}
