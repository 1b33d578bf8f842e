//! Live blocks by address: a radix table, since a hash map would cost more than the allocation itself.
//!
//! The root has an entry per MiB of addresses. It holds the block itself while only one starts in that MiB, which is
//! so for large blocks. With a second one it names a leaf, which has an entry for every 512 bytes. Devices take
//! addresses from a few far-apart arenas, so the root is made in pieces of 2 TiB; the system provides their memory as
//! it is touched. The first piece is most often the only one, and is found without looking for it.

use crate::request::Block;
use std::collections::BTreeMap;

/// The block's address; its slot (high half) and generation.
type Entry = [u64; 2];

const EMPTY: Entry = [0; 2];
/// In place of an address: the second number names a leaf (high half) and counts the blocks in it. No block in the
/// table has this address, as it is not a multiple of 512.
const LEAF: u64 = 1;

const STEP_BITS: u32 = 9;
const ROOT_BITS: u32 = 20;
const CHUNK_BITS: u32 = 41;
const ADDRESS_BITS: u32 = 47;
const CHUNKS: usize = 1 << (ADDRESS_BITS - CHUNK_BITS);
const CHUNK_ENTRIES: usize = 1 << (CHUNK_BITS - ROOT_BITS);
const LEAF_ENTRIES: usize = 1 << (ROOT_BITS - STEP_BITS);
/// The bits an address may have to be in the table.
const REGULAR: u64 = (1 << ADDRESS_BITS) - (1 << STEP_BITS);

/// Blocks by address.
#[derive(Debug)]
pub(super) struct AddressTable {
    root: Root,
    leaves: Vec<Entry>,
    /// Leaves without blocks, for reuse. All their entries are empty.
    free_leaves: Vec<usize>,
    /// Blocks at addresses that no current device hands out: unaligned or beyond 47 bits.
    irregular: BTreeMap<u64, u64>,
}

/// Pieces of entries by address.
#[derive(Debug)]
struct Root {
    /// The first address of the piece that came first.
    base: u64,
    /// That piece.
    first: Vec<Entry>,
    /// All others.
    others: [Vec<Entry>; CHUNKS],
}

impl Root {
    /// The entry of a regular address, if its piece exists.
    #[inline]
    fn get_mut(&mut self, ptr: u64) -> Option<&mut Entry> {
        if ptr & !REGULAR != 0 {
            return None;
        }
        let at = (ptr.wrapping_sub(self.base) >> ROOT_BITS) as usize;
        if at < self.first.len() {
            return Some(&mut self.first[at]);
        }
        self.others[(ptr >> CHUNK_BITS) as usize].get_mut((ptr >> ROOT_BITS) as usize % CHUNK_ENTRIES)
    }

    /// The entry of a regular address, whose piece is made if need be.
    fn get_or_make(&mut self, ptr: u64) -> &mut Entry {
        let chunk = ptr >> CHUNK_BITS;
        let place = (ptr >> ROOT_BITS) as usize % CHUNK_ENTRIES;
        if self.first.is_empty() {
            self.base = chunk << CHUNK_BITS;
        }
        let entries = if self.base >> CHUNK_BITS == chunk { &mut self.first } else { &mut self.others[chunk as usize] };
        if entries.is_empty() {
            *entries = vec![EMPTY; CHUNK_ENTRIES];
        }
        &mut entries[place]
    }
}

#[inline]
fn leaf_index(leaf: usize, ptr: u64) -> usize {
    leaf * LEAF_ENTRIES + (ptr >> STEP_BITS) as usize % LEAF_ENTRIES
}

#[inline]
fn leaf_of(entry: Entry) -> usize {
    (entry[1] >> 32) as usize
}

#[inline]
fn block_of([ptr, key]: Entry) -> Option<Block> {
    Block::new(ptr, (key >> 32) as u32, key as u32)
}

impl AddressTable {
    pub(super) fn new() -> AddressTable {
        AddressTable {
            root: Root { base: 0, first: Vec::new(), others: [const { Vec::new() }; CHUNKS] },
            leaves: Vec::new(),
            free_leaves: Vec::new(),
            irregular: BTreeMap::new(),
        }
    }

    /// Adds a block; one at the same address is replaced. Blocks of zero bytes need no entry.
    #[inline]
    pub(super) fn insert(&mut self, block: Block) {
        let (ptr, key) = (block.ptr(), u64::from(block.slot()) << 32 | u64::from(block.generation()));
        match self.root.get_mut(ptr) {
            Some(entry) if entry[0] == 0 => *entry = [ptr, key],
            Some(entry) if entry[0] == LEAF => {
                let place = &mut self.leaves[leaf_index(leaf_of(*entry), ptr)];
                entry[1] += u64::from(place[0] == 0);
                *place = [ptr, key];
            }
            _ => self.insert_cold(ptr, key),
        }
    }

    /// Removes the block at an address and returns it.
    #[inline]
    pub(super) fn take(&mut self, ptr: u64) -> Option<Block> {
        match self.root.get_mut(ptr) {
            Some(entry) if entry[0] == ptr => block_of(std::mem::replace(entry, EMPTY)),
            Some(entry) if entry[0] == LEAF => {
                let leaf = leaf_of(*entry);
                let place = &mut self.leaves[leaf_index(leaf, ptr)];
                let block = block_of(*place)?;
                *place = EMPTY;
                entry[1] -= 1;
                if entry[1] as u32 == 0 {
                    *entry = EMPTY;
                    self.free_leaves.push(leaf);
                }
                Some(block)
            }
            Some(_) => None,
            None => self.take_cold(ptr),
        }
    }

    /// The block at an address, for a look: it stays in the table.
    pub(super) fn peek(&mut self, ptr: u64) -> Option<Block> {
        match self.root.get_mut(ptr).copied() {
            Some(entry) if entry[0] == ptr => block_of(entry),
            Some(entry) if entry[0] == LEAF => block_of(self.leaves[leaf_index(leaf_of(entry), ptr)]),
            Some(_) => None,
            None if ptr == Block::EMPTY_PTR => Some(Block::empty()),
            None => block_of([ptr, *self.irregular.get(&ptr)?]),
        }
    }

    /// The first block in 2 TiB, the second one in a MiB, or an irregular address.
    #[cold]
    fn insert_cold(&mut self, ptr: u64, key: u64) {
        if ptr == Block::EMPTY_PTR {
            return;
        }
        if ptr & !REGULAR != 0 {
            self.irregular.insert(ptr, key);
            return;
        }
        let entry = self.root.get_or_make(ptr);
        if entry[0] == 0 || entry[0] == ptr {
            *entry = [ptr, key];
            return;
        }
        let leaf = self.free_leaves.pop().unwrap_or_else(|| {
            self.leaves.resize(self.leaves.len() + LEAF_ENTRIES, EMPTY);
            self.leaves.len() / LEAF_ENTRIES - 1
        });
        let first = std::mem::replace(entry, [LEAF, (leaf as u64) << 32 | 2]);
        self.leaves[leaf_index(leaf, first[0])] = first;
        self.leaves[leaf_index(leaf, ptr)] = [ptr, key];
    }

    #[cold]
    fn take_cold(&mut self, ptr: u64) -> Option<Block> {
        if ptr == Block::EMPTY_PTR { Some(Block::empty()) } else { block_of([ptr, self.irregular.remove(&ptr)?]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7000_0000_0000;

    fn block(ptr: u64, slot: u32) -> Block {
        Block::new(ptr, slot, !slot).unwrap()
    }

    #[test]
    fn agrees_with_an_ordered_map() {
        let mut table = AddressTable::new();
        let mut map = BTreeMap::new();
        let mut state = 5u64;
        for slot in 0..200_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            // Few addresses in few MiB of far-apart arenas, so that entries turn into leaves and back.
            let arena = [0, 0x5000, BASE, (1 << 47) - (4 << 20), 1 << 50][random as usize % 5];
            let ptr = arena + (random >> 3) % 4 * (1 << 20) + (random >> 5) % 8 * 512 + (random >> 8) / (1 << 20) % 2;
            assert_eq!(table.peek(ptr), map.get(&ptr).map(|&slot| block(ptr, slot)));
            if map.contains_key(&ptr) || random.is_multiple_of(3) || ptr == 0 {
                assert_eq!(table.take(ptr), map.remove(&ptr).map(|slot| block(ptr, slot)));
            } else {
                table.insert(block(ptr, slot));
                map.insert(ptr, slot);
            }
        }
        let most = table.leaves.len() / LEAF_ENTRIES;
        assert!(most <= 5 * 4, "emptied leaves are used again");
        for (ptr, slot) in map {
            assert_eq!(table.take(ptr), Some(block(ptr, slot)));
        }
        assert_eq!(table.free_leaves.len(), most, "no leaf is left behind");
        assert!(table.leaves.iter().all(|entry| *entry == EMPTY));
    }

    #[test]
    fn no_address_is_mistaken_for_a_mark() {
        let mut table = AddressTable::new();
        table.insert(block(512, 1));
        for ptr in [0, LEAF, 1024, 511] {
            assert_eq!((table.peek(ptr), table.take(ptr)), (None, None), "{ptr}");
        }
        table.insert(block(1024, 2));
        for ptr in [0, LEAF, 1536] {
            assert_eq!((table.peek(ptr), table.take(ptr)), (None, None), "{ptr}");
        }
        assert_eq!(table.take(512), Some(block(512, 1)));
        assert_eq!(table.take(512), None);
        assert_eq!(table.take(1024), Some(block(1024, 2)));
    }

    #[test]
    fn a_block_at_the_same_address_is_replaced() {
        let mut table = AddressTable::new();
        for ptr in [BASE, BASE + 512, BASE + 513, BASE] {
            table.insert(block(ptr, 1));
            table.insert(block(ptr, 2));
            assert_eq!(table.peek(ptr), Some(block(ptr, 2)));
        }
        for ptr in [BASE, BASE + 512, BASE + 513] {
            assert_eq!((table.take(ptr), table.take(ptr)), (Some(block(ptr, 2)), None));
        }
        assert_eq!(table.free_leaves.len(), 1);
    }

    #[test]
    fn blocks_of_zero_bytes_are_always_there() {
        let mut table = AddressTable::new();
        table.insert(Block::empty());
        for _ in 0..2 {
            assert_eq!(table.take(Block::EMPTY_PTR), Some(Block::empty()));
            assert_eq!(table.peek(Block::EMPTY_PTR), Some(Block::empty()));
        }
        assert!(table.irregular.is_empty());
    }
}
