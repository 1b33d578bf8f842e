//! Search trees of free pieces by address, which know the largest size below each node, threaded through the table.
//!
//! ```text
//! first fit for 5           (4, max 9)            numbers: sizes, by address from left to right
//!                          ╱          ╲           left: its max is 5, so there is one, and it comes first
//!                  (2, max 5)       (9, max 9)
//!                           ╲
//!                            (5, max 5)           found
//! ```
//!
//! They are treaps: a hash of the slot says which node is higher. The hash plays the part of chance, so that a tree of n
//! pieces is about log n deep, whatever order they came in, and the same in every run.

use crate::piece::{NONE, Piece};
use allocator_core::rank;

/// The largest size in a tree.
#[inline]
pub(crate) fn max(table: &[Piece], root: u32) -> u64 {
    table.get(root as usize).map_or(0, |node| node.max)
}

#[inline]
fn largest(table: &[Piece], at: u32) -> u64 {
    let node = &table[at as usize];
    node.size.max(max(table, node.left)).max(max(table, node.right))
}

/// The piece with the lowest address of at least `size` bytes, or [`NONE`].
#[inline]
pub(crate) fn first_fit(table: &[Piece], root: u32, size: u64) -> u32 {
    if max(table, root) < size {
        return NONE;
    }
    let mut at = root;
    while at != NONE {
        let node = &table[at as usize];
        if max(table, node.left) >= size {
            at = node.left;
        } else if node.size >= size {
            break;
        } else {
            at = node.right;
        }
    }
    at
}

/// A piece of the tree has another size. Its address may change as long as it stays between the same neighbours.
#[inline]
pub(crate) fn resized(table: &mut [Piece], slot: u32) {
    let mut at = slot;
    while at != NONE {
        let max = largest(table, at);
        let node = &mut table[at as usize];
        if node.max == max {
            break;
        }
        (node.max, at) = (max, node.parent);
    }
}

/// Puts `to` where its parent points to `from`.
#[inline]
fn relink(table: &mut [Piece], root: &mut u32, parent: u32, from: u32, to: u32) {
    match table.get_mut(parent as usize) {
        None => *root = to,
        Some(node) if node.left == from => node.left = to,
        Some(node) => node.right = to,
    }
    if let Some(node) = table.get_mut(to as usize) {
        node.parent = parent;
    }
}

/// Lifts a node above its parent.
fn lift(table: &mut [Piece], root: &mut u32, slot: u32) {
    let below = table[slot as usize].parent;
    let is_left = table[below as usize].left == slot;
    let node = table[slot as usize];
    let inner = if is_left { node.right } else { node.left };
    relink(table, root, table[below as usize].parent, below, slot);
    if is_left {
        (table[slot as usize].right, table[below as usize].left) = (below, inner);
    } else {
        (table[slot as usize].left, table[below as usize].right) = (below, inner);
    }
    table[below as usize].parent = slot;
    if let Some(node) = table.get_mut(inner as usize) {
        node.parent = below;
    }
    table[slot as usize].max = table[below as usize].max;
    table[below as usize].max = largest(table, below);
}

/// Hangs a piece into a tree.
#[inline]
pub(crate) fn insert(table: &mut [Piece], root: &mut u32, slot: u32) {
    let Piece { ptr, size, .. } = table[slot as usize];
    let (mut parent, mut at, mut is_left) = (NONE, *root, false);
    while at != NONE {
        let node = &mut table[at as usize];
        node.max = node.max.max(size);
        (parent, is_left) = (at, ptr < node.ptr);
        at = if is_left { node.left } else { node.right };
    }
    let node = &mut table[slot as usize];
    (node.left, node.right, node.parent, node.max) = (NONE, NONE, parent, size);
    match table.get_mut(parent as usize) {
        None => *root = slot,
        Some(above) if is_left => above.left = slot,
        Some(above) => above.right = slot,
    }
    while table[slot as usize].parent != NONE && rank(slot) > rank(table[slot as usize].parent) {
        lift(table, root, slot);
    }
}

/// Takes a piece out of its tree.
#[inline]
pub(crate) fn remove(table: &mut [Piece], root: &mut u32, slot: u32) {
    loop {
        let Piece { left, right, parent, .. } = table[slot as usize];
        if left != NONE && right != NONE {
            lift(table, root, if rank(left) > rank(right) { left } else { right });
            continue;
        }
        relink(table, root, parent, slot, if left == NONE { right } else { left });
        resized(table, parent);
        break;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Checks what every node says of those below, and how deep the tree is.
    fn check(table: &[Piece], at: u32, parent: u32) -> (u64, u32) {
        let Some(node) = table.get(at as usize) else { return (0, 0) };
        assert_eq!(node.parent, parent);
        let (left, right) = (check(table, node.left, at), check(table, node.right, at));
        assert_eq!(node.max, node.size.max(left.0).max(right.0));
        (node.max, 1 + left.1.max(right.1))
    }

    #[test]
    fn it_finds_what_a_walk_by_address_finds() {
        let mut table: Vec<Piece> = (0..512).map(|n| Piece::new(n * 1000, 1, 0)).collect();
        let (mut root, mut model) = (NONE, BTreeMap::new());
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut found = 0;
        for step in 0..40_000 {
            let (slot, size) = (random(512) as u32, 1 + random(200));
            if step % 3 == 0 {
                let walked = model.iter().find(|(_, had)| **had >= size).map_or(NONE, |(&slot, _)| slot);
                assert_eq!(first_fit(&table, root, size), walked);
                found += u32::from(walked != NONE);
                if walked != NONE {
                    remove(&mut table, &mut root, walked);
                    model.remove(&walked);
                }
            } else {
                table[slot as usize].size = size;
                match model.insert(slot, size) {
                    Some(_) => resized(&mut table, slot),
                    None => insert(&mut table, &mut root, slot),
                }
            }
            if step % 100 == 0 {
                let (max, depth) = check(&table, root, NONE);
                assert_eq!(max, model.values().copied().max().unwrap_or(0));
                assert!(depth < 30, "{depth}");
            }
        }
        assert!(found > 5_000);
    }
}
