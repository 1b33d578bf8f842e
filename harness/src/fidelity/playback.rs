//! A device that answers from a recording, and holds each call against the next entry.

use super::plan::Plan;
use allocator_core::{CallKind, Device, DeviceError, DeviceInfo, Fence, Handle, MemoryInfo, StreamId, Sync};
use std::collections::{BTreeMap, HashMap};
use workload_gen::snapshot::Action;

/// Where the recording and the strategy part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Divergence {
    /// The number of the entry.
    pub at: usize,
    /// What was recorded and what was done, in words.
    pub why: String,
    /// The address of the block or segment that the strategy took or gave back instead, if it did that.
    pub replayed: Option<u64>,
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
    segments: BTreeMap<u64, u64>,
    /// Bytes of each reserved range.
    reserved_ranges: BTreeMap<u64, u64>,
    /// Bytes of physical memory by handle.
    handles: BTreeMap<u64, u64>,
    next_handle: u64,
    /// Frees that wait, by address: ticket and requested bytes.
    waiting: HashMap<u64, (u32, u64)>,
    /// By ticket: the address whose free waits for it.
    tickets: Vec<u64>,
    /// Tickets to use again.
    spare_tickets: Vec<u32>,
    fences: u64,
    /// Whether the device, not a limit, refused memory since this was last cleared.
    pub refused: bool,
    reserved: u64,
    pub reserved_peak: u64,
}

/// The end of the addresses that a device may have.
const ADDRESSES: u64 = 1 << 57;

/// Address ranges that no entry tells the place of; they never get memory.
const NOWHERE: u64 = ADDRESSES / 2;

/// Whether a device may return this address for memory of so many bytes.
fn is_possible(addr: u64, size: u64) -> bool {
    addr > 0 && addr.is_multiple_of(512) && addr.checked_add(size).is_some_and(|end| end <= ADDRESSES)
}

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
            waiting: HashMap::new(),
            tickets: Vec::new(),
            spare_tickets: Vec::new(),
            fences: 0,
            refused: false,
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
    pub(super) fn diverge(&mut self, done: &str, replayed: Option<u64>) {
        if self.divergence.is_some() {
            return;
        }
        let recorded = match self.peek() {
            Some((Action::Oom, _, size)) => format!("oom for {size} bytes"),
            Some((action, addr, size)) => format!("{} of {size} bytes at {addr:#x}", action.name()),
            None => "the end".to_owned(),
        };
        let why = format!("recorded: {recorded}; replayed: {done}");
        self.divergence = Some(Divergence { at: self.cursor, why, replayed });
    }

    /// A free at `addr` will wait; its ticket.
    pub(super) fn wait(&mut self, addr: u64, size: u64) -> StreamId {
        let ticket = self.spare_tickets.pop().unwrap_or(self.tickets.len() as u32);
        if ticket as usize == self.tickets.len() {
            self.tickets.push(addr);
        }
        self.tickets[ticket as usize] = addr;
        self.waiting.insert(addr, (ticket, size));
        StreamId::ticket(ticket)
    }

    /// Whether a free of `size` bytes at `addr` waits.
    pub(super) fn waits(&self, addr: u64, size: u64) -> bool {
        self.waiting.get(&addr).is_some_and(|waiting| waiting.1 == size)
    }

    /// Whether the next entry is `action` at `addr` of `size` bytes; it is passed if so.
    fn expect(&mut self, action: Action, addr: u64, size: u64) -> bool {
        let agrees = self.divergence.is_none() && self.peek() == Some((action, addr, size));
        if agrees {
            self.advance();
        } else {
            self.diverge(&format!("{} of {size} bytes at {addr:#x}", action.name()), Some(addr));
        }
        agrees
    }

    /// The device was asked for memory and has none: that has to be what the recording shows.
    fn refuse(&mut self, asked: &str) -> DeviceError {
        self.refused = true;
        if !matches!(self.peek(), Some((Action::SegmentFree | Action::SegmentUnmap | Action::Oom, ..))) {
            self.diverge(asked, None);
        }
        DeviceError::OutOfMemory
    }

    /// Whether some of these bytes are in a segment.
    fn is_taken(&self, addr: u64, size: u64) -> bool {
        let below = self.segments.range(..addr.saturating_add(size)).next_back();
        below.is_some_and(|(&other, &bytes)| other + bytes > addr)
    }

    /// Where the next memory is mapped that is in no reserved range: no entry tells of the reservation itself, which
    /// is made even if there is no memory to map then.
    fn next_range(&self) -> Option<u64> {
        let ahead = &self.plan.entries[self.cursor.min(self.plan.entries.len())..];
        let maps = ahead.iter().filter(|entry| entry.action == Action::SegmentMap).map(|entry| entry.addr);
        let mut fresh = maps.filter(|&addr| {
            let below = self.reserved_ranges.range(..=addr).next_back();
            below.is_none_or(|(base, size)| addr - base >= *size)
        });
        fresh.next()
    }

    fn grew(&mut self, bytes: u64) {
        self.reserved += bytes;
        self.reserved_peak = self.reserved_peak.max(self.reserved);
    }
}

impl Device for Playback<'_> {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            total: self.total,
            alignment: 512,
            granularity: 2 << 20,
            virtual_memory: true,
            stream_ordered: false,
        }
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        match self.peek() {
            Some((Action::SegmentAlloc, addr, recorded)) if recorded == size && self.divergence.is_none() => {
                if !is_possible(addr, size) || self.is_taken(addr, size) {
                    self.diverge("no device has this memory to give", None);
                    return Err(DeviceError::Invalid(CallKind::Malloc));
                }
                self.advance();
                self.segments.insert(addr, size);
                self.grew(size);
                Ok(addr)
            }
            _ => Err(self.refuse(&format!("segment_alloc of {size} bytes"))),
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
        let nowhere = || {
            let highest = self.reserved_ranges.range(NOWHERE..).next_back();
            highest.map_or(NOWHERE, |(base, size)| base + size)
        };
        let base = match self.peek() {
            Some((Action::SegmentMap, addr, _)) => addr,
            _ => self.next_range().unwrap_or_else(nowhere),
        };
        if !is_possible(base, size) || self.reserved_ranges.contains_key(&base) {
            self.diverge("no device has these addresses to give", None);
            return Err(DeviceError::Invalid(CallKind::Reserve));
        }
        self.reserved_ranges.insert(base, size);
        Ok(base)
    }

    fn unreserve(&mut self, va: u64, _size: u64) -> Result<(), DeviceError> {
        self.reserved_ranges.remove(&va);
        Ok(())
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        if !matches!(self.peek(), Some((Action::SegmentMap, ..))) || self.divergence.is_some() {
            return Err(self.refuse(&format!("new memory of {size} bytes")));
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
        if !self.expect(Action::SegmentMap, va, size) {
            return Err(DeviceError::Invalid(CallKind::Map));
        }
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
        let ticket = fence.stream.as_ticket().and_then(|ticket| self.tickets.get(ticket as usize));
        let next = self.peek();
        Ok(self.divergence.is_none()
            && ticket.is_some_and(|&addr| {
                let waiting = self.waiting.get(&addr);
                waiting.is_some_and(|&(_, size)| next == Some((Action::FreeCompleted, addr, size)))
            }))
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
        let waited = self.waiting.remove(&ptr);
        self.spare_tickets.extend(waited.map(|(ticket, _)| ticket));
        self.expect(Action::FreeCompleted, ptr, waited.map_or(0, |(_, size)| size));
    }
}
