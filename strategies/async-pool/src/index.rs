//! Free parts by size and address: the smallest that is large enough, of equal ones the lowest.
//!
//! Sizes are sorted into classes, 32 to each doubling. A bit says whether a class has parts, and the parts of one class
//! are a search tree, whose balance comes from a random-looking priority for each slot (a treap). Classes are narrow, so
//! trees are small; and where very many parts are of one size, a tree is no list.
//!
//! ```text
//! classes   ..1....1.1...     two bit scans find the first that is not empty
//! trees       │    └──▶ (40 KiB at 0x…) ─┬─ (40 KiB at 0x…)
//!             └──▶ (6 KiB at 0x…)        └─ (41 KiB at 0x…)
//! ```
//!
//! The nodes of all indices lie in one table, by slot: a part is in one index at most.

use allocator_core::rank;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// Sizes count in units of 512 bytes.
const SHIFT: u32 = 9;
/// 2^5 classes to each doubling.
const SPLIT: u32 = 5;
const WORDS: usize = 26;
const CLASSES: usize = WORDS * 64;

/// A free part: what it is ordered by, and which one it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub size: u64,
    pub ptr: u64,
    pub slot: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    size: u64,
    ptr: u64,
    left: u32,
    right: u32,
}

/// The nodes of the trees, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes(Vec<Node>);

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    roots: Vec<u32>,
    /// Which classes have parts.
    classes: [u64; WORDS],
    /// Which words of `classes` are not 0.
    words: u64,
}

/// Grows with the size; sizes of one class differ by less than a 32nd.
#[inline]
fn class(size: u64) -> usize {
    let units = size >> SHIFT;
    match units.checked_ilog2() {
        Some(log @ SPLIT..) => {
            let part = (units >> (log - SPLIT)) & ((1 << SPLIT) - 1);
            ((log - SPLIT + 1) << SPLIT) as usize + part as usize
        }
        _ => units as usize,
    }
}

impl Nodes {
    fn key(&self, slot: u32) -> Key {
        let Node { size, ptr, .. } = self.0[slot as usize];
        Key { size, ptr, slot }
    }

    /// Writes a node; its slot.
    #[inline]
    fn write(&mut self, key: Key, left: u32, right: u32) -> u32 {
        let at = key.slot as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, Node { size: 0, ptr: 0, left: NONE, right: NONE });
        }
        self.0[at] = Node { size: key.size, ptr: key.ptr, left, right };
        key.slot
    }

    /// The tree with one more key. Most trees are empty before.
    #[inline]
    fn with(&mut self, root: u32, key: Key) -> u32 {
        if root == NONE { self.write(key, NONE, NONE) } else { self.insert(root, key) }
    }

    fn insert(&mut self, root: u32, key: Key) -> u32 {
        if rank(key.slot) > rank(root) {
            let (left, right) = self.split(root, key);
            return self.write(key, left, right);
        }
        let Node { left, right, .. } = self.0[root as usize];
        if key < self.key(root) {
            self.0[root as usize].left = self.with(left, key);
        } else {
            self.0[root as usize].right = self.with(right, key);
        }
        root
    }

    /// What is below the key and what is above.
    fn split(&mut self, root: u32, key: Key) -> (u32, u32) {
        if root == NONE {
            return (NONE, NONE);
        }
        let Node { left, right, .. } = self.0[root as usize];
        if self.key(root) < key {
            let (below, above) = self.split(right, key);
            self.0[root as usize].right = below;
            (root, above)
        } else {
            let (below, above) = self.split(left, key);
            self.0[root as usize].left = above;
            (below, root)
        }
    }

    /// The tree without the key, which is in it.
    #[inline]
    fn without(&mut self, root: u32, key: Key) -> u32 {
        if root == key.slot {
            let Node { left, right, .. } = self.0[root as usize];
            self.join(left, right)
        } else {
            self.remove(root, key)
        }
    }

    fn remove(&mut self, root: u32, key: Key) -> u32 {
        if root == NONE {
            return NONE;
        }
        let Node { left, right, .. } = self.0[root as usize];
        if key < self.key(root) {
            self.0[root as usize].left = self.without(left, key);
        } else {
            self.0[root as usize].right = self.without(right, key);
        }
        root
    }

    /// One tree of two, all of the first below all of the second.
    fn join(&mut self, below: u32, above: u32) -> u32 {
        if below == NONE || above == NONE {
            return below.min(above);
        }
        if rank(below) > rank(above) {
            self.0[below as usize].right = self.join(self.0[below as usize].right, above);
            below
        } else {
            self.0[above as usize].left = self.join(below, self.0[above as usize].left);
            above
        }
    }

    /// The first in a tree of at least `size` bytes.
    #[inline]
    fn first_from(&self, root: u32, size: u64) -> Option<Key> {
        let (mut at, mut found) = (root, NONE);
        while at != NONE {
            let node = &self.0[at as usize];
            if node.size < size {
                at = node.right;
            } else {
                found = at;
                at = node.left;
            }
        }
        (found != NONE).then(|| self.key(found))
    }

    /// Visits a tree in order from `size` bytes on, until one is chosen.
    fn find(&self, root: u32, size: u64, choose: &mut dyn FnMut(Key) -> bool) -> Option<Key> {
        if root == NONE {
            return None;
        }
        let Node { left, right, .. } = self.0[root as usize];
        let key = self.key(root);
        if key.size < size {
            return self.find(right, size, choose);
        }
        if let Some(found) = self.find(left, size, choose) {
            return Some(found);
        }
        if choose(key) { Some(key) } else { self.find(right, size, choose) }
    }
}

impl Index {
    pub(crate) fn new() -> Index {
        Index { roots: vec![NONE; CLASSES], classes: [0; WORDS], words: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words == 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, nodes: &mut Nodes, key: Key) {
        let class = class(key.size);
        self.roots[class] = nodes.with(self.roots[class], key);
        self.classes[class / 64] |= 1 << (class % 64);
        self.words |= 1 << (class / 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, nodes: &mut Nodes, key: Key) {
        let class = class(key.size);
        self.roots[class] = nodes.without(self.roots[class], key);
        if self.roots[class] == NONE {
            self.classes[class / 64] &= !(1 << (class % 64));
            if self.classes[class / 64] == 0 {
                self.words &= !(1 << (class / 64));
            }
        }
    }

    /// The first class that has parts, from this one on.
    #[inline]
    fn class_from(&self, class: usize) -> Option<usize> {
        let word = class / 64;
        let bits = self.classes.get(word)? >> (class % 64) << (class % 64);
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let above = self.words >> (word + 1) << (word + 1);
        let word = above.trailing_zeros() as usize;
        Some(word * 64 + self.classes.get(word)?.trailing_zeros() as usize)
    }

    /// The smallest part of at least `size` bytes; of equal ones that with the lowest address.
    #[inline]
    pub(crate) fn best_fit(&self, nodes: &Nodes, size: u64) -> Option<Key> {
        let own = class(size);
        if let Some(key) = nodes.first_from(self.roots[own], size) {
            return Some(key);
        }
        nodes.first_from(self.roots[self.class_from(own + 1)?], size)
    }

    /// The first in that order that is chosen.
    pub(crate) fn find(&self, nodes: &Nodes, size: u64, choose: &mut dyn FnMut(Key) -> bool) -> Option<Key> {
        let mut next = self.class_from(class(size));
        while let Some(class) = next {
            if let Some(key) = nodes.find(self.roots[class], size, choose) {
                return Some(key);
            }
            next = self.class_from(class + 1);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn classes_grow_with_the_size_and_are_narrow() {
        let sizes: Vec<u64> =
            (9..63).flat_map(|log| (0..16).map(move |part| (1 << log) + (part << (log - 4)))).collect();
        let classes: Vec<usize> = sizes.iter().map(|&size| class(size)).collect();
        assert!(classes.is_sorted() && class(0) == 0 && class(u64::MAX) < CLASSES);
        for (&size, &class_of) in sizes.iter().zip(&classes).filter(|(size, _)| **size >= 16384) {
            assert!(class(size + size / 32) > class_of, "{size}");
        }
    }

    #[test]
    fn the_same_part_is_found_as_in_an_ordered_set() {
        let (mut nodes, mut index, mut set) = (Nodes::default(), Index::new(), BTreeSet::new());
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut found = 0;
        for slot in 0..20_000 {
            let size = ((1 + random() % 4000) * 512) << (random() % 14);
            if random() % 2 == 0 {
                let key = Key { size, ptr: random() << 9, slot };
                index.insert(&mut nodes, key);
                set.insert(key);
            } else {
                let wanted = set.range(Key { size, ptr: 0, slot: 0 }..).next().copied();
                assert_eq!(index.best_fit(&nodes, size), wanted);
                let odd = set.range(Key { size, ptr: 0, slot: 0 }..).find(|key| key.slot % 2 == 1).copied();
                assert_eq!(index.find(&nodes, size, &mut |key| key.slot % 2 == 1), odd);
                if let Some(key) = wanted {
                    found += 1;
                    index.remove(&mut nodes, key);
                    set.remove(&key);
                }
            }
        }
        assert!(found > 5_000 && !set.is_empty());
        for key in set {
            assert_eq!(index.best_fit(&nodes, 0), Some(key));
            index.remove(&mut nodes, key);
        }
        assert!(index.is_empty() && index.best_fit(&nodes, 1).is_none());
    }

    #[test]
    fn many_parts_of_one_size_are_a_flat_tree() {
        let (mut nodes, mut index) = (Nodes::default(), Index::new());
        for slot in 0..100_000 {
            index.insert(&mut nodes, Key { size: 512, ptr: u64::from(slot) << 9, slot });
        }
        fn depth(nodes: &Nodes, root: u32) -> usize {
            if root == NONE {
                return 0;
            }
            let Node { left, right, .. } = nodes.0[root as usize];
            1 + depth(nodes, left).max(depth(nodes, right))
        }
        let depth = depth(&nodes, index.roots[class(512)]);
        assert!(depth < 60, "{depth}");
    }
}
