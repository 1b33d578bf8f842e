//! Where the simulated `malloc` puts things: first fit, lowest address, in driver pages of 2 MiB.
//!
//! Requests under 2 MiB share pages in steps of 512 bytes, larger ones get whole pages, as on a card. So a strategy
//! that asks the driver for odd sizes loses memory here as it would there.

use super::first_fit::FirstFit;
use std::collections::BTreeMap;

/// Bytes of a driver page.
pub(super) const PAGE: u64 = 2 << 20;
/// Alignment of addresses, and the step in which small requests share a page.
pub(super) const STEP: u64 = 512;
const BASE: u64 = 0x7000_0000_0000;
/// Pages from `BASE` to the end of the 47-bit address space.
const PAGES: u32 = 8 << 20;
const STEPS: u16 = (PAGE / STEP) as u16;

/// A run of free steps in a shared page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Gap {
    start: u16,
    len: u16,
}

const WHOLE_PAGE: Gap = Gap { start: 0, len: STEPS };

/// Memory given out by `malloc`.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena {
    /// Bytes asked for, by address.
    live: BTreeMap<u64, u64>,
    /// Pages from here on were never used, or are free again up to the end.
    top: u32,
    /// Lengths of the runs of free pages below `top`, by first page.
    runs: FirstFit,
    /// Free steps of each shared page, by address. A page without live requests is not shared any more.
    shared: BTreeMap<u32, Vec<Gap>>,
    /// The longest gap of each shared page.
    room: FirstFit,
    asked: u64,
    pages: u64,
}

fn page_of(ptr: u64) -> u32 {
    ((ptr - BASE) / PAGE) as u32
}

fn address_of(page: u32) -> u64 {
    BASE + u64::from(page) * PAGE
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
            self.take_steps(size.div_ceil(STEP) as u16, left)?
        } else {
            address_of(self.take_pages(size.div_ceil(PAGE), left)?)
        };
        self.live.insert(ptr, size);
        self.asked += size;
        Some(ptr)
    }

    /// Gives back what `take` returned; its size, or `None` if `ptr` is not live.
    pub(super) fn give(&mut self, ptr: u64) -> Option<u64> {
        let size = self.live.remove(&ptr)?;
        self.asked -= size;
        if size < PAGE {
            self.give_steps(ptr, size.div_ceil(STEP) as u16);
        } else {
            self.give_pages(page_of(ptr), size.div_ceil(PAGE) as u32);
        }
        Some(size)
    }

    fn take_pages(&mut self, count: u64, left: u64) -> Option<u32> {
        if count > left / PAGE {
            return None;
        }
        let len = u32::try_from(count).ok()?;
        let page = match self.runs.first_at_least(len) {
            Some(page) => {
                let run = self.runs.get(page);
                self.runs.set(page, 0);
                if run > len {
                    self.runs.set(page + len, run - len);
                }
                page
            }
            None if len <= PAGES - self.top => {
                let page = self.top;
                self.top += len;
                page
            }
            None => return None,
        };
        self.pages += count;
        Some(page)
    }

    /// The live neighbours tell where the free runs on both sides begin and end.
    fn give_pages(&mut self, page: u32, len: u32) {
        self.pages -= u64::from(len);
        let end = page + len;
        let before = self.live.range(..address_of(page)).next_back();
        let first = before.map_or(0, |(&ptr, &size)| page_of(ptr + size - 1) + 1);
        if first < page {
            self.runs.set(first, 0);
        }
        match self.live.range(address_of(end)..).next() {
            Some((&ptr, _)) => {
                let after = page_of(ptr);
                self.runs.set(end, 0);
                self.runs.set(first, after - first);
            }
            None => self.top = first,
        }
    }

    fn take_steps(&mut self, len: u16, left: u64) -> Option<u64> {
        let page = match self.room.first_at_least(len.into()) {
            Some(page) => page,
            None => {
                let page = self.take_pages(1, left)?;
                self.shared.insert(page, vec![WHOLE_PAGE]);
                page
            }
        };
        let gaps = self.shared.get_mut(&page)?;
        let at = gaps.iter().position(|gap| gap.len >= len)?;
        let start = gaps[at].start;
        if gaps[at].len == len {
            gaps.remove(at);
        } else {
            gaps[at] = Gap { start: start + len, len: gaps[at].len - len };
        }
        self.room.set(page, longest(gaps));
        Some(address_of(page) + u64::from(start) * STEP)
    }

    fn give_steps(&mut self, ptr: u64, len: u16) {
        let page = page_of(ptr);
        let Some(gaps) = self.shared.get_mut(&page) else { return };
        let mut gap = Gap { start: ((ptr - address_of(page)) / STEP) as u16, len };
        let mut at = gaps.partition_point(|other| other.start < gap.start);
        if gaps.get(at).is_some_and(|next| next.start == gap.start + gap.len) {
            gap.len += gaps.remove(at).len;
        }
        if at > 0 && gaps[at - 1].start + gaps[at - 1].len == gap.start {
            at -= 1;
            let before = gaps.remove(at);
            gap = Gap { start: before.start, len: before.len + gap.len };
        }
        if gap == WHOLE_PAGE {
            self.shared.remove(&page);
            self.room.set(page, 0);
            self.give_pages(page, 1);
        } else {
            gaps.insert(at, gap);
            self.room.set(page, longest(gaps));
        }
    }
}

fn longest(gaps: &[Gap]) -> u32 {
    gaps.iter().map(|gap| u32::from(gap.len)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 1 << 50;

    /// First fit as one would write it for a proof: a scan over the live allocations, in whole pages.
    fn scan(live: &BTreeMap<u64, u64>, size: u64) -> u64 {
        let need = size.next_multiple_of(PAGE);
        let mut at = BASE;
        for (&ptr, &size) in live {
            if ptr - at >= need {
                break;
            }
            at = ptr + size.next_multiple_of(PAGE);
        }
        at
    }

    #[test]
    fn whole_pages_go_where_a_scan_finds_them() {
        let mut arena = Arena::default();
        let mut live = BTreeMap::new();
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            if live.len() > 200 || (random.is_multiple_of(2) && !live.is_empty()) {
                let nth = (random / 2) as usize % live.len();
                let ptr = *live.keys().nth(nth).unwrap();
                assert_eq!(arena.give(ptr), live.remove(&ptr));
            } else {
                let size = PAGE + random % (20 * PAGE);
                let expected = scan(&live, size);
                assert_eq!(arena.take(size, ALL), Some(expected));
                live.insert(expected, size);
            }
            assert_eq!(arena.asked(), live.values().sum::<u64>());
            assert_eq!(arena.used(), live.values().map(|size| size.next_multiple_of(PAGE)).sum::<u64>());
        }
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
                let size = 1 + random % (1 << (1 + random % 23));
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
        assert_eq!((arena.asked(), arena.used(), arena.top), (0, 0, 0));
        assert_eq!(arena.runs.first_at_least(1), None);
        assert_eq!(arena.room.first_at_least(1), None);
    }

    #[test]
    fn small_requests_share_pages() {
        let mut arena = Arena::default();
        let ptrs: Vec<u64> = (0..64).map(|_| arena.take(512, PAGE).unwrap()).collect();
        assert_eq!((arena.asked(), arena.used()), (64 * 512, PAGE));
        assert_eq!(ptrs[63] - ptrs[0], 63 * 512);
        assert_eq!(arena.take(PAGE - 512, 0), None, "no room in the page, none on the device");
        assert_eq!(arena.give(ptrs[5]), Some(512));
        assert_eq!(arena.take(100, 0), Some(ptrs[5]), "the lowest gap that fits");
        assert_eq!((arena.asked(), arena.used()), (63 * 512 + 100, PAGE));
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let mut arena = Arena::default();
        assert_eq!(arena.take(2 * PAGE, 2 * PAGE - 1), None);
        assert_eq!(arena.take(u64::MAX, u64::MAX), None);
        assert_eq!(arena.take(2 * PAGE, 2 * PAGE), Some(BASE));
        assert_eq!(arena.give(BASE + PAGE), None);
        assert_eq!(arena.give(0), None);
    }
}
