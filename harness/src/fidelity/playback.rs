//! A device that answers from a recording, and holds each call against the next entry.

use super::plan::Plan;
use super::ranges::Ranges;
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
    /// Memory that was given.
    taken: Ranges,
    /// Segments from `malloc`, by address.
    segments: BTreeMap<u64, Held>,
    /// Reserved ranges, by address.
    reserved_ranges: BTreeMap<u64, Held>,
    /// Frees that wait, by address: ticket, and block with its requested bytes.
    waiting: HashMap<u64, (u32, Held)>,
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

/// A segment, a reserved range, or a block that waits.
#[derive(Clone, Copy, Default)]
struct Held {
    bytes: u64,
    /// The number of its stream. That of a range is known once memory is mapped there.
    stream: u32,
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
            taken: Ranges::default(),
            segments: BTreeMap::new(),
            reserved_ranges: BTreeMap::new(),
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

    /// The free of a block at `addr` will wait; its ticket.
    pub(super) fn wait(&mut self, addr: u64, size: u64, stream: u32) -> StreamId {
        let ticket = self.spare_tickets.pop().unwrap_or(self.tickets.len() as u32);
        if ticket as usize == self.tickets.len() {
            self.tickets.push(addr);
        }
        self.tickets[ticket as usize] = addr;
        self.waiting.insert(addr, (ticket, Held { bytes: size, stream }));
        StreamId::ticket(ticket)
    }

    /// Whether a free of `size` bytes at `addr` waits.
    pub(super) fn waits(&self, addr: u64, size: u64) -> bool {
        self.waiting.get(&addr).is_some_and(|(_, block)| block.bytes == size)
    }

    /// The number of the next entry's stream.
    pub(super) fn stream(&self) -> u32 {
        self.plan.entries.get(self.cursor).map_or(0, |entry| self.plan.stream(entry))
    }

    /// Whether the next entry is `action` at `addr`, of what is `held` there; it is passed if so.
    fn expect(&mut self, action: Action, addr: u64, held: Held) -> bool {
        let Held { bytes, stream } = held;
        if self.peek() != Some((action, addr, bytes)) {
            self.diverge(&format!("{} of {bytes} bytes at {addr:#x}", action.name()), Some(addr));
        } else if self.stream() != stream {
            self.diverge(&format!("the same on stream {stream}, not {}", self.stream()), Some(addr));
        }
        let agrees = self.divergence.is_none();
        if agrees {
            self.advance();
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

    /// Whether the next entry gives this memory, which no other may hold.
    fn gives(&mut self, action: Action, addr: u64, held: Held) -> bool {
        if !is_possible(addr, held.bytes) || self.taken.overlap(addr, held.bytes) {
            self.diverge("no device has this memory to give", None);
        }
        let gives = self.expect(action, addr, held);
        if gives {
            self.taken.add(addr, held.bytes);
            self.reserved += held.bytes;
            self.reserved_peak = self.reserved_peak.max(self.reserved);
        }
        gives
    }

    /// The next entry takes this memory back.
    fn takes(&mut self, action: Action, addr: u64, held: Held) {
        self.expect(action, addr, held);
        self.taken.remove(addr, held.bytes);
        self.reserved -= held.bytes;
    }

    /// The base of the reserved range that an address is in.
    fn range_at(&self, addr: u64) -> Option<u64> {
        let below = self.reserved_ranges.range(..=addr).next_back();
        below.filter(|(base, range)| addr - **base < range.bytes).map(|(&base, _)| base)
    }

    /// Where the next memory is mapped that is in no reserved range: no entry tells of the reservation itself, which
    /// is made even if there is no memory to map then.
    fn next_range(&self) -> Option<u64> {
        let ahead = &self.plan.entries[self.cursor.min(self.plan.entries.len())..];
        let maps = ahead.iter().filter(|entry| entry.action == Action::SegmentMap).map(|entry| entry.addr);
        let mut fresh = maps.filter(|&addr| self.range_at(addr).is_none());
        fresh.next()
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
            Some((Action::SegmentAlloc, addr, recorded)) if recorded == size => {
                let segment = Held { bytes: size, stream: self.stream() };
                if !self.gives(Action::SegmentAlloc, addr, segment) {
                    return Err(DeviceError::Invalid(CallKind::Malloc));
                }
                self.segments.insert(addr, segment);
                Ok(addr)
            }
            _ => Err(self.refuse(&format!("segment_alloc of {size} bytes"))),
        }
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        let Some(segment) = self.segments.remove(&ptr) else {
            return Err(DeviceError::Invalid(CallKind::Free));
        };
        self.takes(Action::SegmentFree, ptr, segment);
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        let nowhere = || {
            let highest = self.reserved_ranges.range(NOWHERE..).next_back();
            highest.map_or(NOWHERE, |(base, range)| base + range.bytes)
        };
        let base = match self.peek() {
            Some((Action::SegmentMap, addr, _)) => addr,
            _ => self.next_range().unwrap_or_else(nowhere),
        };
        if !is_possible(base, size) || self.reserved_ranges.contains_key(&base) {
            self.diverge("no device has these addresses to give", None);
            return Err(DeviceError::Invalid(CallKind::Reserve));
        }
        self.reserved_ranges.insert(base, Held { bytes: size, stream: 0 });
        Ok(base)
    }

    fn unreserve(&mut self, va: u64, _size: u64) -> Result<(), DeviceError> {
        self.reserved_ranges.remove(&va);
        Ok(())
    }

    /// Nothing but its size matters of physical memory, so that is the handle.
    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        match self.peek() {
            Some((Action::SegmentMap, ..)) if self.divergence.is_none() => Ok(Handle(size)),
            _ => Err(self.refuse(&format!("new memory of {size} bytes"))),
        }
    }

    fn release(&mut self, _handle: Handle) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        let memory = Held { bytes: handles.iter().map(|handle| handle.0).sum(), stream: self.stream() };
        if let Some(range) = self.range_at(va).and_then(|base| self.reserved_ranges.get_mut(&base)) {
            range.stream = memory.stream;
        }
        if self.gives(Action::SegmentMap, va, memory) { Ok(()) } else { Err(DeviceError::Invalid(CallKind::Map)) }
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let range = self.range_at(va).and_then(|base| self.reserved_ranges.get(&base));
        let stream = range.map_or(0, |range| range.stream);
        self.takes(Action::SegmentUnmap, va, Held { bytes: size, stream });
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
                waiting.is_some_and(|(_, block)| next == Some((Action::FreeCompleted, addr, block.bytes)))
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
        self.expect(Action::FreeCompleted, ptr, waited.map_or(Held::default(), |(_, block)| block));
    }
}
