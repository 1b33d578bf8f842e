//! Streams, fences and tickets of a card.
//!
//! A fence is an event of the driver. Work that nobody can run, a ticket's, ends where the caller says so; a fence on a
//! stream that waits for tickets is done when its event has happened and they have ended.

use super::driver::{self, Answer, Event, Stream};
use crate::device::Fence;
use crate::request::StreamId;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// A fence that was not seen to be done.
#[derive(Clone, Debug)]
struct Mark {
    event: Event,
    tickets: Vec<Fence>,
}

#[derive(Debug)]
struct Lane {
    stream: Stream,
    /// Tickets that all further work waits for.
    awaits: Vec<Fence>,
    /// Oldest first. Events of one stream happen in their order.
    marks: VecDeque<Mark>,
    /// The sequence number of the first of them.
    first_seq: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ticket {
    next_seq: u64,
    /// Fences below this number are done.
    done: u64,
}

/// See the module. Streams come into being when they are first named.
#[derive(Debug, Default)]
pub(super) struct Streams {
    lanes: BTreeMap<StreamId, Lane>,
    tickets: BTreeMap<StreamId, Ticket>,
    spare: Vec<Event>,
}

/// Why a call was not made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// There is no such fence, or a ticket stands where a stream must.
    Unknown,
    /// The driver's answer.
    Driver(driver::Code),
}

impl From<driver::Code> for Refusal {
    fn from(code: driver::Code) -> Refusal {
        Refusal::Driver(code)
    }
}

impl Streams {
    fn lane(&mut self, id: StreamId) -> Result<&mut Lane, Refusal> {
        if id.as_ticket().is_some() {
            return Err(Refusal::Unknown);
        }
        match self.lanes.entry(id) {
            Entry::Occupied(lane) => Ok(lane.into_mut()),
            Entry::Vacant(place) => {
                let stream = if id == StreamId::DEFAULT { Stream::DEFAULT } else { driver::create_stream()? };
                Ok(place.insert(Lane { stream, awaits: Vec::new(), marks: VecDeque::new(), first_seq: 0 }))
            }
        }
    }

    /// The driver's stream.
    pub(super) fn stream(&mut self, id: StreamId) -> Result<Stream, Refusal> {
        self.lane(id).map(|lane| lane.stream)
    }

    pub(super) fn fence(&mut self, id: StreamId) -> Result<Fence, Refusal> {
        if id.as_ticket().is_some() {
            let ticket = self.tickets.entry(id).or_default();
            ticket.next_seq += 1;
            return Ok(Fence { stream: id, seq: ticket.next_seq - 1 });
        }
        let event = self.spare.pop().map_or_else(driver::create_event, Ok)?;
        let tickets = &self.tickets;
        let pending = |fence: &Fence| tickets.get(&fence.stream).is_some_and(|ticket| fence.seq >= ticket.done);
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.awaits.retain(pending);
        }
        let lane = self.lane(id)?;
        driver::record_event(event, lane.stream)?;
        lane.marks.push_back(Mark { event, tickets: lane.awaits.clone() });
        Ok(Fence { stream: id, seq: lane.first_seq + lane.marks.len() as u64 - 1 })
    }

    /// The mark of a fence; `None` if it was seen to be done.
    fn mark(&self, fence: Fence) -> Result<Option<&Mark>, Refusal> {
        let lane = self.lanes.get(&fence.stream).ok_or(Refusal::Unknown)?;
        match fence.seq.checked_sub(lane.first_seq) {
            None => Ok(None),
            Some(at) => lane.marks.get(at as usize).map(Some).ok_or(Refusal::Unknown),
        }
    }

    fn has_ended(&self, ticket: &Fence) -> bool {
        self.tickets.get(&ticket.stream).is_none_or(|state| ticket.seq < state.done)
    }

    /// Whether the fence is done.
    pub(super) fn poll(&mut self, fence: Fence) -> Result<bool, Refusal> {
        if fence.stream.as_ticket().is_some() {
            let known = self.tickets.get(&fence.stream).is_some_and(|ticket| fence.seq < ticket.next_seq);
            return if known { Ok(self.has_ended(&fence)) } else { Err(Refusal::Unknown) };
        }
        let Some(mark) = self.mark(fence)? else { return Ok(true) };
        if !mark.tickets.iter().all(|ticket| self.has_ended(ticket)) || !driver::query_event(mark.event)? {
            return Ok(false);
        }
        self.forget_up_to(fence);
        Ok(true)
    }

    /// Fences up to this one are done: what one waits for includes all that earlier ones wait for.
    fn forget_up_to(&mut self, fence: Fence) {
        let Some(lane) = self.lanes.get_mut(&fence.stream) else { return };
        while lane.first_seq <= fence.seq
            && let Some(mark) = lane.marks.pop_front()
        {
            self.spare.push(mark.event);
            lane.first_seq += 1;
        }
    }

    /// Lets `stream` wait for a fence.
    pub(super) fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), Refusal> {
        let to = self.stream(stream)?;
        let tickets = if fence.stream.as_ticket().is_some() {
            if self.poll(fence)? { Vec::new() } else { vec![fence] }
        } else {
            let Some(mark) = self.mark(fence)? else { return Ok(()) };
            let tickets = mark.tickets.clone();
            driver::wait_event(to, mark.event)?;
            tickets
        };
        let lane = self.lane(stream)?;
        for ticket in tickets {
            if !lane.awaits.contains(&ticket) {
                lane.awaits.push(ticket);
            }
        }
        Ok(())
    }

    /// The host waits for a fence.
    pub(super) fn wait_fence(&mut self, fence: Fence) -> Result<(), Refusal> {
        if fence.stream.as_ticket().is_some() {
            self.poll(fence)?;
            self.end(fence);
            return Ok(());
        }
        let Some(mark) = self.mark(fence)? else { return Ok(()) };
        let tickets = mark.tickets.clone();
        driver::synchronize_event(mark.event)?;
        tickets.into_iter().for_each(|ticket| self.end(ticket));
        self.forget_up_to(fence);
        Ok(())
    }

    /// The host waits for all that is queued on a stream.
    pub(super) fn wait_stream(&mut self, id: StreamId) -> Result<(), Refusal> {
        if id.as_ticket().is_some() {
            self.complete(id);
            return Ok(());
        }
        let lane = self.lane(id)?;
        let (stream, tickets) = (lane.stream, lane.awaits.clone());
        driver::synchronize_stream(stream)?;
        tickets.into_iter().for_each(|ticket| self.end(ticket));
        Ok(())
    }

    /// The host waits for everything.
    pub(super) fn wait_all(&mut self) -> Answer<()> {
        driver::synchronize()?;
        self.tickets.values_mut().for_each(|ticket| ticket.done = ticket.next_seq);
        Ok(())
    }

    /// All fences of a ticket so far are done.
    pub(super) fn complete(&mut self, id: StreamId) {
        if let Some(ticket) = self.tickets.get_mut(&id) {
            ticket.done = ticket.next_seq;
        }
    }

    fn end(&mut self, fence: Fence) {
        if let Some(ticket) = self.tickets.get_mut(&fence.stream) {
            ticket.done = ticket.done.max(fence.seq + 1);
        }
    }

    /// Gives events and streams back to the driver.
    pub(super) fn destroy(&mut self) {
        let lanes = std::mem::take(&mut self.lanes);
        let mut events = std::mem::take(&mut self.spare);
        events.extend(lanes.values().flat_map(|lane| lane.marks.iter().map(|mark| mark.event)));
        // What fails here fails because the context is broken, and then it goes as a whole.
        for event in events {
            let _ = driver::destroy_event(event);
        }
        for lane in lanes.into_values().filter(|lane| lane.stream != Stream::DEFAULT) {
            let _ = driver::destroy_stream(lane.stream);
        }
    }
}
