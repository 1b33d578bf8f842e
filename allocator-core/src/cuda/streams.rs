//! Streams, fences and tickets of a card.
//!
//! A fence is an event of the driver. A ticket stands for work that nobody can run: its fences are events on a stream of
//! their own, which costs what other fences cost, and they are done when, besides, the ticket has ended, which the
//! caller says. A stream that waits for a ticket's fence is not done before that either, though its work runs.

use super::driver::{self, Answer, Code, Event, Stream};
use crate::device::Fence;
use crate::request::StreamId;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// A fence that was not seen to be done: it is when the event has happened and the fences of tickets are done.
#[derive(Clone, Debug)]
struct Mark {
    event: Event,
    tickets: Vec<Fence>,
}

/// A stream or a ticket.
#[derive(Debug)]
struct Lane {
    stream: Stream,
    /// Fences of tickets that all further work waits for.
    awaits: Vec<Fence>,
    /// Oldest first. What one waits for includes all that earlier ones wait for.
    marks: VecDeque<Mark>,
    /// The sequence number of the first of them.
    first_seq: u64,
}

impl Lane {
    fn next_seq(&self) -> u64 {
        self.first_seq + self.marks.len() as u64
    }
}

/// See the module. Streams come into being when they are first named.
#[derive(Debug, Default)]
pub(super) struct Streams {
    lanes: BTreeMap<StreamId, Lane>,
    /// The stream of all tickets.
    aside: Option<Stream>,
    /// Of each ticket that has ended before: its fences below this number are done.
    ended: BTreeMap<StreamId, u64>,
    spare: Vec<Event>,
}

/// Why a call was not made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// There is no such fence, or a ticket stands where a stream must.
    Unknown,
    /// The driver's answer.
    Driver(Code),
}

impl From<Code> for Refusal {
    fn from(code: Code) -> Refusal {
        Refusal::Driver(code)
    }
}

impl Streams {
    fn lane(&mut self, id: StreamId) -> Result<&mut Lane, Code> {
        match self.lanes.entry(id) {
            Entry::Occupied(lane) => Ok(lane.into_mut()),
            Entry::Vacant(place) => {
                let stream = match (id.as_ticket(), self.aside) {
                    (Some(_), Some(aside)) => aside,
                    (Some(_), None) => *self.aside.insert(driver::create_stream()?),
                    (None, _) if id == StreamId::DEFAULT => Stream::DEFAULT,
                    (None, _) => driver::create_stream()?,
                };
                Ok(place.insert(Lane { stream, awaits: Vec::new(), marks: VecDeque::new(), first_seq: 0 }))
            }
        }
    }

    /// The driver's stream.
    pub(super) fn stream(&mut self, id: StreamId) -> Result<Stream, Refusal> {
        if id.as_ticket().is_some() {
            return Err(Refusal::Unknown);
        }
        Ok(self.lane(id)?.stream)
    }

    pub(super) fn fence(&mut self, id: StreamId) -> Result<Fence, Refusal> {
        let event = self.spare.pop().map_or_else(driver::create_event, Ok)?;
        let stream = self.lane(id)?.stream;
        driver::record_event(event, stream)?;
        let Some(lane) = self.lanes.get_mut(&id) else { return Err(Refusal::Unknown) };
        let fence = Fence { stream: id, seq: lane.next_seq() };
        lane.awaits.retain(|ticket| !is_over(&self.ended, ticket));
        let mut tickets = lane.awaits.clone();
        tickets.extend(id.as_ticket().map(|_| fence));
        lane.marks.push_back(Mark { event, tickets });
        Ok(fence)
    }

    /// The mark of a fence; `None` if it was seen to be done.
    fn mark(&self, fence: Fence) -> Result<Option<&Mark>, Refusal> {
        let lane = self.lanes.get(&fence.stream).ok_or(Refusal::Unknown)?;
        match fence.seq.checked_sub(lane.first_seq) {
            None => Ok(None),
            Some(at) => lane.marks.get(at as usize).map(Some).ok_or(Refusal::Unknown),
        }
    }

    /// Whether the fence is done.
    pub(super) fn poll(&mut self, fence: Fence) -> Result<bool, Refusal> {
        let Some(mark) = self.mark(fence)? else { return Ok(true) };
        if !driver::query_event(mark.event)? || !mark.tickets.iter().all(|ticket| is_over(&self.ended, ticket)) {
            return Ok(false);
        }
        self.forget_up_to(fence);
        Ok(true)
    }

    /// Fences up to this one are done.
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
        let Some(mark) = self.mark(fence)? else { return Ok(()) };
        let tickets = mark.tickets.clone();
        driver::wait_event(to, mark.event)?;
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
        let Some(mark) = self.mark(fence)? else { return Ok(()) };
        let tickets = mark.tickets.clone();
        driver::synchronize_event(mark.event)?;
        tickets.into_iter().for_each(|ticket| self.end(ticket));
        self.forget_up_to(fence);
        Ok(())
    }

    /// The host waits for all that is queued on a stream.
    pub(super) fn wait_stream(&mut self, id: StreamId) -> Result<(), Refusal> {
        let lane = self.lane(id)?;
        let (stream, tickets) = (lane.stream, lane.awaits.clone());
        driver::synchronize_stream(stream)?;
        tickets.into_iter().for_each(|ticket| self.end(ticket));
        self.complete(id);
        Ok(())
    }

    /// The host waits for everything.
    pub(super) fn wait_all(&mut self) -> Answer<()> {
        driver::synchronize()?;
        let tickets: Vec<StreamId> = self.lanes.keys().copied().filter(|id| id.as_ticket().is_some()).collect();
        tickets.into_iter().for_each(|ticket| self.complete(ticket));
        Ok(())
    }

    /// If this is a ticket, all its fences so far are done.
    pub(super) fn complete(&mut self, id: StreamId) {
        if let Some(lane) = self.lanes.get(&id).filter(|_| id.as_ticket().is_some()) {
            self.ended.insert(id, lane.next_seq());
        }
    }

    fn end(&mut self, fence: Fence) {
        let ended = self.ended.entry(fence.stream).or_default();
        *ended = (*ended).max(fence.seq + 1);
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
        let streams = lanes.into_iter().filter(|(id, _)| *id != StreamId::DEFAULT && id.as_ticket().is_none());
        for stream in streams.map(|(_, lane)| lane.stream).chain(self.aside.take()) {
            let _ = driver::destroy_stream(stream);
        }
    }
}

fn is_over(ended: &BTreeMap<StreamId, u64>, ticket: &Fence) -> bool {
    ended.get(&ticket.stream).is_some_and(|done| ticket.seq < *done)
}
