//! A stable hash of what a run depends on. Its values are in published results, so it never changes.

use workload_gen::{Event, PoolOp, Trace};

/// 64-bit FNV-1a.
#[derive(Clone, Copy, Debug)]
pub struct Hash(u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Adds a text with its length, so that neighbouring texts cannot run into each other.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    /// Adds a number, as eight bytes, lowest first.
    pub fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// The hash as results hold it: 16 hexadecimal digits.
    pub fn hex(self) -> String {
        format!("{:016x}", self.0)
    }
}

/// The hash of a trace's events. The header does not count, nor do labels, nor the numbers that texts happen to have:
/// what a strategy is asked to do is the same.
///
/// An event is a letter followed by numbers and texts; a missing number is `u64::MAX`.
pub fn of_trace(trace: &Trace) -> String {
    let mut hash = Hash::default();
    let mut add = |letter: u8, numbers: &[u64], text: Option<u32>| {
        hash.bytes(&[letter]);
        numbers.iter().for_each(|&number| hash.number(number));
        if let Some(text) = text {
            hash.text(trace.texts.get(text as usize).map_or("", String::as_str));
        }
    };
    let or_max = |number: Option<u64>| number.unwrap_or(u64::MAX);
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, stream, pool } => {
                add(b'a', &[slot.into(), size, stream.0.into(), pool.0.into()], None);
            }
            Event::Use { slot, stream } => add(b'u', &[slot.into(), stream.0.into()], None),
            Event::Free { slot, ticket } => add(b'f', &[slot.into(), or_max(ticket.map(u64::from))], None),
            Event::Done { ticket } => add(b'c', &[ticket.into()], None),
            Event::Work { stream, ns } => add(b'k', &[stream.0.into(), ns], None),
            Event::Wait { stream, on } => add(b'w', &[stream.0.into(), on.0.into()], None),
            Event::Sync { stream } => add(b'y', &[or_max(stream.map(|stream| stream.0.into()))], None),
            Event::Empty { pool } => add(b'e', &[or_max(pool.map(|pool| pool.0.into()))], None),
            Event::Pool { op, pool } => add(b'p', &[pool_op(op), pool.0.into()], None),
            Event::Limit { bytes } => add(b'l', &[or_max(bytes)], None),
            Event::Settings { text } => add(b's', &[], Some(text)),
            Event::Host { ns } => add(b't', &[ns], None),
            Event::Mark { text } => add(b'm', &[], Some(text)),
        }
    }
    hash.hex()
}

const fn pool_op(op: PoolOp) -> u64 {
    match op {
        PoolOp::Create => 0,
        PoolOp::Begin => 1,
        PoolOp::End => 2,
        PoolOp::Release => 3,
        PoolOp::NoSplit => 4,
        PoolOp::UseOnOom => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::{PoolId, StreamId};

    fn trace(events: &[Event], texts: &[&str]) -> Trace {
        let texts = texts.iter().map(|text| text.to_string()).collect();
        Trace { events: events.to_vec(), texts, ..Trace::default() }
    }

    #[test]
    fn published_values_do_not_change() {
        let mut hash = Hash::default();
        assert_eq!(hash.hex(), "cbf29ce484222325");
        hash.bytes(b"foobar");
        assert_eq!(hash.hex(), "85944171f73967e8", "the reference value of FNV-1a");
        let alloc = Event::Alloc { slot: 1, size: 512, stream: StreamId(2), pool: PoolId(0) };
        let free = Event::Free { slot: 1, ticket: None };
        let mut trace = trace(&[alloc, free], &[]);
        assert_eq!(of_trace(&trace), "a17bddce469da820");
        (trace.labels, trace.label_texts) = (vec![0], vec!["input ids".to_string()]);
        assert_eq!(of_trace(&trace), "a17bddce469da820", "labels are for people");
    }

    #[test]
    fn every_field_counts_and_text_numbers_do_not() {
        let a = of_trace(&trace(&[Event::Mark { text: 0 }], &["x", "y"]));
        assert_eq!(a, of_trace(&trace(&[Event::Mark { text: 1 }], &["y", "x"])));
        assert_ne!(a, of_trace(&trace(&[Event::Mark { text: 1 }], &["x", "y"])));
        assert_ne!(a, of_trace(&trace(&[Event::Settings { text: 0 }], &["x", "y"])));
        let free = |ticket| of_trace(&trace(&[Event::Free { slot: 0, ticket }], &[]));
        assert_ne!(free(None), free(Some(0)));
        let empty = |pool| of_trace(&trace(&[Event::Empty { pool }], &[]));
        assert_ne!(empty(None), empty(Some(PoolId(1))));
    }
}
