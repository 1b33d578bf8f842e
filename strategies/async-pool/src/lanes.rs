//! Streams, as far as the pool can know of them: how far their frees have come, and which stream was made to wait for which.
//!
//! Frees are numbered throughout. A *mark* on a stream is a fence and the number of the last free before it: when the fence
//! has passed, all frees of the stream up to that number are over.
//!
//! ```text
//! stream 1   free 3 ── free 5 ── mark (until 5) ── free 8
//!                                └─ passed: done = 5, newest = 8
//! ```

use allocator_core::{Device, DeviceError, Fence, StreamId};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// The last free.
    newest: u64,
    /// Frees up to this one are over, as the host has seen.
    done: u64,
    /// What was freed up to here was made common.
    common: u64,
    /// A fence that was not seen to have passed, and the last free before it.
    mark: Option<(Fence, u64)>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    /// Lanes with a mark.
    marked: Vec<u32>,
    /// The one of them to look at next.
    turn: usize,
    /// `(after, before)`: the first lane's stream waits for the second one's frees up to this number.
    order: BTreeMap<(u32, u32), u64>,
    /// The number of the last free.
    seq: u64,
}

#[inline]
pub(crate) fn lane_of(stream: StreamId) -> u32 {
    stream.0.saturating_add(1)
}

#[inline]
pub(crate) fn stream_of(lane: u32) -> StreamId {
    StreamId(lane.saturating_sub(1))
}

impl Lanes {
    /// Makes sure that the lane is there.
    #[inline]
    pub(crate) fn open(&mut self, lane: u32) {
        if self.lanes.len() <= lane as usize {
            self.lanes.resize(lane as usize + 1, Lane::default());
        }
    }

    /// The lanes of streams.
    pub(crate) fn all(&self) -> std::ops::Range<u32> {
        1..self.lanes.len() as u32
    }

    /// The number of a free on the lane.
    #[inline]
    pub(crate) fn freed(&mut self, lane: u32) -> u64 {
        self.seq += 1;
        if let Some(lane) = self.lanes.get_mut(lane as usize) {
            lane.newest = self.seq;
        }
        self.seq
    }

    fn get(&self, lane: u32) -> Lane {
        self.lanes.get(lane as usize).copied().unwrap_or_default()
    }

    /// Frees of the lane up to this number are over.
    pub(crate) fn done(&self, lane: u32) -> u64 {
        self.get(lane).done
    }

    /// Whether all frees of the lane are over.
    pub(crate) fn is_done(&self, lane: u32) -> bool {
        self.get(lane).newest <= self.get(lane).done
    }

    #[inline]
    pub(crate) fn has_marks(&self) -> bool {
        !self.marked.is_empty()
    }

    /// How many lanes have marks, and one of them, by turns.
    pub(crate) fn marks(&self) -> usize {
        self.marked.len()
    }

    pub(crate) fn next_marked(&mut self) -> Option<u32> {
        self.turn = if self.turn + 1 < self.marked.len() { self.turn + 1 } else { 0 };
        self.marked.get(self.turn).copied()
    }

    /// Looks whether the lane's mark has passed, if it has one; true if it has.
    pub(crate) fn look(&mut self, dev: &mut dyn Device, lane: u32) -> Result<bool, DeviceError> {
        let Some(at) = self.lanes.get_mut(lane as usize) else { return Ok(false) };
        let Some((fence, until)) = at.mark else { return Ok(false) };
        if !dev.poll(fence)? {
            return Ok(false);
        }
        (at.done, at.mark) = (at.done.max(until), None);
        self.marked.retain(|&other| other != lane);
        Ok(true)
    }

    /// Puts a mark behind the frees of the lane, if they are not known to be over and it has none.
    pub(crate) fn mark(&mut self, dev: &mut dyn Device, lane: u32) -> Result<(), DeviceError> {
        if self.is_done(lane) || self.get(lane).mark.is_some() {
            return Ok(());
        }
        let fence = dev.fence(stream_of(lane))?;
        self.set_mark(lane, fence);
        Ok(())
    }

    /// Finds out whether all frees of the lane are over. If they are not, a mark stays.
    pub(crate) fn ask(&mut self, dev: &mut dyn Device, lane: u32) -> Result<(), DeviceError> {
        if self.get(lane).mark.is_none() {
            self.mark(dev, lane)?;
            self.look(dev, lane)?;
        }
        Ok(())
    }

    fn set_mark(&mut self, lane: u32, fence: Fence) {
        if let Some(at) = self.lanes.get_mut(lane as usize) {
            at.mark = Some((fence, self.seq));
            self.marked.push(lane);
        }
    }

    /// What was freed up to here may become common; `None` if there is nothing new.
    pub(crate) fn newly_done(&mut self, lane: u32) -> Option<u64> {
        let at = self.lanes.get_mut(lane as usize)?;
        let is_new = at.done > at.common;
        at.common = at.done;
        is_new.then_some(at.done)
    }

    /// The host has waited for the device.
    pub(crate) fn all_done(&mut self) {
        for lane in &mut self.lanes {
            (lane.done, lane.mark) = (self.seq, None);
        }
        self.marked.clear();
    }

    /// Lets the stream of `after` wait for the frees of `before` up to `seq`.
    pub(crate) fn wait_for(
        &mut self,
        dev: &mut dyn Device,
        after: u32,
        before: u32,
        seq: u64,
    ) -> Result<(), DeviceError> {
        let marked = self.get(before).mark.filter(|&(_, until)| seq <= until);
        if let Some((fence, until)) = marked {
            dev.order_after(stream_of(after), fence)?;
            self.follow(after, before, until);
            return Ok(());
        }
        let fence = dev.fence(stream_of(before))?;
        dev.order_after(stream_of(after), fence)?;
        // Whatever that stream waits for, this one does too.
        let inherited: Vec<(u32, u64)> =
            self.order.range((before, 0)..=(before, u32::MAX)).map(|(&(_, lane), &seq)| (lane, seq)).collect();
        for (lane, seq) in inherited {
            self.follow(after, lane, seq);
        }
        self.follow(after, before, self.seq);
        Ok(())
    }

    fn follow(&mut self, after: u32, before: u32, seq: u64) {
        if after != before {
            let known = self.order.entry((after, before)).or_default();
            *known = seq.max(*known);
        }
    }

    /// The lanes whose frees the stream of a lane waits for, and up to which.
    pub(crate) fn followed_by(&self, after: u32) -> impl Iterator<Item = (u32, u64)> {
        self.order.range((after, 0)..=(after, u32::MAX)).map(|(&(_, lane), &seq)| (lane, seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::{CallKind, Machine, SimDevice};

    fn start() -> (SimDevice, Lanes) {
        let mut lanes = Lanes::default();
        lanes.open(4);
        (SimDevice::new(1 << 30), lanes)
    }

    #[test]
    fn a_mark_stays_until_its_stream_has_passed() {
        let (mut dev, mut lanes) = start();
        lanes.freed(1);
        lanes.ask(&mut dev, 1).unwrap();
        assert!(lanes.is_done(1) && !lanes.has_marks(), "an idle stream");
        dev.work(stream_of(1), 1_000_000_000).unwrap();
        let early = lanes.freed(1);
        lanes.ask(&mut dev, 1).unwrap();
        lanes.freed(1);
        lanes.ask(&mut dev, 1).unwrap();
        assert_eq!((dev.usage().calls[CallKind::Fence as usize], lanes.marks()), (2, 1), "one mark at a time");
        assert_eq!(lanes.look(&mut dev, 1), Ok(false));
        dev.host_work(1_000_000_000);
        assert_eq!((lanes.look(&mut dev, 1), lanes.done(1), lanes.is_done(1)), (Ok(true), early, false));
        assert_eq!((lanes.newly_done(1), lanes.newly_done(1)), (Some(early), None));
    }

    #[test]
    fn waiting_passes_on_with_a_new_fence() {
        let (mut dev, mut lanes) = start();
        let first = lanes.freed(1);
        lanes.wait_for(&mut dev, 2, 1, first).unwrap();
        let second = lanes.freed(2);
        lanes.wait_for(&mut dev, 3, 2, second).unwrap();
        assert_eq!(lanes.followed_by(3).collect::<Vec<_>>(), [(1, first), (2, second)]);
        assert_eq!(lanes.followed_by(1).count(), 0);
    }

    #[test]
    fn an_old_mark_says_no_more_than_it_knew() {
        let (mut dev, mut lanes) = start();
        dev.work(stream_of(2), 1_000_000_000).unwrap();
        let early = lanes.freed(2);
        lanes.ask(&mut dev, 2).unwrap();
        let late = lanes.freed(2);
        lanes.wait_for(&mut dev, 3, 2, early).unwrap();
        assert_eq!(lanes.followed_by(3).collect::<Vec<_>>(), [(2, early)]);
        lanes.wait_for(&mut dev, 3, 2, late).unwrap();
        assert_eq!(lanes.followed_by(3).collect::<Vec<_>>(), [(2, late)]);
    }
}
