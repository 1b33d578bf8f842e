//! Where `malloc` puts things and what the card loses to them: three levels, as seen on a card.
//!
//! ```text
//! requests below 2 MiB      512-byte steps of shared pages: the smallest gap that fits, of equals the oldest
//!         | 2 MiB pages
//! larger ones, and pages    gaps of the newest chunk that has one large enough: the smallest, of equals the lowest
//!         | chunks
//! chunks                    multiples of 32 MiB of address space, from the top down
//! ```
//!
//! Memory is lost to the card by the page, addresses are taken by the chunk. Every rule was read off 12,800 calls of
//! `cuMemAlloc` and `cuMemFree` on an H200 (driver 580.159.04), and reproduces each address of them; the tests have some.

use super::chunks::Chunks;
use super::steps::Steps;
use std::collections::BTreeMap;

/// Bytes of a driver page.
pub(super) const PAGE: u64 = 2 << 20;
/// Alignment of addresses, and the step in which small requests share a page.
pub(super) const STEP: u64 = 512;

/// Memory given out by `malloc`.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena {
    /// Bytes asked for, by address.
    live: BTreeMap<u64, u64>,
    chunks: Chunks,
    steps: Steps,
    asked: u64,
    pages: u64,
}

impl Arena {
    /// Bytes that the strategy asked for.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Bytes of the driver pages in use.
    pub(super) fn used(&self) -> u64 {
        self.pages * PAGE
    }

    /// Addresses and sizes of the allocations that begin at or below `ptr`, by falling address.
    pub(super) fn up_to(&self, ptr: u64) -> impl Iterator<Item = (u64, u64)> {
        self.live.range(..=ptr).rev().map(|(&ptr, &size)| (ptr, size))
    }

    /// Takes `size` > 0 bytes, using at most `left` more bytes of the device.
    pub(super) fn take(&mut self, size: u64, left: u64) -> Option<u64> {
        let ptr = if size < PAGE {
            let len = size.div_ceil(STEP) as u16;
            match self.steps.take(len) {
                Some(ptr) => ptr,
                None => {
                    let page = self.take_pages(1, left)?;
                    self.steps.add(page);
                    self.steps.take(len)?
                }
            }
        } else {
            self.take_pages(size.div_ceil(PAGE), left)?
        };
        self.live.insert(ptr, size);
        self.asked += size;
        Some(ptr)
    }

    /// Gives back what `take` returned; its size, or `None` if `ptr` is not live.
    pub(super) fn give(&mut self, ptr: u64) -> Option<u64> {
        let size = self.live.remove(&ptr)?;
        self.asked -= size;
        if size >= PAGE {
            self.give_pages(ptr, size.div_ceil(PAGE));
        } else if let Some(page) = self.steps.give(ptr, size.div_ceil(STEP) as u16) {
            self.give_pages(page, 1);
        }
        Some(size)
    }

    fn take_pages(&mut self, count: u64, left: u64) -> Option<u64> {
        if count > left / PAGE {
            return None;
        }
        let ptr = self.chunks.take(u32::try_from(count).ok()?)?;
        self.pages += count;
        Some(ptr)
    }

    fn give_pages(&mut self, ptr: u64, count: u64) {
        self.pages -= count;
        // What is live fits into 32 bits, or it would not have been given.
        self.chunks.give(ptr, count as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 1 << 50;

    /// What a card answered: `a SLOT SIZE ADDRESS` and `f SLOT`, addresses relative to the first one.
    fn agrees_with_the_card(recording: &str) {
        let mut arena = Arena::default();
        let mut slots = BTreeMap::new();
        let mut first = None;
        let mut count = 0;
        for (line, text) in recording.lines().enumerate().filter(|(_, text)| !text.starts_with('#')) {
            let words: Vec<&str> = text.split(' ').collect();
            match words[..] {
                ["a", slot, size, offset] => {
                    let ptr = arena.take(size.parse().unwrap(), ALL).unwrap();
                    let offset: i64 = offset.parse().unwrap();
                    let expected = first.get_or_insert(ptr).wrapping_add_signed(offset);
                    assert_eq!(ptr.wrapping_sub(expected) as i64, 0, "line {}: {text}", line + 1);
                    slots.insert(slot, ptr);
                    count += 1;
                }
                ["f", slot] => assert!(arena.give(slots.remove(slot).unwrap()).is_some()),
                _ => panic!("line {}: {text}", line + 1),
            }
        }
        assert!(count > 300, "{count}");
        for ptr in slots.into_values() {
            arena.give(ptr).unwrap();
        }
        assert_eq!((arena.asked(), arena.used()), (0, 0));
    }

    #[test]
    fn every_address_is_the_one_that_the_card_gave() {
        agrees_with_the_card(include_str!("recordings/large.txt"));
        agrees_with_the_card(include_str!("recordings/small.txt"));
        agrees_with_the_card(include_str!("recordings/mixed.txt"));
        agrees_with_the_card(include_str!("recordings/segments.txt"));
    }

    #[test]
    fn small_and_large_never_overlap_and_leave_nothing() {
        let mut arena = Arena::default();
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let mut state = 3u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            if live.len() > 300 || (random.is_multiple_of(2) && !live.is_empty()) {
                let nth = (random / 2) as usize % live.len();
                let ptr = *live.keys().nth(nth).unwrap();
                assert_eq!(arena.give(ptr), live.remove(&ptr));
                assert_eq!(arena.give(ptr), None);
            } else {
                let size = 1 + random % (1 << (1 + random % 28));
                let ptr = arena.take(size, ALL).unwrap();
                assert_eq!(ptr % STEP, 0);
                let before = live.range(..ptr).next_back();
                assert!(before.is_none_or(|(&other, &size)| other + size <= ptr));
                assert!(live.range(ptr..).next().is_none_or(|(&other, _)| ptr + size <= other));
                live.insert(ptr, size);
            }
        }
        for ptr in live.keys() {
            arena.give(*ptr);
        }
        assert_eq!((arena.asked(), arena.used()), (0, 0));
        let fresh = Arena::default();
        assert_eq!(arena.chunks.longest_gaps(), fresh.chunks.longest_gaps());
        assert_eq!(arena.steps, fresh.steps);
    }

    #[test]
    fn small_requests_share_pages() {
        let mut arena = Arena::default();
        let ptrs: Vec<u64> = (0..64).map(|_| arena.take(512, PAGE).unwrap()).collect();
        assert_eq!((arena.asked(), arena.used()), (64 * 512, PAGE));
        assert_eq!(ptrs[63] - ptrs[0], 63 * 512);
        assert_eq!(arena.take(PAGE - 512, 0), None, "no room in the page, none on the device");
        assert_eq!(arena.give(ptrs[5]), Some(512));
        assert_eq!(arena.take(100, 0), Some(ptrs[5]), "the smallest gap that fits");
        assert_eq!((arena.asked(), arena.used()), (63 * 512 + 100, PAGE));
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let mut arena = Arena::default();
        assert_eq!(arena.take(2 * PAGE, 2 * PAGE - 1), None);
        assert_eq!(arena.take(u64::MAX, u64::MAX), None);
        let ptr = arena.take(2 * PAGE, 2 * PAGE).unwrap();
        assert_eq!(arena.give(ptr + PAGE), None);
        assert_eq!(arena.give(0), None);
    }
}
