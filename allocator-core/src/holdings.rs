//! What was taken from a device and not given back, for wrappers that cannot ask the device.

use crate::device::Handle;
use crate::page_table::PageTable;
use std::collections::BTreeMap;

/// Memory by address and by handle. Told of successful calls only; calls about memory that came from elsewhere, or is
/// more than there can be, are ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holdings {
    mallocs: BTreeMap<u64, u64>,
    malloc_bytes: u64,
    table: PageTable,
}

impl Holdings {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.malloc_bytes.saturating_add(self.table.bytes())
    }

    pub(crate) fn malloc(&mut self, ptr: u64, size: u64) {
        self.free(ptr);
        if let Some(bytes) = self.malloc_bytes.checked_add(size) {
            self.mallocs.insert(ptr, size);
            self.malloc_bytes = bytes;
        }
    }

    pub(crate) fn free(&mut self, ptr: u64) {
        self.malloc_bytes -= self.mallocs.remove(&ptr).unwrap_or(0);
    }

    pub(crate) fn create(&mut self, handle: Handle, size: u64) {
        self.table.create(handle, size);
    }

    pub(crate) fn release(&mut self, handle: Handle) {
        self.table.release(handle);
    }

    pub(crate) fn map(&mut self, va: u64, handles: &[Handle]) {
        self.table.map(va, handles);
    }

    /// How many mappings there were.
    pub(crate) fn unmap(&mut self, va: u64, size: u64) -> u64 {
        self.table.unmap(va, size).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_and_go() {
        let mut held = Holdings::default();
        held.malloc(4096, 100);
        held.create(Handle(1), 50);
        held.map(0, &[Handle(1)]);
        held.release(Handle(1));
        assert_eq!(held.bytes(), 150);
        held.unmap(0, 50);
        held.free(1);
        assert_eq!(held.bytes(), 100);
        held.malloc(8192, u64::MAX);
        assert_eq!(held.bytes(), 100, "more than there can be");
        held.malloc(4096, 70);
        assert_eq!(held.bytes(), 70, "the same address again");
        held.free(4096);
        held.free(4096);
        assert_eq!(held.bytes(), 0);
    }
}
