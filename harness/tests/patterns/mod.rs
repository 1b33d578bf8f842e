//! What the integrity tests share, on the simulated device and on a card: a workload that reuses memory at once, over
//! several streams, and the strategies that the conformance suite is proven on, one line of each done wrong.

#[path = "../../../allocator-core/tests/broken/paged.rs"]
#[allow(dead_code, reason = "some of its mistakes show nowhere but in the suite")]
pub mod paged;
#[path = "../../../allocator-core/tests/broken/toy.rs"]
#[allow(dead_code, reason = "some of its mistakes show nowhere but in the suite")]
pub mod toy;

use allocator_core::{PoolId, StreamId};
use toy::Bug;
use workload_gen::{Event, Trace};

/// Mistakes that let two owners write to the same memory.
pub const CORRUPTING: [Bug; 7] = [
    Bug::CutsOffTooLittle,
    Bug::JoinsLiveNeighbours,
    Bug::IgnoresUses,
    Bug::IgnoresOwnStream,
    Bug::IgnoresTickets,
    Bug::WaitsForFirstFence,
    Bug::FencesTooEarly,
];

/// `events` events over three streams: few slots, so that memory is wanted again as soon as it is free.
pub fn churn(seed: u64, events: usize) -> Trace {
    const SLOTS: u32 = 24;
    let mut state = seed | 1;
    let mut below = |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % limit
    };
    let mut trace = Trace::default();
    trace.header.slots = SLOTS;
    let mut live = [false; SLOTS as usize];
    let mut tickets: Vec<u32> = Vec::new();
    let mut next_ticket = 0;
    while trace.events.len() < events {
        let slot = below(u64::from(SLOTS)) as u32;
        let stream = StreamId(below(3) as u32);
        let event = match (live[slot as usize], below(10)) {
            (false, 0) if !tickets.is_empty() => {
                Event::Done { ticket: tickets.swap_remove(below(tickets.len() as u64) as usize) }
            }
            (false, 1) if below(8) == 0 => Event::Empty { pool: None },
            (false, _) => {
                live[slot as usize] = true;
                Event::Alloc { slot, size: 1 + below(300_000), stream, pool: PoolId::DEFAULT }
            }
            (true, 0..3) => Event::Use { slot, stream },
            (true, 3) => {
                live[slot as usize] = false;
                tickets.push(next_ticket);
                next_ticket += 1;
                Event::Free { slot, ticket: tickets.last().copied() }
            }
            (true, _) => {
                live[slot as usize] = false;
                Event::Free { slot, ticket: None }
            }
        };
        trace.events.push(event);
    }
    trace
}
