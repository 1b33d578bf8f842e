//! Small requests, which share driver pages.

use super::arena::{PAGE, STEP};
use std::collections::BTreeMap;

const STEPS: u16 = (PAGE / STEP) as u16;

/// The gaps of shared pages. A page whose last request goes is not shared any more.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Steps {
    /// Length in steps and birth of each gap, by address.
    gaps: BTreeMap<u64, (u16, u64)>,
    /// Their addresses, by length and birth.
    by_len: BTreeMap<(u16, u64), u64>,
    births: u64,
}

impl Steps {
    /// A page is shared from now on.
    pub(super) fn add(&mut self, page: u64) {
        self.add_gap(page, STEPS);
    }

    /// Takes `len` > 0 steps from a shared page, if one has them.
    pub(super) fn take(&mut self, len: u16) -> Option<u64> {
        let (&(found, _), &ptr) = self.by_len.range((len, 0)..).next()?;
        self.remove_gap(ptr);
        if found > len {
            self.add_gap(ptr + u64::from(len) * STEP, found - len);
        }
        Some(ptr)
    }

    /// Gives back what `take` returned. If this was the last of its page, the page's address.
    pub(super) fn give(&mut self, ptr: u64, len: u16) -> Option<u64> {
        let page = ptr & !(PAGE - 1);
        let (mut start, mut len) = (ptr, len);
        let end = ptr + u64::from(len) * STEP;
        if end < page + PAGE
            && let Some(after) = self.remove_gap(end)
        {
            len += after;
        }
        let before = self.gaps.range(page..ptr).next_back().map(|(&at, &(len, _))| (at, len));
        if let Some((at, before)) = before.filter(|&(at, len)| at + u64::from(len) * STEP == ptr) {
            self.remove_gap(at);
            (start, len) = (at, before + len);
        }
        if len == STEPS {
            if self.gaps.is_empty() {
                self.births = 0;
            }
            return Some(page);
        }
        self.add_gap(start, len);
        None
    }

    fn add_gap(&mut self, ptr: u64, len: u16) {
        self.births += 1;
        self.gaps.insert(ptr, (len, self.births));
        self.by_len.insert((len, self.births), ptr);
    }

    /// The length of the gap that was there, if one was.
    fn remove_gap(&mut self, ptr: u64) -> Option<u16> {
        let (len, birth) = self.gaps.remove(&ptr)?;
        self.by_len.remove(&(len, birth));
        Some(len)
    }
}
