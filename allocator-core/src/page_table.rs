//! Physical memory and where it is mapped: the rules by which it comes and goes, for every device that keeps books.

use crate::device::Handle;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

#[derive(Clone, Copy, Debug)]
struct Physical {
    size: u64,
    mappings: u32,
    released: bool,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    size: u64,
    handle: Handle,
}

/// Physical memory by handle, and mappings by address.
///
/// A handle may be mapped at several addresses. Its memory goes back when the handle is released and its last mapping
/// is gone, in either order. A call that answers `None` makes no sense and has changed nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageTable {
    physical: BTreeMap<Handle, Physical>,
    mappings: BTreeMap<u64, Mapping>,
    bytes: u64,
}

impl PageTable {
    /// Bytes of physical memory that are not back yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Addresses and sizes of the mappings that begin at or below `va`, by falling address.
    pub(crate) fn up_to(&self, va: u64) -> impl Iterator<Item = (u64, u64)> {
        self.mappings.range(..=va).rev().map(|(&va, mapping)| (va, mapping.size))
    }

    /// Memory has been created, under a handle that stands for nothing else; otherwise it is not counted.
    pub(crate) fn create(&mut self, handle: Handle, size: u64) {
        if let Entry::Vacant(entry) = self.physical.entry(handle)
            && let Some(bytes) = self.bytes.checked_add(size)
        {
            entry.insert(Physical { size, mappings: 0, released: false });
            self.bytes = bytes;
        }
    }

    /// Gives up a handle; the bytes it stands for.
    pub(crate) fn release(&mut self, handle: Handle) -> Option<u64> {
        let physical = self.physical.get_mut(&handle).filter(|physical| !physical.released)?;
        physical.released = true;
        let size = physical.size;
        self.return_if_unused(handle);
        Some(size)
    }

    /// Bytes of all the handles together, of which there must be some.
    pub(crate) fn size(&self, handles: &[Handle]) -> Option<u64> {
        let mut sizes = handles.iter().map(|&handle| {
            let physical = self.physical.get(&handle)?;
            (!physical.released).then_some(physical.size)
        });
        let first = sizes.next()??;
        sizes.try_fold(first, |sum, size| sum.checked_add(size?))
    }

    /// Maps one handle after another from `va` on; the bytes mapped.
    pub(crate) fn map(&mut self, va: u64, handles: &[Handle]) -> Option<u64> {
        let end = va.checked_add(self.size(handles)?)?;
        if self.has_mapping(va, end) {
            return None;
        }
        let mut at = va;
        for &handle in handles {
            let physical = self.physical.get_mut(&handle)?;
            physical.mappings += 1;
            let size = physical.size;
            self.mappings.insert(at, Mapping { size, handle });
            at += size;
        }
        Some(end - va)
    }

    /// The mappings that a range consists of; `None` if it does not consist of whole ones.
    fn whole(&self, va: u64, size: u64) -> Option<Vec<(u64, Handle)>> {
        let end = va.checked_add(size)?;
        let mut at = va;
        let mut found = Vec::new();
        for (&start, mapping) in self.mappings.range(va..end) {
            if start != at {
                return None;
            }
            at += mapping.size;
            found.push((start, mapping.handle));
        }
        (!found.is_empty() && at == end).then_some(found)
    }

    /// How many mappings a range consists of.
    #[cfg(feature = "cuda")]
    pub(crate) fn mappings(&self, va: u64, size: u64) -> Option<u64> {
        self.whole(va, size).map(|found| found.len() as u64)
    }

    /// Unmaps a range that consists of whole mappings; how many they were.
    pub(crate) fn unmap(&mut self, va: u64, size: u64) -> Option<u64> {
        let found = self.whole(va, size)?;
        for &(start, handle) in &found {
            self.mappings.remove(&start);
            if let Some(physical) = self.physical.get_mut(&handle) {
                physical.mappings -= 1;
            }
            self.return_if_unused(handle);
        }
        Some(found.len() as u64)
    }

    /// Whether something is mapped in `from..to`.
    pub(crate) fn has_mapping(&self, from: u64, to: u64) -> bool {
        self.mappings.range(..to).next_back().is_some_and(|(va, mapping)| va + mapping.size > from)
    }

    fn return_if_unused(&mut self, handle: Handle) {
        if let Some(&Physical { size, mappings: 0, released: true }) = self.physical.get(&handle) {
            self.physical.remove(&handle);
            self.bytes -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;
    const VA: u64 = 0x6000_0000_0000;
    const A: Handle = Handle(1);
    const B: Handle = Handle(2);

    #[test]
    fn memory_returns_with_the_last_mapping_and_the_handle() {
        let mut table = PageTable::default();
        table.create(A, 2 * PAGE);
        assert_eq!(table.map(VA, &[A, A]), Some(4 * PAGE), "an alias");
        assert_eq!(table.bytes(), 2 * PAGE);
        assert_eq!(table.release(A), Some(2 * PAGE));
        assert_eq!(table.release(A), None);
        assert_eq!(table.map(VA + 4 * PAGE, &[A]), None, "a released handle");
        assert_eq!(table.unmap(VA, 2 * PAGE), Some(1));
        assert_eq!(table.bytes(), 2 * PAGE);
        assert_eq!(table.unmap(VA + 2 * PAGE, 2 * PAGE), Some(1));
        assert_eq!(table.bytes(), 0);
        table.create(B, PAGE);
        table.map(VA, &[B]).unwrap();
        table.unmap(VA, PAGE).unwrap();
        assert_eq!(table.bytes(), PAGE, "the handle still holds it");
        table.release(B).unwrap();
        assert_eq!(table.bytes(), 0);
    }

    #[test]
    fn nonsense_changes_nothing() {
        let mut table = PageTable::default();
        table.create(A, PAGE);
        table.create(A, 3 * PAGE);
        table.create(Handle(8), u64::MAX);
        assert_eq!(table.bytes(), PAGE);
        table.create(B, 2 * PAGE);
        assert_eq!(table.map(VA + PAGE, &[A]), Some(PAGE));
        for (va, handles) in [
            (VA, &[B][..]),                   // reaches into a mapping
            (VA + PAGE, &[A]),                // on a mapping
            (VA + 2 * PAGE, &[A, Handle(9)]), // an unknown handle
            (VA + 2 * PAGE, &[]),             // nothing
            (u64::MAX - 1, &[A]),             // the end of all addresses
        ] {
            assert_eq!(table.map(va, handles), None, "{va:#x}");
        }
        assert_eq!(table.map(VA + 2 * PAGE, &[B]), Some(2 * PAGE));
        for (va, size) in [
            (VA, 2 * PAGE),        // begins with a hole
            (VA + PAGE, 2 * PAGE), // ends within a mapping
            (VA + 3 * PAGE, PAGE), // begins within a mapping
            (VA + PAGE, 0),        // nothing
            (VA + PAGE, 4 * PAGE), // ends with a hole
            (VA + PAGE, u64::MAX), // no such range
        ] {
            assert_eq!(table.unmap(va, size), None, "{va:#x} {size:#x}");
        }
        assert_eq!(table.unmap(VA + PAGE, 3 * PAGE), Some(2));
        assert!(!table.has_mapping(0, u64::MAX));
    }
}
