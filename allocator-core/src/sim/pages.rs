//! Virtual memory of the simulated device: reserved addresses, and the page table behind them.

use super::arena::PAGE;
use crate::device::{CallKind, Handle};
use crate::error::DeviceError;
use crate::page_table::PageTable;
use std::collections::BTreeMap;

const BASE: u64 = 0x6000_0000_0000;
const END: u64 = 0x7000_0000_0000;
/// Reservations begin at multiples of this, so that no two of them are ever taken for one.
const RESERVE_STEP: u64 = 1 << 30;

/// Reserved, created and mapped memory.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    /// Sizes of the reserved ranges, by address.
    ranges: BTreeMap<u64, u64>,
    next_range: u64,
    next_handle: u64,
    table: PageTable,
}

impl Default for Pages {
    fn default() -> Pages {
        Pages { ranges: BTreeMap::new(), next_range: BASE, next_handle: 1, table: PageTable::default() }
    }
}

fn is_page_multiple(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(PAGE)
}

impl Pages {
    /// Bytes of physical memory that are not back yet.
    pub(super) fn created(&self) -> u64 {
        self.table.bytes()
    }

    /// Addresses and sizes of the mappings that begin at or below `va`, by falling address.
    pub(super) fn up_to(&self, va: u64) -> impl Iterator<Item = (u64, u64)> {
        self.table.up_to(va)
    }

    /// Addresses are not used twice while there are fresh ones, so that a stale address never hits a new range.
    pub(super) fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        if !is_page_multiple(size) {
            return Err(DeviceError::Invalid(CallKind::Reserve));
        }
        let span = size.checked_next_multiple_of(RESERVE_STEP).ok_or(DeviceError::OutOfMemory)?;
        let va = if span <= END - self.next_range {
            self.next_range += span;
            self.next_range - span
        } else {
            self.released_range(span).ok_or(DeviceError::OutOfMemory)?
        };
        self.ranges.insert(va, size);
        Ok(va)
    }

    /// The lowest hole of `span` bytes between the reserved ranges.
    fn released_range(&self, span: u64) -> Option<u64> {
        let mut at = BASE;
        for (&va, size) in &self.ranges {
            if va - at >= span {
                return Some(at);
            }
            at = va + size.next_multiple_of(RESERVE_STEP);
        }
        (span <= END - at).then_some(at)
    }

    pub(super) fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        if self.ranges.get(&va) != Some(&size) || self.table.has_mapping(va, va + size) {
            return Err(DeviceError::Invalid(CallKind::Unreserve));
        }
        self.ranges.remove(&va);
        Ok(())
    }

    /// Creates physical memory if at most `left` bytes are enough.
    pub(super) fn create(&mut self, size: u64, left: u64) -> Result<Handle, DeviceError> {
        if !is_page_multiple(size) {
            return Err(DeviceError::Invalid(CallKind::Create));
        }
        if size > left {
            return Err(DeviceError::OutOfMemory);
        }
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.table.create(handle, size);
        Ok(handle)
    }

    /// Gives up the handle; the bytes it stood for.
    pub(super) fn release(&mut self, handle: Handle) -> Result<u64, DeviceError> {
        self.table.release(handle).ok_or(DeviceError::Invalid(CallKind::Release))
    }

    /// Maps all handles or none; the bytes mapped.
    pub(super) fn map(&mut self, va: u64, handles: &[Handle]) -> Result<u64, DeviceError> {
        let room = self.ranges.range(..=va).next_back().and_then(|(start, size)| (start + size).checked_sub(va));
        let size = self.table.size(handles);
        if !va.is_multiple_of(PAGE) || room < size || size.is_none() {
            return Err(DeviceError::Invalid(CallKind::Map));
        }
        self.table.map(va, handles).ok_or(DeviceError::Invalid(CallKind::Map))
    }

    /// Unmaps a range that consists of whole mappings; how many they were.
    pub(super) fn unmap(&mut self, va: u64, size: u64) -> Result<u64, DeviceError> {
        self.table.unmap(va, size).ok_or(DeviceError::Invalid(CallKind::Unmap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 1 << 40;

    #[test]
    fn reservations_are_apart_and_addresses_come_back_last() {
        let mut pages = Pages::default();
        assert_eq!(pages.reserve(PAGE), Ok(BASE));
        assert_eq!(pages.reserve((1 << 30) + PAGE), Ok(BASE + (1 << 30)));
        assert_eq!(pages.unreserve(BASE, PAGE), Ok(()));
        assert_eq!(pages.reserve(PAGE), Ok(BASE + (3 << 30)), "not used again while there are fresh ones");
        let rest = END - BASE - (4 << 30);
        assert_eq!(pages.reserve(rest), Ok(BASE + (4 << 30)));
        assert_eq!(pages.reserve(2 << 30), Err(DeviceError::OutOfMemory));
        assert_eq!(pages.reserve(1 << 30), Ok(BASE), "used again when there are none");
        assert_eq!(pages.reserve(PAGE), Err(DeviceError::OutOfMemory));
        assert_eq!(pages.reserve(u64::MAX / PAGE * PAGE), Err(DeviceError::OutOfMemory));
        for size in [0, PAGE - 1, PAGE + 512] {
            assert_eq!(pages.reserve(size), Err(DeviceError::Invalid(CallKind::Reserve)));
        }
        assert_eq!(pages.unreserve(BASE, PAGE), Err(DeviceError::Invalid(CallKind::Unreserve)), "not the whole");
        assert_eq!(pages.unreserve(u64::MAX, PAGE), Err(DeviceError::Invalid(CallKind::Unreserve)));
    }

    #[test]
    fn mappings_stay_in_their_range() {
        const INVALID: Result<u64, DeviceError> = Err(DeviceError::Invalid(CallKind::Map));
        let mut pages = Pages::default();
        let va = pages.reserve(4 * PAGE).unwrap();
        let [a, b] = [pages.create(PAGE, ALL).unwrap(), pages.create(2 * PAGE, ALL).unwrap()];
        assert_eq!(pages.map(va + 3 * PAGE, &[b]), INVALID, "beyond the end");
        assert_eq!(pages.map(va + 4 * PAGE, &[a]), INVALID, "behind the end");
        assert_eq!(pages.map(va - PAGE, &[a]), INVALID, "before the beginning");
        assert_eq!(pages.map(va + 512, &[a]), INVALID, "unaligned");
        assert_eq!(pages.map(va, &[Handle(99)]), INVALID, "an unknown handle");
        assert_eq!(pages.map(va - PAGE, &[]), INVALID, "nothing");
        assert_eq!(pages.map(va + 2 * PAGE, &[b]), Ok(2 * PAGE));
        assert_eq!(pages.map(va + PAGE, &[b]), INVALID, "reaches into a mapping");
        assert_eq!(pages.unreserve(va, 4 * PAGE), Err(DeviceError::Invalid(CallKind::Unreserve)));
        assert_eq!(pages.unmap(va + 2 * PAGE, PAGE), Err(DeviceError::Invalid(CallKind::Unmap)), "half a mapping");
        assert_eq!(pages.unmap(va + 2 * PAGE, 2 * PAGE), Ok(1));
        assert_eq!(pages.unreserve(va, 4 * PAGE), Ok(()));
    }

    #[test]
    fn create_keeps_to_what_is_left() {
        let mut pages = Pages::default();
        assert_eq!(pages.create(2 * PAGE, PAGE), Err(DeviceError::OutOfMemory));
        assert_eq!(pages.create(PAGE + 1, ALL), Err(DeviceError::Invalid(CallKind::Create)));
        assert_eq!(pages.created(), 0);
    }
}
