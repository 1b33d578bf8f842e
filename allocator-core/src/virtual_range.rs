//! A reserved range of addresses whose pages get and lose memory: what growing segments are built from.

use crate::device::{CallKind, Device, Handle};
use crate::error::DeviceError;
use std::collections::BTreeMap;
use std::ops::Range;

/// A reserved range of addresses in pages of equal size, each backed by a handle of its own or by nothing.
///
/// Only mapped pages take space here: a range may be larger than the device.
#[derive(Clone, Debug)]
pub struct VirtualRange {
    base: u64,
    size: u64,
    page: u64,
    /// By page number.
    handles: BTreeMap<u64, Handle>,
    /// Unmapped, but the device refused to take them back. Tried again at every occasion, so that a failing device
    /// call leaks nothing.
    unreleased: Vec<Handle>,
}

impl VirtualRange {
    /// Reserves `size` bytes of addresses. `page` must be a multiple of the device's granularity and divide `size`.
    pub fn reserve(dev: &mut dyn Device, size: u64, page: u64) -> Result<VirtualRange, DeviceError> {
        let granularity = dev.info().granularity;
        if page == 0 || !page.is_multiple_of(granularity) || !size.is_multiple_of(page) {
            return Err(DeviceError::Invalid(CallKind::Reserve));
        }
        let base = dev.reserve(size)?;
        Ok(VirtualRange { base, size, page, handles: BTreeMap::new(), unreleased: Vec::new() })
    }

    /// Address of the first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of a page.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Bytes that have memory.
    pub fn mapped_bytes(&self) -> u64 {
        self.handles.len() as u64 * self.page
    }

    /// Gives memory to `len` bytes at `offset`, whole pages of which none has any. A handle a page, one mapping call
    /// for all; on an error no page has got memory.
    pub fn map(&mut self, dev: &mut dyn Device, offset: u64, len: u64) -> Result<(), DeviceError> {
        let pages = self.pages(offset, len).ok_or(DeviceError::Invalid(CallKind::Map))?;
        if self.handles.range(pages.clone()).next().is_some() {
            return Err(DeviceError::Invalid(CallKind::Map));
        }
        self.release_unmapped(dev);
        let outcome = self.create_and_map(dev, &pages);
        match outcome {
            Ok(handles) => {
                self.handles.extend(pages.zip(handles));
                Ok(())
            }
            Err((handles, error)) => {
                self.unreleased.extend(handles.into_iter().rev());
                self.release_unmapped(dev);
                Err(error)
            }
        }
    }

    /// The handles that now back the pages, or those that were created in vain.
    fn create_and_map(
        &self,
        dev: &mut dyn Device,
        pages: &Range<u64>,
    ) -> Result<Vec<Handle>, (Vec<Handle>, DeviceError)> {
        let mut handles = Vec::new();
        for _ in pages.clone() {
            match dev.create(self.page) {
                Ok(handle) => handles.push(handle),
                Err(error) => return Err((handles, error)),
            }
        }
        match dev.map(self.base + pages.start * self.page, &handles) {
            Ok(()) => Ok(handles),
            Err(error) => Err((handles, error)),
        }
    }

    /// Takes the memory from `len` bytes at `offset`, whole pages that all have some: one unmapping call for all,
    /// then the release of the handles. On an error nothing has changed. Memory that the device fails to take back
    /// after the unmapping is offered to it again by later calls.
    pub fn unmap(&mut self, dev: &mut dyn Device, offset: u64, len: u64) -> Result<(), DeviceError> {
        let pages = self.pages(offset, len).ok_or(DeviceError::Invalid(CallKind::Unmap))?;
        if self.handles.range(pages.clone()).count() as u64 != pages.end - pages.start {
            return Err(DeviceError::Invalid(CallKind::Unmap));
        }
        dev.unmap(self.base + offset, len)?;
        let handles = pages.rev().filter_map(|page| self.handles.remove(&page));
        self.unreleased.extend(handles);
        self.release_unmapped(dev);
        Ok(())
    }

    /// Gives the addresses back; no page may have memory. The range comes back with the error if that fails.
    pub fn unreserve(mut self, dev: &mut dyn Device) -> Result<(), (VirtualRange, DeviceError)> {
        while let Some(&handle) = self.unreleased.last() {
            if let Err(error) = dev.release(handle) {
                return Err((self, error));
            }
            self.unreleased.pop();
        }
        dev.unreserve(self.base, self.size).map_err(|error| (self, error))
    }

    /// Offers memory that the device failed to take back to it again. Mapping and unmapping do so too; this is for
    /// owners that have nothing to map or unmap. From the end of the list, which is in falling order of pages.
    pub fn release_unmapped(&mut self, dev: &mut dyn Device) {
        let mut refused = Vec::new();
        while let Some(handle) = self.unreleased.pop() {
            if dev.release(handle).is_err() {
                refused.push(handle);
            }
        }
        refused.reverse();
        self.unreleased = refused;
    }

    fn pages(&self, offset: u64, len: u64) -> Option<Range<u64>> {
        let end = offset.checked_add(len)?;
        let whole = offset.is_multiple_of(self.page) && len.is_multiple_of(self.page);
        (len > 0 && whole && end <= self.size).then_some(offset / self.page..end / self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Machine;
    use crate::faults::FaultDevice;
    use crate::sim::SimDevice;

    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4 * MIB;
    const FAILURE: DeviceError = DeviceError::Driver { call: CallKind::Release, code: 999 };

    #[test]
    fn pages_get_and_lose_memory() {
        let mut dev = SimDevice::new(64 * MIB);
        let mut range = VirtualRange::reserve(&mut dev, 1 << 40, PAGE).unwrap();
        assert_eq!((range.page(), range.mapped_bytes()), (PAGE, 0));
        range.map(&mut dev, 2 * PAGE, 3 * PAGE).unwrap();
        assert_eq!((range.mapped_bytes(), dev.usage().reserved), (3 * PAGE, 3 * PAGE));
        let mapped: Vec<bool> = (0..6).map(|page| dev.holds(range.base() + page * PAGE, PAGE)).collect();
        assert_eq!(mapped, [false, false, true, true, true, false]);
        range.unmap(&mut dev, 3 * PAGE, PAGE).unwrap();
        assert_eq!((range.mapped_bytes(), dev.usage().reserved), (2 * PAGE, 2 * PAGE));
        assert!(!dev.holds(range.base() + 3 * PAGE, 1));
        let (mut range, error) = range.unreserve(&mut dev).unwrap_err();
        assert_eq!(error, DeviceError::Invalid(CallKind::Unreserve), "pages left");
        range.unmap(&mut dev, 2 * PAGE, PAGE).unwrap();
        range.unmap(&mut dev, 4 * PAGE, PAGE).unwrap();
        let calls = dev.usage().calls;
        assert_eq!((calls[CallKind::Create as usize], calls[CallKind::Release as usize]), (3, 3));
        assert_eq!((calls[CallKind::Map as usize], calls[CallKind::Unmap as usize]), (3, 3));
        range.unreserve(&mut dev).unwrap();
        assert_eq!(dev.usage().reserved, 0);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut dev = SimDevice::new(64 * MIB);
        for (size, page) in [(PAGE, 0), (PAGE, 512), (PAGE + 2 * MIB, PAGE), (0, PAGE)] {
            let error = VirtualRange::reserve(&mut dev, size, page).unwrap_err();
            assert_eq!(error, DeviceError::Invalid(CallKind::Reserve), "{size} {page}");
        }
        let mut range = VirtualRange::reserve(&mut dev, 4 * PAGE, PAGE).unwrap();
        range.map(&mut dev, PAGE, PAGE).unwrap();
        for (offset, len) in [(0, 2 * PAGE), (PAGE, PAGE), (3 * PAGE, 2 * PAGE), (2 * MIB, PAGE), (0, 0), (0, MIB)] {
            let error = range.map(&mut dev, offset, len);
            assert_eq!(error, Err(DeviceError::Invalid(CallKind::Map)), "{offset} {len}");
        }
        for (offset, len) in [(0, 2 * PAGE), (0, PAGE), (PAGE, 0), (PAGE, 2 * MIB), (u64::MAX, 2)] {
            let error = range.unmap(&mut dev, offset, len);
            assert_eq!(error, Err(DeviceError::Invalid(CallKind::Unmap)), "{offset} {len}");
        }
        assert_eq!(range.mapped_bytes(), PAGE);
        assert_eq!(dev.usage().reserved, PAGE);
    }

    #[test]
    fn a_failed_map_leaves_nothing_behind() {
        let mut dev = SimDevice::new(2 * PAGE + MIB);
        let mut range = VirtualRange::reserve(&mut dev, 8 * PAGE, PAGE).unwrap();
        assert_eq!(range.map(&mut dev, 0, 3 * PAGE), Err(DeviceError::OutOfMemory));
        assert_eq!((range.mapped_bytes(), dev.usage().reserved), (0, 0));
        let mut dev = FaultDevice::new(dev).fail_nth(CallKind::Map, 1, DeviceError::OutOfMemory);
        assert_eq!(range.map(&mut dev, 0, 2 * PAGE), Err(DeviceError::OutOfMemory));
        assert_eq!((range.mapped_bytes(), dev.usage().reserved), (0, 0));
        assert_eq!(range.map(&mut dev, 0, 2 * PAGE), Ok(()));
    }

    #[test]
    fn a_failed_unmap_changes_nothing() {
        let failure = DeviceError::Driver { call: CallKind::Unmap, code: 999 };
        let mut dev = FaultDevice::new(SimDevice::new(64 * MIB)).fail_nth(CallKind::Unmap, 1, failure);
        let mut range = VirtualRange::reserve(&mut dev, 8 * PAGE, PAGE).unwrap();
        range.map(&mut dev, 0, 2 * PAGE).unwrap();
        assert_eq!(range.unmap(&mut dev, 0, 2 * PAGE), Err(failure));
        assert_eq!((range.mapped_bytes(), dev.usage().reserved), (2 * PAGE, 2 * PAGE));
        assert_eq!(range.unmap(&mut dev, 0, 2 * PAGE), Ok(()));
        assert_eq!(dev.usage().reserved, 0);
    }

    #[test]
    fn a_failed_release_is_made_up_for() {
        let dev = FaultDevice::new(SimDevice::new(64 * MIB));
        let mut dev = dev.fail_nth(CallKind::Release, 1, FAILURE).fail_nth(CallKind::Release, 3, FAILURE);
        let mut range = VirtualRange::reserve(&mut dev, 8 * PAGE, PAGE).unwrap();
        range.map(&mut dev, 0, 2 * PAGE).unwrap();
        assert_eq!(range.unmap(&mut dev, 0, 2 * PAGE), Ok(()));
        assert_eq!((range.mapped_bytes(), dev.usage().reserved), (0, PAGE));
        let (range, error) = range.unreserve(&mut dev).unwrap_err();
        assert_eq!(error, FAILURE);
        range.unreserve(&mut dev).unwrap();
        assert_eq!(dev.usage().reserved, 0);
    }
}
