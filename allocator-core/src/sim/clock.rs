//! Time on the simulated device: the host's clock, and how long each stream is busy.
//!
//! Time is whole nanoseconds. A ticket (see [`StreamId::ticket`]) stands for work whose length nobody knows, so it
//! has no time: it ends where the caller says so. A real stream that waits for a ticket is not done before that.

use crate::device::{CallKind, Fence};
use crate::error::DeviceError;
use crate::request::StreamId;
use std::collections::{BTreeMap, VecDeque};

/// What a stream had been told to do at some point: when the work of known length ends, and the tickets to wait for.
#[derive(Clone, Debug, Default)]
struct Mark {
    busy_until: u64,
    tickets: Vec<Fence>,
}

/// A real stream.
#[derive(Clone, Debug, Default)]
struct Stream {
    queued: Mark,
    /// Fences that were not done when last looked at, oldest first. What a fence waits for includes all that earlier
    /// ones wait for, so done fences are always the first ones.
    fences: VecDeque<Mark>,
    /// The sequence number of the first of them.
    first_seq: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ticket {
    next_seq: u64,
    /// Fences below this number are done.
    done: u64,
}

/// The clock of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    now: u64,
    /// When the last stream is done.
    idle_at: u64,
    streams: BTreeMap<StreamId, Stream>,
    tickets: BTreeMap<StreamId, Ticket>,
}

impl Clock {
    /// The host's clock.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The host is busy for `ns`.
    pub(super) fn pass(&mut self, ns: u64) {
        self.now = self.now.saturating_add(ns);
    }

    /// Queues `ns` of work; false if `stream` is a ticket.
    pub(super) fn work(&mut self, stream: StreamId, ns: u64) -> bool {
        if stream.as_ticket().is_some() {
            return false;
        }
        let queued = &mut self.streams.entry(stream).or_default().queued;
        queued.busy_until = queued.busy_until.max(self.now).saturating_add(ns);
        self.idle_at = self.idle_at.max(queued.busy_until);
        true
    }

    pub(super) fn fence(&mut self, stream: StreamId) -> Fence {
        let seq = if stream.as_ticket().is_some() {
            let ticket = self.tickets.entry(stream).or_default();
            ticket.next_seq += 1;
            ticket.next_seq - 1
        } else {
            self.forget_done(stream);
            let stream = self.streams.entry(stream).or_default();
            stream.fences.push_back(stream.queued.clone());
            stream.first_seq + stream.fences.len() as u64 - 1
        };
        Fence { stream, seq }
    }

    /// Whether the fence is done; `None` if there is no such fence.
    pub(super) fn poll(&mut self, fence: Fence) -> Option<bool> {
        if fence.stream.as_ticket().is_some() {
            let ticket = self.tickets.get(&fence.stream)?;
            return (fence.seq < ticket.next_seq).then_some(fence.seq < ticket.done);
        }
        self.forget_done(fence.stream);
        let stream = self.streams.get(&fence.stream)?;
        let pending = stream.fences.len() as u64;
        (fence.seq < stream.first_seq + pending).then_some(fence.seq < stream.first_seq)
    }

    /// Lets `stream` wait for a fence.
    pub(super) fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        const INVALID: DeviceError = DeviceError::Invalid(CallKind::OrderAfter);
        if stream.as_ticket().is_some() {
            return Err(INVALID);
        }
        if self.poll(fence).ok_or(INVALID)? {
            return Ok(());
        }
        let awaited = self.mark(fence);
        let queued = &mut self.streams.entry(stream).or_default().queued;
        queued.busy_until = queued.busy_until.max(awaited.busy_until);
        for ticket in awaited.tickets {
            if !queued.tickets.contains(&ticket) {
                queued.tickets.push(ticket);
            }
        }
        Ok(())
    }

    /// The host waits for a fence; false if there is no such fence.
    pub(super) fn wait_fence(&mut self, fence: Fence) -> bool {
        match self.poll(fence) {
            Some(false) => self.wait(self.mark(fence)),
            Some(true) => {}
            None => return false,
        }
        true
    }

    /// The host waits for all that is queued on a stream.
    pub(super) fn wait_stream(&mut self, stream: StreamId) {
        if stream.as_ticket().is_some() {
            self.complete(stream);
        } else if let Some(stream) = self.streams.get(&stream) {
            self.wait(stream.queued.clone());
        }
    }

    /// The host waits until all work of known length is done. Tickets stay as they are.
    pub(super) fn wait_idle(&mut self) {
        self.now = self.now.max(self.idle_at);
    }

    /// The host waits for everything, tickets included.
    pub(super) fn wait_all(&mut self) {
        self.wait_idle();
        self.tickets.values_mut().for_each(|ticket| ticket.done = ticket.next_seq);
    }

    /// All fences of a ticket so far are done.
    pub(super) fn complete(&mut self, stream: StreamId) {
        if let Some(ticket) = self.tickets.get_mut(&stream) {
            ticket.done = ticket.next_seq;
        }
    }

    fn wait(&mut self, mark: Mark) {
        self.now = self.now.max(mark.busy_until);
        for fence in mark.tickets {
            if let Some(ticket) = self.tickets.get_mut(&fence.stream) {
                ticket.done = ticket.done.max(fence.seq + 1);
            }
        }
    }

    /// What a fence that is not done waits for.
    fn mark(&self, fence: Fence) -> Mark {
        if fence.stream.as_ticket().is_some() {
            return Mark { busy_until: 0, tickets: vec![fence] };
        }
        let stream = self.streams.get(&fence.stream);
        let mark = stream.and_then(|stream| stream.fences.get((fence.seq - stream.first_seq) as usize));
        mark.cloned().unwrap_or_default()
    }

    fn forget_done(&mut self, stream: StreamId) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        let tickets = &self.tickets;
        let is_pending = |fence: &Fence| tickets.get(&fence.stream).is_some_and(|ticket| fence.seq >= ticket.done);
        stream.queued.tickets.retain(is_pending);
        while let Some(mark) = stream.fences.front()
            && mark.busy_until <= self.now
            && !mark.tickets.iter().any(is_pending)
        {
            stream.fences.pop_front();
            stream.first_seq += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(0);
    const B: StreamId = StreamId(5);
    const T: StreamId = StreamId::ticket(3);

    #[test]
    fn fences_are_done_when_the_host_clock_reaches_them() {
        let mut clock = Clock::default();
        clock.work(A, 100);
        let early = clock.fence(A);
        clock.work(A, 50);
        let late = clock.fence(A);
        assert!(late.seq > early.seq);
        assert_eq!((clock.poll(early), clock.poll(late)), (Some(false), Some(false)));
        clock.pass(99);
        assert_eq!(clock.poll(early), Some(false));
        clock.pass(1);
        assert_eq!((clock.poll(early), clock.poll(late)), (Some(true), Some(false)));
        assert!(clock.wait_fence(late));
        assert_eq!(clock.now(), 150);
        assert_eq!(clock.poll(late), Some(true));
        clock.pass(50);
        clock.work(A, 10);
        clock.wait_stream(A);
        assert_eq!(clock.now(), 210, "an idle stream starts at the host's clock");
    }

    #[test]
    fn unknown_fences_are_known_to_be_unknown() {
        let mut clock = Clock::default();
        assert_eq!(clock.poll(Fence { stream: A, seq: 0 }), None);
        let fence = clock.fence(A);
        assert_eq!(clock.poll(fence), Some(true), "nothing queued");
        assert_eq!(clock.poll(Fence { seq: 1, ..fence }), None);
        assert_eq!(clock.poll(Fence { stream: T, seq: 0 }), None);
        assert!(!clock.wait_fence(Fence { stream: T, seq: 0 }));
        let ticket = clock.fence(T);
        assert_eq!(clock.poll(Fence { seq: 1, ..ticket }), None);
        assert!(clock.order_after(A, Fence { stream: B, seq: 0 }).is_err());
        assert!(clock.order_after(T, fence).is_err());
        assert!(!clock.work(T, 1));
    }

    #[test]
    fn one_stream_waits_for_another() {
        let mut clock = Clock::default();
        clock.work(A, 100);
        let fence = clock.fence(A);
        clock.work(B, 10);
        clock.order_after(B, fence).unwrap();
        clock.work(B, 10);
        clock.wait_stream(B);
        assert_eq!(clock.now(), 110);
        clock.work(A, 1);
        clock.wait_idle();
        assert_eq!(clock.now(), 111);
    }

    #[test]
    fn tickets_end_where_the_caller_says() {
        let mut clock = Clock::default();
        let first = clock.fence(T);
        clock.pass(1_000_000);
        clock.wait_idle();
        assert_eq!(clock.poll(first), Some(false));
        clock.complete(T);
        let second = clock.fence(T);
        assert!(second.seq > first.seq);
        assert_eq!((clock.poll(first), clock.poll(second)), (Some(true), Some(false)));
        let third = clock.fence(T);
        assert!(clock.wait_fence(second));
        assert_eq!((clock.poll(second), clock.poll(third)), (Some(true), Some(false)));
        clock.wait_stream(T);
        assert_eq!(clock.poll(third), Some(true));
        let fourth = clock.fence(T);
        clock.wait_all();
        assert_eq!(clock.poll(fourth), Some(true));
    }

    #[test]
    fn a_stream_that_waits_for_a_ticket_is_not_done_before_it() {
        let mut clock = Clock::default();
        let ticket = clock.fence(T);
        clock.order_after(A, ticket).unwrap();
        let on_a = clock.fence(A);
        clock.order_after(B, on_a).unwrap();
        let on_b = clock.fence(B);
        assert_eq!((clock.poll(on_a), clock.poll(on_b)), (Some(false), Some(false)));
        let mut waited = clock.clone();
        assert!(waited.wait_fence(on_b));
        assert_eq!((waited.poll(ticket), waited.poll(on_a), waited.poll(on_b)), (Some(true), Some(true), Some(true)));
        clock.complete(T);
        assert_eq!((clock.poll(on_a), clock.poll(on_b)), (Some(true), Some(true)));
        let idle = clock.fence(A);
        assert_eq!(clock.poll(idle), Some(true));
    }
}
