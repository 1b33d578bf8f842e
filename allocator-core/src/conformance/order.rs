//! What is known about the order of work: which of it the host has seen done, and which waits for which.
//!
//! The suite does not ask the simulated clock whether memory was idle when it was handed out again. A strategy that
//! never looks may be lucky with the clock of one run; the rule is that it must *know*. So every stream (and ticket)
//! is a lane with a position that grows with each piece of work, and knowledge is a clock with a position a lane:
//!
//! ```text
//! lane 0   ──●──●──●───────▶ position 3       fence: a copy of what its lane's work waits for, and of the position
//! lane 1   ──●──────▲──●───▶ position 2       order_after: the lane's later work waits for the fence's clock
//!                   └ waits for lane 0 up to 3     poll, sync: the host, and so everything queued later, knows it
//! ```

use crate::device::Fence;
use crate::request::StreamId;
use std::collections::VecDeque;

/// Real streams and tickets that can be watched, each.
pub(super) const LANES: usize = 8;

/// A position for each lane: real streams, then tickets. 0 is before the first work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Clock([u32; 2 * LANES]);

impl Clock {
    fn learn(&mut self, other: &Clock) {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(other);
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Lane {
    /// What the lane's later work waits for; its own entry is how much was queued.
    reached: Clock,
    /// Clocks of the fences by sequence number; a fence like the one before it is left out.
    fences: VecDeque<(u64, Clock)>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Order {
    lanes: [Lane; 2 * LANES],
    /// What the host has seen done.
    done: Clock,
}

fn lane_of(stream: StreamId) -> Option<usize> {
    match stream.as_ticket() {
        Some(ticket) => ((ticket as usize) < LANES).then(|| LANES + ticket as usize),
        None => (stream.index() < LANES).then(|| stream.index()),
    }
}

fn stream_of(lane: usize) -> StreamId {
    if lane < LANES { StreamId(lane as u32) } else { StreamId::ticket((lane - LANES) as u32) }
}

impl Order {
    pub(super) fn new() -> Order {
        Order { lanes: std::array::from_fn(|_| Lane::default()), done: Clock::default() }
    }

    /// A piece of work is queued.
    pub(super) fn work(&mut self, stream: StreamId) {
        if let Some(lane) = lane_of(stream) {
            self.lanes[lane].reached.0[lane] += 1;
        }
    }

    /// The points that these streams have reached, and nothing of other streams.
    pub(super) fn points(&self, streams: &[StreamId]) -> Clock {
        let mut points = Clock::default();
        for lane in streams.iter().filter_map(|&stream| lane_of(stream)) {
            points.0[lane] = self.lanes[lane].reached.0[lane];
        }
        points
    }

    /// A fence came into being.
    pub(super) fn fenced(&mut self, fence: Fence) {
        let Some(lane) = lane_of(fence.stream) else { return };
        let Lane { reached, fences } = &mut self.lanes[lane];
        while fences.front().is_some_and(|(_, clock)| clock.0.iter().zip(self.done.0).all(|(&at, done)| at <= done)) {
            fences.pop_front();
        }
        if fences.back().is_none_or(|(_, clock)| clock != reached) {
            fences.push_back((fence.seq, *reached));
        }
    }

    /// What the fence's lane waited for when it was made. Fences that say nothing new are forgotten.
    fn clock_of(&self, fence: Fence) -> Clock {
        let Some(lane) = lane_of(fence.stream) else { return Clock::default() };
        let fences = &self.lanes[lane].fences;
        let after = fences.partition_point(|&(seq, _)| seq <= fence.seq);
        after.checked_sub(1).map_or(Clock::default(), |at| fences[at].1)
    }

    /// The host saw that the fence is done.
    pub(super) fn saw(&mut self, fence: Fence) {
        let clock = self.clock_of(fence);
        self.done.learn(&clock);
    }

    /// The host waited for a stream.
    pub(super) fn saw_stream(&mut self, stream: StreamId) {
        if let Some(lane) = lane_of(stream) {
            let clock = self.lanes[lane].reached;
            self.done.learn(&clock);
        }
    }

    /// The host waited for the device.
    pub(super) fn saw_all(&mut self) {
        for lane in &self.lanes {
            self.done.learn(&lane.reached);
        }
    }

    /// Later work on `stream` waits for the fence.
    pub(super) fn order_after(&mut self, stream: StreamId, fence: Fence) {
        let clock = self.clock_of(fence);
        if let Some(lane) = lane_of(stream) {
            self.lanes[lane].reached.learn(&clock);
        }
    }

    /// A stream whose work up to `points` may still run when the next work of `stream` does.
    pub(super) fn may_run_beside(&self, points: &Clock, stream: StreamId) -> Option<StreamId> {
        let own = lane_of(stream);
        let awaited = own.map_or(Clock::default(), |lane| self.lanes[lane].reached);
        (0..2 * LANES)
            .find(|&lane| points.0[lane] > self.done.0[lane] && points.0[lane] > awaited.0[lane])
            .map(stream_of)
    }

    /// A stream whose work up to `points` may still run now.
    pub(super) fn may_still_run(&self, points: &Clock) -> Option<StreamId> {
        (0..2 * LANES).find(|&lane| points.0[lane] > self.done.0[lane]).map(stream_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(0);
    const B: StreamId = StreamId(1);
    const C: StreamId = StreamId(2);
    const T: StreamId = StreamId::ticket(0);

    fn fence(order: &mut Order, stream: StreamId, seq: u64) -> Fence {
        let fence = Fence { stream, seq };
        order.fenced(fence);
        fence
    }

    #[test]
    fn a_stream_is_ordered_after_itself_alone() {
        let mut order = Order::new();
        order.work(A);
        let points = order.points(&[A]);
        assert_eq!(order.may_run_beside(&points, A), None);
        assert_eq!(order.may_run_beside(&points, B), Some(A));
        assert_eq!(order.may_still_run(&points), Some(A));
    }

    #[test]
    fn a_fence_covers_what_was_queued_before_it() {
        let mut order = Order::new();
        order.work(A);
        let early = fence(&mut order, A, 0);
        order.work(A);
        let points = order.points(&[A]);
        order.saw(early);
        assert_eq!(order.may_run_beside(&points, B), Some(A), "the fence is older than the last work");
        let late = fence(&mut order, A, 1);
        order.saw(late);
        assert_eq!(order.may_still_run(&points), None);
    }

    #[test]
    fn waiting_passes_on() {
        let mut order = Order::new();
        order.work(A);
        let points = order.points(&[A]);
        let on_a = fence(&mut order, A, 0);
        order.order_after(B, on_a);
        assert_eq!(order.may_run_beside(&points, B), None);
        assert_eq!(order.may_run_beside(&points, C), Some(A));
        let on_b = fence(&mut order, B, 0);
        order.order_after(C, on_b);
        assert_eq!(order.may_run_beside(&points, C), None, "through B");
        assert_eq!(order.may_still_run(&points), Some(A), "the host knows nothing");
        order.saw_stream(C);
        assert_eq!(order.may_still_run(&points), None);
    }

    #[test]
    fn a_device_wide_wait_covers_tickets() {
        let mut order = Order::new();
        order.work(T);
        order.work(B);
        let points = order.points(&[B, T]);
        order.saw_stream(B);
        assert_eq!(order.may_run_beside(&points, B), Some(T));
        order.saw_all();
        assert_eq!(order.may_run_beside(&points, B), None);
    }

    #[test]
    fn forgotten_fences_are_known_ones() {
        let mut order = Order::new();
        order.work(A);
        let first = fence(&mut order, A, 0);
        let same = fence(&mut order, A, 1);
        assert_eq!(order.lanes[0].fences.len(), 1, "the second says nothing new");
        order.saw(same);
        order.work(A);
        let points = order.points(&[A]);
        let last = fence(&mut order, A, 2);
        assert_eq!(order.lanes[0].fences.len(), 1, "the first is forgotten");
        order.saw(first);
        assert_eq!(order.may_still_run(&points), Some(A));
        order.saw(last);
        assert_eq!(order.may_still_run(&points), None);
    }
}
