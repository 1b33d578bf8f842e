//! The heads of one stream's free lists, found by class without a search.
//!
//! Classes are dense near 0 and can be far apart, so the table has two levels, and a leaf comes into being with the first
//! block of its classes:
//!
//! ```text
//! class   … 10 bits: leaf … │ 10 bits: place in it
//! leaves  [ ▪ ][   ][ ▪ ]
//!           │         └─▶ 1,024 heads
//!           └─▶ 1,024 heads
//! ```

use std::collections::BTreeMap;

/// No slot: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;
const LEAF: usize = 1 << 10;
/// Classes from here on (4 GiB, with pages of 4 KiB) are so rare that an ordered map holds them.
const TABLE: u64 = 1 << 20;

/// The first free block of each class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heads {
    leaves: Vec<Option<Box<[u32; LEAF]>>>,
    rest: BTreeMap<u64, u32>,
}

impl Heads {
    /// The head of a class, or [`NONE`].
    #[inline]
    pub(crate) fn get(&self, class: u64) -> u32 {
        if class >= TABLE {
            return self.rest.get(&class).copied().unwrap_or(NONE);
        }
        match self.leaves.get(class as usize / LEAF) {
            Some(Some(leaf)) => leaf[class as usize % LEAF],
            _ => NONE,
        }
    }

    /// Puts a head in place of the one before.
    #[inline]
    pub(crate) fn set(&mut self, class: u64, head: u32) {
        if class >= TABLE {
            match head {
                NONE => self.rest.remove(&class),
                _ => self.rest.insert(class, head),
            };
            return;
        }
        let at = class as usize / LEAF;
        if at >= self.leaves.len() {
            self.leaves.resize(at + 1, None);
        }
        let leaf = self.leaves[at].get_or_insert_with(|| Box::new([NONE; LEAF]));
        leaf[class as usize % LEAF] = head;
    }

    /// The largest class up to `last` that has a block. To go through all of them, from the largest down, walks over the
    /// table once.
    pub(crate) fn largest(&self, last: u64) -> Option<u64> {
        if let Some((&class, _)) = self.rest.range(..=last).next_back() {
            return Some(class);
        }
        let last = last.min(TABLE - 1) as usize;
        self.leaves.iter().enumerate().take(last / LEAF + 1).rev().find_map(|(at, leaf)| {
            let end = (last - at * LEAF + 1).min(LEAF);
            let place = leaf.as_ref()?[..end].iter().rposition(|&head| head != NONE)?;
            Some((at * LEAF + place) as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_a_map() {
        let mut heads = Heads::default();
        let mut model = BTreeMap::new();
        let mut seed = 1u64;
        for step in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let class = match seed >> 62 {
                0 => seed >> 58 << 58 | (seed >> 32 & 7),
                1 => TABLE - 4 + (seed >> 32 & 7),
                _ => seed >> 32 & 0xfff,
            };
            assert_eq!(heads.get(class), model.get(&class).copied().unwrap_or(NONE), "{class}");
            if seed >> 60 & 1 == 0 {
                heads.set(class, step);
                model.insert(class, step);
            } else {
                heads.set(class, NONE);
                model.remove(&class);
            }
            if step % 64 == 0 {
                for last in [class, u64::MAX] {
                    assert_eq!(heads.largest(last), model.range(..=last).next_back().map(|(&class, _)| class));
                }
            }
        }
    }
}
