//! Search trees of free pieces by size and address, threaded through the table of records.
//!
//! They are treaps: ordered by key from left to right, and by a hash of the slot from the root down. The hash plays the
//! part of chance, so that a tree of n pieces is about log n deep, whatever order they came in, and the same in every run.

use crate::record::{NONE, Record};
use allocator_core::rank;

/// Where the name of a tree's node stands.
#[derive(Clone, Copy)]
enum Link {
    Root,
    Left(u32),
    Right(u32),
}

#[inline]
fn set(table: &mut [Record], root: &mut u32, link: Link, to: u32) {
    match link {
        Link::Root => *root = to,
        Link::Left(of) => table[of as usize].left = to,
        Link::Right(of) => table[of as usize].right = to,
    }
}

/// The smallest piece of at least `size` bytes, of equal ones that with the lowest address; or [`NONE`].
#[inline]
pub(crate) fn best_fit(table: &[Record], root: u32, size: u64) -> u32 {
    let (mut at, mut found) = (root, NONE);
    while at != NONE {
        let node = &table[at as usize];
        if node.size >= size {
            (found, at) = (at, node.left);
        } else {
            at = node.right;
        }
    }
    found
}

/// Hangs a piece into a tree.
#[inline]
pub(crate) fn insert(table: &mut [Record], root: &mut u32, slot: u32) {
    let (key, own) = (table[slot as usize].key(), rank(slot));
    let (mut link, mut at) = (Link::Root, *root);
    while at != NONE && rank(at) > own {
        let node = &table[at as usize];
        (link, at) = if node.key() < key { (Link::Right(at), node.right) } else { (Link::Left(at), node.left) };
    }
    set(table, root, link, slot);
    // What hung there comes below: smaller keys to the left, larger ones to the right.
    let (mut smaller, mut larger) = (Link::Left(slot), Link::Right(slot));
    while at != NONE {
        let node = table[at as usize];
        if node.key() < key {
            set(table, root, smaller, at);
            (smaller, at) = (Link::Right(at), node.right);
        } else {
            set(table, root, larger, at);
            (larger, at) = (Link::Left(at), node.left);
        }
    }
    set(table, root, smaller, NONE);
    set(table, root, larger, NONE);
}

/// Takes a piece out of its tree.
#[inline]
pub(crate) fn remove(table: &mut [Record], root: &mut u32, slot: u32) {
    let Record { left, right, .. } = table[slot as usize];
    let key = table[slot as usize].key();
    let (mut link, mut at) = (Link::Root, *root);
    while at != slot && at != NONE {
        let node = &table[at as usize];
        (link, at) = if node.key() < key { (Link::Right(at), node.right) } else { (Link::Left(at), node.left) };
    }
    let (mut smaller, mut larger) = (left, right);
    while smaller != NONE && larger != NONE {
        if rank(smaller) > rank(larger) {
            set(table, root, link, smaller);
            link = Link::Right(smaller);
            smaller = table[smaller as usize].right;
        } else {
            set(table, root, link, larger);
            link = Link::Left(larger);
            larger = table[larger as usize].left;
        }
    }
    set(table, root, link, if smaller == NONE { larger } else { smaller });
}

/// Appends all pieces of a tree to `slots`.
pub(crate) fn collect(table: &[Record], root: u32, slots: &mut Vec<u32>) {
    let mut next = slots.len();
    slots.extend((root != NONE).then_some(root));
    while let Some(&at) = slots.get(next) {
        let node = &table[at as usize];
        slots.extend([node.left, node.right].into_iter().filter(|&slot| slot != NONE));
        next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far below the root a tree reaches.
    fn depth(table: &[Record], at: u32) -> u32 {
        let node = |at: u32| &table[at as usize];
        if at == NONE { 0 } else { 1 + depth(table, node(at).left).max(depth(table, node(at).right)) }
    }

    #[test]
    fn the_order_of_arrival_does_not_matter() {
        const N: u32 = 4096;
        let arrivals: [fn(u32) -> u32; 4] = [|n| n, |n| N - 1 - n, |n| n * 37 % N, |n| n / 2 + n % 2 * (N / 2)];
        for arrival in arrivals {
            let mut table: Vec<Record> = (0..N).map(|n| Record::new(u64::from(arrival(n)) << 9, 512, 0, 0)).collect();
            let mut root = NONE;
            (0..N).for_each(|slot| insert(&mut table, &mut root, slot));
            assert!(depth(&table, root) < 40, "{}", depth(&table, root));
            let mut slots = Vec::new();
            collect(&table, root, &mut slots);
            slots.sort_unstable();
            assert!(slots.into_iter().eq(0..N));
            // Equal sizes are found by address.
            for n in 0..u64::from(N) {
                let slot = best_fit(&table, root, 100);
                assert_eq!(table[slot as usize].ptr, n << 9);
                remove(&mut table, &mut root, slot);
            }
            assert_eq!(root, NONE);
        }
    }
}
