//! Which work on the streams is done, followed without a question to the device.
//!
//! Asking the device would cost modelled time and change what the strategy sees. So the same work is queued on a *twin*,
//! a second simulated device whose calls cost nothing and whose clock is set after the real one.

use allocator_core::{Cost, Device, DeviceError, Fence, Machine, Profile, SimDevice, StreamId, Sync};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub(crate) struct Streams {
    twin: SimDevice,
    /// The twin's fences by the real ones.
    fences: BTreeMap<Fence, Fence>,
    ended: Ended,
    /// Whether a real stream was ever made to wait for a ticket. Only then can waiting for a stream end one.
    await_tickets: bool,
}

/// Which tickets may have ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// These.
    These(Vec<StreamId>),
    /// Any of them.
    Any,
}

impl Ended {
    const NONE: Ended = Ended::These(Vec::new());
}

impl Default for Streams {
    fn default() -> Streams {
        let twin = SimDevice::with_profile(0, Profile::uniform("free of charge", Cost::flat(0)));
        Streams { twin, fences: BTreeMap::new(), ended: Ended::NONE, await_tickets: false }
    }
}

impl Streams {
    /// Lets the time pass until `now_ns` on the real clock.
    pub(crate) fn set_clock(&mut self, now_ns: u64) {
        let late = now_ns.saturating_sub(self.twin.usage().now_ns);
        self.twin.host_work(late);
    }

    /// Marks a point in a stream.
    pub(crate) fn mark(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.twin.fence(stream)
    }

    /// Whether everything before a mark is done.
    pub(crate) fn has_passed(&mut self, mark: Fence) -> Result<bool, DeviceError> {
        self.twin.poll(mark)
    }

    /// The tickets that may have ended since the last call.
    pub(crate) fn take_ended(&mut self) -> Ended {
        std::mem::replace(&mut self.ended, Ended::NONE)
    }

    /// The real device made this fence.
    pub(crate) fn fence(&mut self, fence: Fence) -> Result<(), DeviceError> {
        let mark = self.twin.fence(fence.stream)?;
        self.fences.insert(fence, mark);
        Ok(())
    }

    /// A stream waits for a fence.
    pub(crate) fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.await_tickets |= fence.stream.as_ticket().is_some();
        match self.fences.get(&fence) {
            Some(&mark) => self.twin.order_after(stream, mark),
            None => Ok(()),
        }
    }

    /// The host has waited.
    pub(crate) fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.note_ended(match what {
            Sync::Fence(fence) => Some(fence.stream),
            Sync::Stream(stream) => Some(stream),
            Sync::Device => None,
        });
        match what {
            Sync::Fence(fence) => match self.fences.get(&fence) {
                Some(&mark) => self.twin.sync(Sync::Fence(mark)),
                None => Ok(()),
            },
            Sync::Stream(_) | Sync::Device => self.twin.sync(what),
        }
    }

    /// Work is queued.
    pub(crate) fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        self.twin.work(stream, ns)
    }

    /// A ticket is done.
    pub(crate) fn complete(&mut self, ticket: u32) {
        self.note_ended(Some(StreamId::ticket(ticket)));
        self.twin.complete(ticket);
    }

    /// The end of `stream`, or of everything, was waited for.
    fn note_ended(&mut self, stream: Option<StreamId>) {
        match stream {
            Some(ticket) if ticket.as_ticket().is_some() => {
                if let Ended::These(tickets) = &mut self.ended {
                    tickets.push(ticket);
                }
            }
            Some(_) if !self.await_tickets => {}
            _ => self.ended = Ended::Any,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shadow::Shadow;
    use crate::watch::Watch;
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
        let polls = |watch: &mut Watch<SimDevice>| watch.streams().twin.usage().calls[CallKind::Poll as usize];
        let before = polls(&mut watch);
        for ticket in 0..BLOCKS {
            watch.host_work(1);
            watch.sync(Sync::Stream(StreamId::DEFAULT)).unwrap();
            shadow.settle(&mut watch);
            watch.complete(ticket);
            shadow.settle(&mut watch);
        }
        assert_eq!(shadow.pending_bytes, 0);
        assert_eq!(polls(&mut watch) - before, u64::from(BLOCKS));
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
