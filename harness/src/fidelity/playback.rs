//! A device that answers from a recording, and holds each call against the next entry.

use super::plan::Plan;
use allocator_core::{CallKind, Device, DeviceError, DeviceInfo, Fence, Handle, MemoryInfo, StreamId, Sync};
use std::collections::BTreeMap;
use workload_gen::snapshot::Action;

/// Where the recording and the strategy part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Divergence {
    /// The number of the entry.
    pub at: usize,
    /// What was recorded and what was done, in words.
    pub why: String,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Playback<'a> {
    plan: &'a Plan,
    total: u64,
    /// The number of the next entry.
    pub cursor: usize,
    pub divergence: Option<Divergence>,
    /// Bytes of each segment from `malloc`.
    pub segments: BTreeMap<u64, u64>,
    /// Bytes of each reserved range.
    pub reserved_ranges: BTreeMap<u64, u64>,
    /// Bytes of physical memory by handle.
    handles: BTreeMap<u64, u64>,
    next_handle: u64,
    /// Frees that wait, by the number of their ticket: address and requested bytes.
    pub waiting: BTreeMap<u32, (u64, u64)>,
    fences: u64,
    pub reserved: u64,
    pub reserved_peak: u64,
}

/// Address ranges that no entry tells the place of; they never get memory.
const NOWHERE: u64 = 0x10_0000_0000;

impl<'a> Playback<'a> {
    pub(super) fn new(plan: &'a Plan, total: u64) -> Playback<'a> {
        Playback {
            plan,
            total,
            cursor: plan.next(0),
            divergence: None,
            segments: BTreeMap::new(),
            reserved_ranges: BTreeMap::new(),
            handles: BTreeMap::new(),
            next_handle: 1,
            waiting: BTreeMap::new(),
            fences: 0,
            reserved: 0,
            reserved_peak: 0,
        }
    }

    /// The next entry: action, address, size.
    pub(super) fn peek(&self) -> Option<(Action, u64, u64)> {
        self.plan.entries.get(self.cursor).map(|entry| (entry.action, entry.addr, entry.size))
    }

    pub(super) fn advance(&mut self) {
        self.cursor = self.plan.next(self.cursor + 1);
    }

    /// Notes that the strategy did something else than the next entry.
    pub(super) fn diverge(&mut self, done: &str) {
        if self.divergence.is_some() {
            return;
        }
        let recorded = match self.peek() {
            Some((Action::Oom, _, size)) => format!("oom for {size} bytes"),
            Some((action, addr, size)) => format!("{} of {size} bytes at {addr:#x}", action.name()),
            None => "the end".to_owned(),
        };
        self.divergence = Some(Divergence { at: self.cursor, why: format!("recorded: {recorded}; replayed: {done}") });
    }

    /// Whether the next entry is `action` at `addr` of `size` bytes; it is passed if so.
    fn expect(&mut self, action: Action, addr: u64, size: u64) -> bool {
        let agrees = self.divergence.is_none() && self.peek() == Some((action, addr, size));
        if agrees {
            self.advance();
        } else {
            self.diverge(&format!("{} of {size} bytes at {addr:#x}", action.name()));
        }
        agrees
    }

    /// Whether the recording shows that the device, asked for memory now, had none.
    fn refuses(&self) -> bool {
        matches!(self.peek(), Some((Action::SegmentFree | Action::SegmentUnmap | Action::Oom, ..)))
    }

    fn grew(&mut self, bytes: u64) {
        self.reserved += bytes;
        self.reserved_peak = self.reserved_peak.max(self.reserved);
    }
}

impl Device for Playback<'_> {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { total: self.total, alignment: 512, granularity: 2 << 20, virtual_memory: true }
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        match self.peek() {
            Some((Action::SegmentAlloc, addr, recorded)) if recorded == size && self.divergence.is_none() => {
                self.advance();
                self.segments.insert(addr, size);
                self.grew(size);
                Ok(addr)
            }
            _ => {
                if !self.refuses() {
                    self.diverge(&format!("segment_alloc of {size} bytes"));
                }
                Err(DeviceError::OutOfMemory)
            }
        }
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        let Some(size) = self.segments.remove(&ptr) else {
            return Err(DeviceError::Invalid(CallKind::Free));
        };
        self.expect(Action::SegmentFree, ptr, size);
        self.reserved -= size;
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        let base = match self.peek() {
            Some((Action::SegmentMap, addr, _)) => addr,
            _ => NOWHERE + self.reserved_ranges.range(NOWHERE..).next_back().map_or(0, |(a, n)| a - NOWHERE + n),
        };
        self.reserved_ranges.insert(base, size);
        Ok(base)
    }

    fn unreserve(&mut self, va: u64, _size: u64) -> Result<(), DeviceError> {
        self.reserved_ranges.remove(&va);
        Ok(())
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        if !matches!(self.peek(), Some((Action::SegmentMap, ..))) || self.divergence.is_some() {
            if !self.refuses() {
                self.diverge(&format!("new memory of {size} bytes"));
            }
            return Err(DeviceError::OutOfMemory);
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(handle, size);
        Ok(Handle(handle))
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.handles.remove(&handle.0);
        Ok(())
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        let size = handles.iter().filter_map(|handle| self.handles.get(&handle.0)).sum();
        self.expect(Action::SegmentMap, va, size);
        self.grew(size);
        Ok(())
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.expect(Action::SegmentUnmap, va, size);
        self.reserved -= size;
        Ok(())
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.fences += 1;
        Ok(Fence { stream, seq: self.fences })
    }

    /// A ticket's work is seen to be done where its free is completed in the recording, and not before.
    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        let waits_for = fence.stream.as_ticket().and_then(|ticket| self.waiting.get(&ticket));
        let next = self.peek();
        Ok(self.divergence.is_none()
            && waits_for.is_some_and(|&(addr, size)| next == Some((Action::FreeCompleted, addr, size))))
    }

    fn order_after(&mut self, _stream: StreamId, _fence: Fence) -> Result<(), DeviceError> {
        Ok(())
    }

    fn sync(&mut self, _what: Sync) -> Result<(), DeviceError> {
        Ok(())
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        Ok(MemoryInfo { free: self.total.saturating_sub(self.reserved), total: self.total })
    }

    fn retired(&mut self, ptr: u64) {
        let ticket = self.waiting.iter().find(|(_, waiting)| waiting.0 == ptr).map(|(&ticket, _)| ticket);
        let size = ticket.and_then(|ticket| self.waiting.remove(&ticket)).map_or(0, |(_, size)| size);
        self.expect(Action::FreeCompleted, ptr, size);
    }
}
