//! Whether a trace makes sense: every slot, ticket, stream and pool is used as a replay expects.
//!
//! A replay indexes arrays with what a trace says, so nothing else may reach it. The reader applies these rules line
//! by line; [`check`] applies them to a trace that was made in memory.

use crate::trace::{Event, PoolOp, Trace};
use allocator_core::{PoolId, StreamId};

/// What makes no sense in a trace.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckError {
    /// An event: the first.
    #[error("event {event} ({what:?}): {fault}")]
    Event {
        /// Its number, from 0.
        event: usize,
        /// The event.
        what: Event,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Some allocations have labels and some have none.
    #[error("{labels} labels for {allocations} allocations; label all of them or none")]
    Labels {
        /// How many labels there are.
        labels: usize,
        /// How many allocations.
        allocations: u64,
    },
    /// A label that the trace does not have.
    #[error("allocation {allocation}: label {label} does not exist in the trace, which has {count}")]
    LabelUnknown {
        /// The allocation's number, from 0.
        allocation: usize,
        /// The label.
        label: u32,
        /// How many there are.
        count: usize,
    },
}

/// A rule that an event breaks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// A slot beyond what dense numbering can reach.
    #[error("slot {slot}, where {allocations} allocations came before; slots are numbered densely from 0")]
    SlotTooHigh {
        /// The slot.
        slot: u32,
        /// Allocations before.
        allocations: u64,
    },
    /// More slots or tickets than the header says.
    #[error("{what} {number}, where the header says {count}; correct the header or take its `{what}s` line out")]
    BeyondHeader {
        /// `slot`, `ticket`, `stream` or `pool`.
        what: &'static str,
        /// The number.
        number: u32,
        /// How many there are.
        count: u32,
    },
    /// An allocation into a slot that is full.
    #[error("slot {0} is full already; free it before")]
    SlotFull(u32),
    /// A free or use of an empty slot.
    #[error("slot {0} is empty")]
    SlotEmpty(u32),
    /// A ticket beyond what dense numbering can reach.
    #[error("ticket {ticket}, where {frees} frees with a ticket came before; tickets are numbered densely from 0")]
    TicketTooHigh {
        /// The ticket.
        ticket: u32,
        /// Frees with a ticket before.
        frees: u64,
    },
    /// A ticket that another free still waits for.
    #[error("ticket {0} is in use; a free needs one that no other free waits for")]
    TicketInUse(u32),
    /// A completion of a ticket that nobody waits for.
    #[error("no free waits for ticket {0}")]
    TicketUnused(u32),
    /// A stream beyond the limit.
    #[error("stream {0}, where {max} is the highest; streams are numbered densely from 0", max = Checker::MAX_STREAMS - 1)]
    StreamTooHigh(u32),
    /// A pool that does not exist.
    #[error("pool {0} does not exist; put `p create {0}` before")]
    PoolUnknown(u32),
    /// A pool beyond what dense numbering can reach, or the default pool.
    #[error("pool {0} cannot be made here: private pools are numbered densely from 1")]
    PoolNumber(u32),
    /// A pool that is open is begun.
    #[error("pool {0} is open already")]
    PoolOpen(u32),
    /// A pool that is not open is ended.
    #[error("pool {0} is not open")]
    PoolClosed(u32),
    /// A pool without users is released.
    #[error("pool {0} has no users left")]
    PoolUnused(u32),
    /// A pool is used after its last release.
    #[error("pool {0} is gone: its last user released it; release it later, or make another pool")]
    PoolGone(u32),
    /// A pool that nobody uses is emptied while a context is open.
    #[error("pool {0} cannot be emptied while pool {open} is open; put `p end {open}` before", open = .1)]
    PoolBusy(u32, u32),
    /// A text that the trace does not have.
    #[error("text {0} does not exist in the trace")]
    TextUnknown(u32),
}

#[derive(Clone, Copy, Default)]
struct PoolState {
    made: bool,
    users: u32,
    open: bool,
}

impl PoolState {
    /// Nobody uses the pool any more, and nobody can again.
    const fn is_gone(self) -> bool {
        self.made && self.users == 0 && !self.open
    }
}

/// Follows the events of a trace.
pub(crate) struct Checker {
    slots: Vec<bool>,
    tickets: Vec<bool>,
    pools: Vec<PoolState>,
    streams: u32,
    allocations: u64,
    ticketed: u64,
    pub(crate) limits: Limits,
}

/// What a header declares.
#[derive(Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) slots: Option<u32>,
    pub(crate) tickets: Option<u32>,
    pub(crate) streams: Option<u32>,
    pub(crate) pools: Option<u32>,
    pub(crate) texts: Option<u32>,
}

impl Checker {
    /// Streams are few; without a declaration any number below this is believed.
    const MAX_STREAMS: u32 = 1 << 13;

    pub(crate) fn new(limits: Limits) -> Checker {
        Checker {
            slots: Vec::new(),
            tickets: Vec::new(),
            pools: Vec::new(),
            streams: 0,
            allocations: 0,
            ticketed: 0,
            limits,
        }
    }

    /// Allocations so far.
    pub(crate) fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Slots that were used.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Tickets that were used.
    pub(crate) fn tickets(&self) -> u32 {
        self.tickets.len() as u32
    }

    /// Streams that were used, and all below them.
    pub(crate) fn streams(&self) -> u32 {
        self.streams
    }

    /// Private pools up to the highest that was made.
    pub(crate) fn pools(&self) -> u32 {
        self.pools.len() as u32
    }

    /// The next event.
    pub(crate) fn event(&mut self, event: &Event) -> Result<(), Fault> {
        match *event {
            Event::Alloc { slot, stream, pool, .. } => {
                if u64::from(slot) > self.allocations {
                    return Err(Fault::SlotTooHigh { slot, allocations: self.allocations });
                }
                within("slot", slot, self.limits.slots)?;
                self.stream(stream)?;
                if self.pool(pool)?.is_gone() {
                    return Err(Fault::PoolGone(pool.0));
                }
                if slot as usize >= self.slots.len() {
                    self.slots.resize(slot as usize + 1, false);
                }
                if std::mem::replace(&mut self.slots[slot as usize], true) {
                    return Err(Fault::SlotFull(slot));
                }
                self.allocations += 1;
            }
            Event::Use { slot, stream } => {
                self.stream(stream)?;
                self.full(slot)?;
            }
            Event::Free { slot, ticket } => {
                self.full(slot)?;
                if let Some(ticket) = ticket {
                    self.wait_for(ticket)?;
                }
                self.slots[slot as usize] = false;
            }
            Event::Done { ticket } => match self.tickets.get_mut(ticket as usize) {
                Some(waiting) if *waiting => *waiting = false,
                _ => return Err(Fault::TicketUnused(ticket)),
            },
            Event::Work { stream, .. } | Event::Sync { stream: Some(stream) } => self.stream(stream)?,
            Event::Wait { stream, on } => {
                self.stream(stream)?;
                self.stream(on)?;
            }
            Event::Empty { pool: Some(pool) } => {
                let is_used = self.pool(pool)?.users > 0;
                match self.pools.iter().position(|state| state.open) {
                    Some(open) if !is_used => return Err(Fault::PoolBusy(pool.0, open as u32 + 1)),
                    _ => {}
                }
            }
            Event::Pool { op, pool } => self.pool_op(op, pool)?,
            Event::Settings { text } | Event::Mark { text } => {
                if self.limits.texts.is_some_and(|count| text >= count) {
                    return Err(Fault::TextUnknown(text));
                }
            }
            Event::Sync { stream: None } | Event::Empty { pool: None } | Event::Limit { .. } | Event::Host { .. } => {}
        }
        Ok(())
    }

    fn full(&self, slot: u32) -> Result<(), Fault> {
        match self.slots.get(slot as usize) {
            Some(true) => Ok(()),
            _ => Err(Fault::SlotEmpty(slot)),
        }
    }

    fn wait_for(&mut self, ticket: u32) -> Result<(), Fault> {
        if u64::from(ticket) > self.ticketed {
            return Err(Fault::TicketTooHigh { ticket, frees: self.ticketed });
        }
        within("ticket", ticket, self.limits.tickets)?;
        if ticket as usize >= self.tickets.len() {
            self.tickets.resize(ticket as usize + 1, false);
        }
        if std::mem::replace(&mut self.tickets[ticket as usize], true) {
            return Err(Fault::TicketInUse(ticket));
        }
        self.ticketed += 1;
        Ok(())
    }

    fn stream(&mut self, stream: StreamId) -> Result<(), Fault> {
        if stream.0 >= self.streams {
            within("stream", stream.0, self.limits.streams)?;
            if stream.0 >= Self::MAX_STREAMS {
                return Err(Fault::StreamTooHigh(stream.0));
            }
            self.streams = stream.0 + 1;
        }
        Ok(())
    }

    /// The state of a pool that exists. The default pool is one that nobody made and that cannot go.
    fn pool(&self, pool: PoolId) -> Result<PoolState, Fault> {
        let Some(at) = (pool.0 as usize).checked_sub(1) else { return Ok(PoolState::default()) };
        self.pools.get(at).copied().filter(|state| state.made).ok_or(Fault::PoolUnknown(pool.0))
    }

    fn pool_op(&mut self, op: PoolOp, pool: PoolId) -> Result<(), Fault> {
        let number = pool.0;
        let makes = matches!(op, PoolOp::Create | PoolOp::Begin);
        let Some(at) = (number as usize).checked_sub(1) else {
            return Err(Fault::PoolNumber(number));
        };
        if makes && at >= self.pools.len() {
            match self.limits.pools {
                Some(count) if number > count => return Err(Fault::BeyondHeader { what: "pool", number, count }),
                None if at > self.pools.len() => return Err(Fault::PoolNumber(number)),
                _ => self.pools.resize(at + 1, PoolState::default()),
            }
        }
        let Some(state) = self.pools.get_mut(at).filter(|state| makes || state.made) else {
            return Err(Fault::PoolUnknown(number));
        };
        match op {
            // An open context keeps what it has, but nobody new can come.
            PoolOp::Create | PoolOp::Begin if state.made && state.users == 0 => return Err(Fault::PoolGone(number)),
            PoolOp::Begin if state.open => return Err(Fault::PoolOpen(number)),
            PoolOp::End if !state.open => return Err(Fault::PoolClosed(number)),
            PoolOp::Release if state.users == 0 => return Err(Fault::PoolUnused(number)),
            PoolOp::Create => state.users += 1,
            PoolOp::Begin => {
                state.users += 1;
                state.open = true;
            }
            PoolOp::End => state.open = false,
            PoolOp::Release => state.users -= 1,
            PoolOp::NoSplit | PoolOp::UseOnOom => {}
        }
        state.made = true;
        Ok(())
    }
}

fn within(what: &'static str, number: u32, declared: Option<u32>) -> Result<(), Fault> {
    match declared {
        Some(count) if number >= count => Err(Fault::BeyondHeader { what, number, count }),
        _ => Ok(()),
    }
}

/// Whether a replay can rely on the trace.
pub fn check(trace: &Trace) -> Result<(), CheckError> {
    let header = &trace.header;
    let count = |len: usize| Some(u32::try_from(len).unwrap_or(u32::MAX));
    let mut checker = Checker::new(Limits {
        slots: Some(header.slots),
        tickets: Some(header.tickets),
        streams: count(header.streams.len()),
        pools: count(header.pools.len()),
        texts: count(trace.texts.len()),
    });
    for (number, event) in trace.events.iter().enumerate() {
        checker.event(event).map_err(|fault| CheckError::Event { event: number, what: *event, fault })?;
    }
    let (labels, allocations) = (trace.labels.len(), checker.allocations);
    if labels > 0 && labels as u64 != allocations {
        return Err(CheckError::Labels { labels, allocations });
    }
    let count = trace.label_texts.len();
    match trace.labels.iter().position(|&label| label as usize >= count) {
        Some(allocation) => Err(CheckError::LabelUnknown { allocation, label: trace.labels[allocation], count }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Header;

    const DEFAULT: StreamId = StreamId::DEFAULT;

    fn alloc(slot: u32) -> Event {
        Event::Alloc { slot, size: 512, stream: DEFAULT, pool: PoolId::DEFAULT }
    }

    fn free(slot: u32, ticket: Option<u32>) -> Event {
        Event::Free { slot, ticket }
    }

    fn pool(op: PoolOp, number: u32) -> Event {
        Event::Pool { op, pool: PoolId(number) }
    }

    fn in_pool(number: u32) -> Event {
        Event::Alloc { slot: 0, size: 512, stream: DEFAULT, pool: PoolId(number) }
    }

    fn fault(events: &[Event]) -> Option<(usize, Fault)> {
        let header =
            Header { slots: 2, tickets: 2, streams: vec![0, 7], pools: vec![(0, 1), (0, 2)], ..Header::default() };
        let trace = Trace { header, events: events.to_vec(), texts: vec!["text".into()], ..Trace::default() };
        match check(&trace) {
            Ok(()) => None,
            Err(CheckError::Event { event, fault, .. }) => Some((event, fault)),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn accepts_what_makes_sense() {
        let fine = [
            alloc(0),
            alloc(1),
            Event::Use { slot: 1, stream: StreamId(1) },
            free(0, Some(0)),
            alloc(0),
            free(1, Some(1)),
            Event::Done { ticket: 0 },
            free(0, Some(0)),
            pool(PoolOp::Create, 1),
            pool(PoolOp::Begin, 2),
            Event::Alloc { slot: 0, size: 0, stream: DEFAULT, pool: PoolId(2) },
            Event::Empty { pool: Some(PoolId(2)) },
            pool(PoolOp::Release, 2),
            free(0, None),
            Event::Alloc { slot: 0, size: 8, stream: DEFAULT, pool: PoolId(2) },
            pool(PoolOp::End, 2),
            Event::Empty { pool: Some(PoolId(2)) },
            Event::Mark { text: 0 },
        ];
        assert_eq!(fault(&fine), None);
    }

    #[test]
    fn names_the_first_fault() {
        let cases: &[(&[Event], Fault)] = &[
            (&[alloc(1)], Fault::SlotTooHigh { slot: 1, allocations: 0 }),
            (&[alloc(0), alloc(1), alloc(2)], Fault::BeyondHeader { what: "slot", number: 2, count: 2 }),
            (&[alloc(0), alloc(0)], Fault::SlotFull(0)),
            (&[free(0, None)], Fault::SlotEmpty(0)),
            (&[alloc(0), free(0, None), free(0, None)], Fault::SlotEmpty(0)),
            (&[Event::Use { slot: 9, stream: DEFAULT }], Fault::SlotEmpty(9)),
            (&[alloc(0), free(0, Some(1))], Fault::TicketTooHigh { ticket: 1, frees: 0 }),
            (&[alloc(0), free(0, Some(0)), alloc(0), free(0, Some(0))], Fault::TicketInUse(0)),
            (&[Event::Done { ticket: 0 }], Fault::TicketUnused(0)),
            (
                &[Event::Work { stream: StreamId(2), ns: 1 }],
                Fault::BeyondHeader { what: "stream", number: 2, count: 2 },
            ),
            (
                &[Event::Wait { stream: DEFAULT, on: StreamId::ticket(1) }],
                Fault::BeyondHeader { what: "stream", number: StreamId::ticket(1).0, count: 2 },
            ),
            (&[Event::Empty { pool: Some(PoolId(1)) }], Fault::PoolUnknown(1)),
            (&[pool(PoolOp::Create, 0)], Fault::PoolNumber(0)),
            (&[pool(PoolOp::Create, 3)], Fault::BeyondHeader { what: "pool", number: 3, count: 2 }),
            (&[pool(PoolOp::Create, 2), Event::Empty { pool: Some(PoolId(1)) }], Fault::PoolUnknown(1)),
            (&[pool(PoolOp::Release, 1)], Fault::PoolUnknown(1)),
            (&[pool(PoolOp::Create, 1), pool(PoolOp::Release, 1), pool(PoolOp::Release, 1)], Fault::PoolUnused(1)),
            (&[pool(PoolOp::Begin, 1), pool(PoolOp::Begin, 1)], Fault::PoolOpen(1)),
            (&[pool(PoolOp::Create, 1), pool(PoolOp::Release, 1), in_pool(1)], Fault::PoolGone(1)),
            (&[pool(PoolOp::Create, 1), pool(PoolOp::Release, 1), pool(PoolOp::Create, 1)], Fault::PoolGone(1)),
            (&[pool(PoolOp::Begin, 1), pool(PoolOp::Release, 1), pool(PoolOp::Begin, 1)], Fault::PoolGone(1)),
            (&[pool(PoolOp::Begin, 1), pool(PoolOp::Release, 1), pool(PoolOp::End, 1), in_pool(1)], Fault::PoolGone(1)),
            (
                &[pool(PoolOp::Begin, 1), pool(PoolOp::Release, 1), Event::Empty { pool: Some(PoolId(1)) }],
                Fault::PoolBusy(1, 1),
            ),
            (
                &[
                    pool(PoolOp::Create, 1),
                    pool(PoolOp::Release, 1),
                    pool(PoolOp::Begin, 2),
                    Event::Empty { pool: Some(PoolId(1)) },
                ],
                Fault::PoolBusy(1, 2),
            ),
            (&[pool(PoolOp::Create, 1), pool(PoolOp::End, 1)], Fault::PoolClosed(1)),
            (&[Event::Settings { text: 1 }], Fault::TextUnknown(1)),
        ];
        for (events, expected) in cases {
            assert_eq!(fault(events), Some((events.len() - 1, expected.clone())), "{events:?}");
        }
    }

    #[test]
    fn all_allocations_have_labels_or_none() {
        let labelled = |labels: &[u32], texts: usize| {
            let header = Header { slots: 2, streams: vec![0], ..Header::default() };
            let label_texts = vec!["role name".to_string(); texts];
            check(&Trace {
                header,
                events: vec![alloc(0), free(0, None), alloc(1)],
                labels: labels.to_vec(),
                label_texts,
                ..Trace::default()
            })
        };
        assert_eq!(labelled(&[], 0), Ok(()));
        assert_eq!(labelled(&[], 3), Ok(()));
        assert_eq!(labelled(&[1, 1], 2), Ok(()));
        assert_eq!(labelled(&[0], 1), Err(CheckError::Labels { labels: 1, allocations: 2 }));
        assert_eq!(labelled(&[0, 0, 0], 1), Err(CheckError::Labels { labels: 3, allocations: 2 }));
        assert_eq!(labelled(&[0, 1], 1), Err(CheckError::LabelUnknown { allocation: 1, label: 1, count: 1 }));
    }

    #[test]
    fn what_is_not_declared_has_limits() {
        let mut checker = Checker::new(Limits::default());
        assert_eq!(checker.event(&pool(PoolOp::Create, 2)), Err(Fault::PoolNumber(2)));
        let far = StreamId(Checker::MAX_STREAMS);
        assert_eq!(checker.event(&Event::Sync { stream: Some(far) }), Err(Fault::StreamTooHigh(far.0)));
    }
}
