//! Where everything lies when a strategy holds the most: the address map at the reserved peak.
//!
//! Only the whole trace tells which event is the peak, so the trace is replayed up to it a second time, without an
//! audit. Strategies and the simulated device decide the same again, and nothing is kept of the events before.

use crate::interrupt::Interrupt;
use crate::replay::{CHUNK, Replay, Tape};
use allocator_core::{Machine, PoolId, Span, SpanState, StreamId};
use workload_gen::Trace;

/// Pieces of a map at most.
pub const PEAK_PIECES: usize = 10_000;

/// A span of the address map, or neighbouring spans of one state put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Address of the first byte of the (first) span's segment.
    pub segment: u64,
    /// Address of the (first) span's first byte.
    pub ptr: u64,
    /// Bytes of all its spans.
    pub size: u64,
    /// What they are.
    pub state: SpanState,
    /// The stream that the (first) span belongs to.
    pub stream: StreamId,
    /// The pool that the (first) span belongs to.
    pub pool: PoolId,
    /// How many spans they are.
    pub spans: u64,
}

impl Piece {
    /// Nothing, nowhere.
    pub const NONE: Piece = Piece {
        segment: 0,
        ptr: 0,
        size: 0,
        state: SpanState::Unmapped,
        stream: StreamId(0),
        pool: PoolId::DEFAULT,
        spans: 0,
    };
}

/// The map after `event` of `trace`, on a strategy that was made for `machine` and has served nothing yet. After an
/// interrupt it may be that of an earlier event.
pub fn peak<M: Machine>(
    trace: &Trace,
    strategy: &mut dyn Replay,
    mut machine: M,
    event: u64,
    interrupt: &Interrupt,
) -> Vec<Piece> {
    let until = trace.events.len().min(usize::try_from(event).map_or(usize::MAX, |event| event.saturating_add(1)));
    let mut tape = Tape::new(trace.header.slots, &trace.texts);
    for chunk in trace.events[..until].chunks(CHUNK).take_while(|_| !interrupt.came()) {
        strategy.play(&mut machine, chunk, &mut tape);
    }
    let mut spans = Vec::new();
    strategy.inspect(&mut |span| spans.push(span));
    bounded(&spans, PEAK_PIECES)
}

/// At most `limit` (four or more) pieces. If there are more spans than that, those within windows of so and so many
/// bytes are put together by state: what a picture could not show anyway is lost, and no byte is.
fn bounded(spans: &[Span], limit: usize) -> Vec<Piece> {
    let mut window = 0;
    loop {
        let pieces = put_together(spans, window);
        if pieces.len() <= limit {
            return pieces;
        }
        window = if window == 0 { 512 } else { window.saturating_mul(2) };
    }
}

fn put_together(spans: &[Span], window: u64) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut first, mut filled) = (0, 0);
    for span in spans {
        filled = span.size.saturating_add(filled);
        if filled > window {
            (first, filled) = (pieces.len(), span.size);
        }
        match pieces[first..].iter_mut().find(|piece| piece.state == span.state) {
            Some(piece) => {
                piece.size = piece.size.saturating_add(span.size);
                piece.spans += 1;
            }
            None => {
                let Span { segment, ptr, size, state, stream, pool } = *span;
                pieces.push(Piece { segment, ptr, size, state, stream, pool, spans: 1 });
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(count: u64, size: impl Fn(u64) -> u64) -> Vec<Span> {
        let states = [SpanState::Live, SpanState::Cached, SpanState::Live, SpanState::Pending, SpanState::Unmapped];
        let mut ptr = 1 << 21;
        (0..count)
            .map(|i| {
                let size = size(i);
                ptr += size;
                let (stream, pool) = (StreamId(0), PoolId::DEFAULT);
                Span { segment: 1 << 21, ptr: ptr - size, size, state: states[(i % 5) as usize], stream, pool }
            })
            .collect()
    }

    fn bytes_by_state(pieces: &[Piece]) -> [u64; 4] {
        SpanState::ALL.map(|state| pieces.iter().filter(|piece| piece.state == state).map(|piece| piece.size).sum())
    }

    #[test]
    fn few_spans_stay_as_they_are() {
        let spans = spans(100, |i| 512 * (i + 1));
        let pieces = bounded(&spans, 100);
        assert_eq!(pieces.len(), 100);
        for (piece, span) in pieces.iter().zip(&spans) {
            assert_eq!((piece.ptr, piece.size, piece.state, piece.spans), (span.ptr, span.size, span.state, 1));
        }
    }

    #[test]
    fn many_spans_lose_places_and_no_bytes() {
        let spans = spans(10_001, |i| if i % 97 == 0 { 1 << 30 } else { 512 + i % 4096 });
        let whole = bytes_by_state(&put_together(&spans, 0));
        for limit in [4, 100, 5000] {
            let pieces = bounded(&spans, limit);
            assert!(pieces.len() <= limit && pieces.len() > limit / 16, "{} of {limit}", pieces.len());
            assert_eq!(bytes_by_state(&pieces), whole);
            assert_eq!(pieces.iter().map(|piece| piece.spans).sum::<u64>(), 10_001);
            assert!(pieces.is_sorted_by_key(|piece| piece.ptr) || limit == 4);
        }
    }

    #[test]
    fn nonsense_of_a_broken_strategy_ends_all_the_same() {
        let spans = spans(100, |_| 0).into_iter().map(|span| Span { size: u64::MAX, ..span }).collect::<Vec<_>>();
        assert!(bounded(&spans, 4).len() <= 4);
        assert!(bounded(&[], 4).is_empty());
    }
}
