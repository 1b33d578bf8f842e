//! A device that looks over the strategy's shoulder: which addresses are backed by memory, which of them share it, how
//! high reserved memory rose inside one event, and which work on the streams is done.
//!
//! It passes every call on and changes no answer, so a strategy decides the same with and without it. Asking the device
//! itself about streams would cost modelled time and change what the strategy sees; so the same work is queued on a
//! *shadow*, a second simulated device whose calls cost nothing and whose clock is set after the real one.

use allocator_core::{Cost, Device, DeviceError, DeviceInfo, Fence, Handle, Machine, MemoryInfo, Profile};
use allocator_core::{SimDevice, StreamId, Sync, Usage};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub struct Watch<M> {
    machine: M,
    shadow: SimDevice,
    shadow_fences: BTreeMap<Fence, Fence>,
    pieces: BTreeMap<u64, Piece>,
    handles: BTreeMap<Handle, Physical>,
    removed: Vec<(u64, u64)>,
    ended: Ended,
    /// Whether a real stream was ever made to wait for a ticket. Only then can waiting for a stream end one.
    streams_await_tickets: bool,
    reserved: u64,
    device_used: u64,
    reserved_high: u64,
    device_used_high: u64,
}

/// Which tickets may have ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// These.
    These(Vec<StreamId>),
    /// Any of them.
    Any,
}

/// Addresses that are backed by one allocation or one handle.
#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    handle: Option<Handle>,
}

#[derive(Clone, Debug, Default)]
struct Physical {
    size: u64,
    mapped_at: Vec<u64>,
}

impl<M: Machine> Watch<M> {
    /// Watches a fresh device.
    pub fn new(machine: M) -> Watch<M> {
        let usage = machine.usage();
        Watch {
            machine,
            shadow: SimDevice::with_profile(0, free_of_charge()),
            shadow_fences: BTreeMap::new(),
            pieces: BTreeMap::new(),
            handles: BTreeMap::new(),
            removed: Vec::new(),
            ended: Ended::These(Vec::new()),
            streams_await_tickets: false,
            reserved: usage.reserved,
            device_used: usage.device_used,
            reserved_high: usage.reserved,
            device_used_high: usage.device_used,
        }
    }

    /// Reserved bytes now.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The card's loss now.
    pub fn device_used(&self) -> u64 {
        self.device_used
    }

    /// The highest reserved bytes and the highest loss since the last call.
    pub fn take_highs(&mut self) -> (u64, u64) {
        let highs = (self.reserved_high, self.device_used_high);
        (self.reserved_high, self.device_used_high) = (self.reserved, self.device_used);
        highs
    }

    /// Address ranges that lost their memory since the last call.
    pub fn take_removed(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.removed)
    }

    /// The tickets that may have ended since the last call.
    pub fn take_ended(&mut self) -> Ended {
        std::mem::replace(&mut self.ended, Ended::These(Vec::new()))
    }

    /// Marks a point in a stream, unseen by the strategy and the device.
    pub fn mark(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.set_clock();
        self.shadow.fence(stream)
    }

    /// Whether everything before a mark is done.
    pub fn has_passed(&mut self, mark: Fence) -> Result<bool, DeviceError> {
        self.set_clock();
        self.shadow.poll(mark)
    }

    /// Whether all of `[start, end)` is backed by memory.
    pub fn is_backed(&self, start: u64, end: u64) -> bool {
        let mut reached = start;
        while reached < end {
            match self.pieces.range(..=reached).next_back() {
                Some((_, piece)) if piece.end > reached => reached = piece.end,
                _ => return false,
            }
        }
        true
    }

    /// Other address ranges that share memory with `[start, end)`.
    pub fn aliases(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.pieces.range(..=start).next_back().map_or(start, |(&va, _)| va);
        let mut found = Vec::new();
        for (&va, piece) in self.pieces.range(first..end).filter(|(_, piece)| piece.end > start) {
            let Some(physical) = piece.handle.and_then(|handle| self.handles.get(&handle)) else { continue };
            let (from, to) = (start.max(va) - va, end.min(piece.end) - va);
            found.extend(physical.mapped_at.iter().filter(|&&other| other != va).map(|at| (at + from, at + to)));
        }
        found
    }

    fn set_clock(&mut self) {
        let (real, shadow) = (self.machine.usage().now_ns, self.shadow.usage().now_ns);
        self.shadow.host_work(real.saturating_sub(shadow));
    }

    /// The end of `stream`, or of everything, was waited for.
    fn note_ended(&mut self, stream: Option<StreamId>) {
        match stream {
            Some(ticket) if ticket.as_ticket().is_some() => {
                if let Ended::These(tickets) = &mut self.ended {
                    tickets.push(ticket);
                }
            }
            Some(_) if !self.streams_await_tickets => {}
            _ => self.ended = Ended::Any,
        }
    }

    fn refresh(&mut self) {
        let usage = self.machine.usage();
        self.reserved = usage.reserved;
        self.device_used = usage.device_used;
        self.reserved_high = self.reserved_high.max(usage.reserved);
        self.device_used_high = self.device_used_high.max(usage.device_used);
    }

    fn remove(&mut self, va: u64, end: u64) {
        let gone: Vec<(u64, Piece)> = self.pieces.range(va..end).map(|(&va, &piece)| (va, piece)).collect();
        for (va, piece) in gone {
            self.pieces.remove(&va);
            self.removed.push((va, piece.end));
            if let Some(handle) = piece.handle
                && let Some(physical) = self.handles.get_mut(&handle)
            {
                physical.mapped_at.retain(|&at| at != va);
            }
        }
    }
}

impl<M: Machine> Device for Watch<M> {
    fn info(&self) -> DeviceInfo {
        self.machine.info()
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        let ptr = self.machine.malloc(size)?;
        self.pieces.insert(ptr, Piece { end: ptr + size, handle: None });
        self.refresh();
        Ok(ptr)
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        self.machine.free(ptr)?;
        self.remove(ptr, ptr + 1);
        self.refresh();
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.machine.reserve(size)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.machine.unreserve(va, size)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        let handle = self.machine.create(size)?;
        self.handles.insert(handle, Physical { size, mapped_at: Vec::new() });
        self.refresh();
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        // The memory lives on while it is mapped, so what is known of the handle stays: handles are not reused.
        self.machine.release(handle)?;
        self.refresh();
        Ok(())
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        self.machine.map(va, handles)?;
        let mut at = va;
        for handle in handles {
            let physical = self.handles.entry(*handle).or_default();
            physical.mapped_at.push(at);
            let end = at + physical.size;
            self.pieces.insert(at, Piece { end, handle: Some(*handle) });
            at = end;
        }
        self.refresh();
        Ok(())
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.machine.unmap(va, size)?;
        self.remove(va, va + size);
        self.refresh();
        Ok(())
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        let fence = self.machine.fence(stream)?;
        let mark = self.mark(stream)?;
        self.shadow_fences.insert(fence, mark);
        Ok(fence)
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        self.machine.poll(fence)
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.machine.order_after(stream, fence)?;
        self.streams_await_tickets |= fence.stream.as_ticket().is_some();
        self.set_clock();
        match self.shadow_fences.get(&fence) {
            Some(&mark) => self.shadow.order_after(stream, mark),
            None => Ok(()),
        }
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.machine.sync(what)?;
        self.note_ended(match what {
            Sync::Fence(fence) => Some(fence.stream),
            Sync::Stream(stream) => Some(stream),
            Sync::Device => None,
        });
        self.set_clock();
        match what {
            Sync::Fence(fence) => match self.shadow_fences.get(&fence) {
                Some(&mark) => self.shadow.sync(Sync::Fence(mark)),
                None => Ok(()),
            },
            Sync::Stream(_) | Sync::Device => self.shadow.sync(what),
        }
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.machine.memory_info()
    }

    fn retired(&mut self, ptr: u64) {
        self.machine.retired(ptr);
    }
}

impl<M: Machine> Machine for Watch<M> {
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        self.set_clock();
        self.shadow.work(stream, ns)?;
        self.machine.work(stream, ns)
    }

    fn host_work(&mut self, ns: u64) {
        self.machine.host_work(ns);
    }

    fn complete(&mut self, ticket: u32) {
        self.note_ended(Some(StreamId::ticket(ticket)));
        self.shadow.complete(ticket);
        self.machine.complete(ticket);
    }

    fn usage(&self) -> Usage {
        self.machine.usage()
    }
}

fn free_of_charge() -> Profile {
    let free = Cost::flat(0);
    Profile {
        name: "free of charge".into(),
        malloc: free,
        free,
        within_page: free,
        reserve: free,
        unreserve: free,
        create: free,
        release: free,
        map: free,
        unmap: free,
        fence: free,
        poll: free,
        order_after: free,
        sync: free,
        memory_info: free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shadow::Shadow;
    use allocator_core::CallKind;

    const BLOCKS: u32 = 100;

    /// Blocks that were freed with a ticket each.
    fn all_late() -> (Watch<SimDevice>, Shadow) {
        let mut watch = Watch::new(SimDevice::new(1 << 30));
        let mut shadow = Shadow::new(BLOCKS);
        for slot in 0..BLOCKS {
            let ptr = watch.malloc(512).unwrap();
            shadow.allocated(slot, ptr, 512, StreamId::DEFAULT, &watch).unwrap();
            shadow.freed(slot, Some(slot), &mut watch);
        }
        (watch, shadow)
    }

    #[test]
    fn no_ticket_is_looked_at_before_it_ends() {
        let (mut watch, mut shadow) = all_late();
        assert_eq!(shadow.pending_bytes, 512 * u64::from(BLOCKS));
        let polls = |watch: &Watch<SimDevice>| watch.shadow.usage().calls[CallKind::Poll as usize];
        let before = polls(&watch);
        for ticket in 0..BLOCKS {
            watch.host_work(1);
            watch.sync(Sync::Stream(StreamId::DEFAULT)).unwrap();
            shadow.settle(&mut watch);
            watch.complete(ticket);
            shadow.settle(&mut watch);
        }
        assert_eq!(shadow.pending_bytes, 0);
        assert_eq!(polls(&watch) - before, u64::from(BLOCKS));
    }

    #[test]
    fn waiting_ends_tickets_too() {
        let (mut watch, mut shadow) = all_late();
        let left = |watch: &mut Watch<SimDevice>, shadow: &mut Shadow| {
            shadow.settle(watch);
            shadow.pending_bytes / 512
        };
        let fence = watch.fence(StreamId::ticket(3)).unwrap();
        watch.sync(Sync::Fence(fence)).unwrap();
        watch.sync(Sync::Stream(StreamId::ticket(4))).unwrap();
        assert_eq!(left(&mut watch, &mut shadow), 98);
        let fence = watch.fence(StreamId::ticket(5)).unwrap();
        watch.order_after(StreamId(1), fence).unwrap();
        assert_eq!(left(&mut watch, &mut shadow), 98);
        watch.sync(Sync::Stream(StreamId(1))).unwrap();
        assert_eq!(left(&mut watch, &mut shadow), 97);
        watch.sync(Sync::Device).unwrap();
        assert_eq!(left(&mut watch, &mut shadow), 0);
    }
}
