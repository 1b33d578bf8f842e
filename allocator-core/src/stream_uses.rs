//! Blocks that other streams use, for strategies whose source knows one stream only.
//!
//! Memory of such a block may be used again when all its streams have passed the point of its free. A fence marks that
//! point on each of them, and the block waits until all its fences are seen to have passed:
//!
//! ```text
//! record ──▶ block 7 is used on streams 1 and 2
//! free   ──▶ fences on 1 and 2: block 7 waits for two
//! poll   ──▶ the fence on 2 has passed, that on 1 not yet: it waits for one
//! poll   ──▶ the fence on 1 has passed: take_done() is 7
//! ```

use crate::device::{Device, Fence};
use crate::error::DeviceError;
use crate::request::StreamId;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// The further streams of live blocks, and the fences of freed ones. Blocks go by the strategy's own slots.
///
/// Blocks that no other stream uses are not in it, so a strategy that marks those that are pays nothing for the rest. For
/// the others each step is logarithmic in their number and in that of the streams waited for.
#[derive(Clone, Debug, Default)]
pub struct StreamUses {
    /// Streams other than its own that use a live block.
    users: BTreeMap<u32, Vec<StreamId>>,
    /// How many fences a freed block waits for.
    waiting: BTreeMap<u32, usize>,
    /// Fences and their blocks, by stream, oldest first: a stream passes its fences in order. None is empty.
    queues: BTreeMap<StreamId, VecDeque<(Fence, u32)>>,
    /// The stream that was looked at last.
    last: StreamId,
    /// Blocks that need not wait any more, in the order in which that was seen.
    done: VecDeque<u32>,
}

impl StreamUses {
    /// So many streams are enough to look at in one request: a look is a call of the driver, and there may be thousands
    /// of tickets.
    pub const FEW: usize = 4;

    /// A further stream, or a ticket, uses a live block. It must not be the block's own stream.
    pub fn record(&mut self, slot: u32, stream: StreamId) {
        let users = self.users.entry(slot).or_default();
        if !users.contains(&stream) {
            users.push(stream);
        }
    }

    /// The live block's further streams do not matter any more: the device has waited for all of them.
    pub fn forget(&mut self, slot: u32) {
        self.users.remove(&slot);
    }

    /// A block is freed. `true`: other streams use it, and it waits from now on. After an error nothing has changed.
    pub fn free(&mut self, dev: &mut dyn Device, slot: u32) -> Result<bool, DeviceError> {
        let Some(users) = self.users.get(&slot) else { return Ok(false) };
        let fences = users.iter().map(|&stream| dev.fence(stream)).collect::<Result<Vec<_>, _>>()?;
        self.users.remove(&slot);
        self.waiting.insert(slot, fences.len());
        for fence in fences {
            self.queues.entry(fence.stream).or_default().push_back((fence, slot));
        }
        Ok(true)
    }

    /// Whether any block waits, or has not been taken since.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !(self.queues.is_empty() && self.done.is_empty())
    }

    /// Looks at the fences of up to `streams` streams, those that have not been looked at for longest first. What is done
    /// is there for [`StreamUses::take_done`], also after an error.
    pub fn poll(&mut self, dev: &mut dyn Device, streams: usize) -> Result<(), DeviceError> {
        for _ in 0..streams.min(self.queues.len()) {
            let next = self.queues.range((Excluded(self.last), Unbounded)).next();
            let Some((&stream, _)) = next.or_else(|| self.queues.first_key_value()) else { break };
            self.last = stream;
            let Some(queue) = self.queues.get_mut(&stream) else { break };
            while let Some(&(fence, slot)) = queue.front()
                && dev.poll(fence)?
            {
                queue.pop_front();
                if let Some(left) = self.waiting.get_mut(&slot) {
                    *left -= 1;
                    if *left == 0 {
                        self.waiting.remove(&slot);
                        self.done.push_back(slot);
                    }
                }
            }
            if queue.is_empty() {
                self.queues.remove(&stream);
            }
        }
        Ok(())
    }

    /// The block that [`StreamUses::take_done`] would give.
    pub fn next_done(&self) -> Option<u32> {
        self.done.front().copied()
    }

    /// The next block that need not wait any more. The caller tells [`Device::retired`].
    pub fn take_done(&mut self) -> Option<u32> {
        self.done.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{CallKind, Machine};
    use crate::faults::FaultDevice;
    use crate::sim::SimDevice;

    fn start() -> (SimDevice, StreamUses) {
        (SimDevice::new(1 << 30), StreamUses::default())
    }

    #[test]
    fn a_block_waits_for_each_of_its_streams() {
        let (mut dev, mut uses) = start();
        assert_eq!(uses.free(&mut dev, 7), Ok(false), "no other stream uses it");
        for stream in [StreamId::ticket(0), StreamId(1), StreamId(1)] {
            uses.record(7, stream);
        }
        dev.work(StreamId(1), 1_000_000).unwrap();
        assert_eq!(uses.free(&mut dev, 7), Ok(true));
        assert_eq!(uses.free(&mut dev, 7), Ok(false), "its next owner has no other streams");
        uses.poll(&mut dev, usize::MAX).unwrap();
        dev.complete(0);
        uses.poll(&mut dev, usize::MAX).unwrap();
        assert_eq!((uses.take_done(), uses.is_waiting()), (None, true));
        dev.sync(crate::device::Sync::Device).unwrap();
        uses.poll(&mut dev, usize::MAX).unwrap();
        assert_eq!((uses.take_done(), uses.take_done(), uses.is_waiting()), (Some(7), None, false));
    }

    #[test]
    fn streams_take_turns_and_each_passes_its_fences_in_order() {
        let (mut dev, mut uses) = start();
        for slot in 0..10 {
            uses.record(slot, StreamId::ticket(slot % 5));
            uses.free(&mut dev, slot).unwrap();
        }
        (0..5).for_each(|ticket| dev.complete(ticket));
        let mut order = Vec::new();
        while uses.is_waiting() {
            uses.poll(&mut dev, 2).unwrap();
            order.extend(std::iter::from_fn(|| uses.take_done()));
        }
        assert_eq!(order, [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]);
    }

    #[test]
    fn what_is_forgotten_does_not_wait() {
        let (mut dev, mut uses) = start();
        uses.record(7, StreamId(1));
        uses.forget(7);
        assert_eq!((uses.free(&mut dev, 7), uses.is_waiting()), (Ok(false), false));
    }

    #[test]
    fn many_blocks_of_one_stream_cost_one_poll() {
        let (mut dev, mut uses) = start();
        for slot in 0..100 {
            uses.record(slot, StreamId::ticket(0));
            uses.free(&mut dev, slot).unwrap();
        }
        uses.poll(&mut dev, usize::MAX).unwrap();
        assert_eq!((dev.usage().calls[CallKind::Poll as usize], uses.take_done()), (1, None));
    }

    #[test]
    fn after_a_poll_that_fails_nothing_is_lost() {
        let refusal = DeviceError::Invalid(CallKind::Poll);
        let mut dev = FaultDevice::new(SimDevice::new(1 << 30)).fail_nth(CallKind::Poll, 2, refusal);
        let mut uses = StreamUses::default();
        for slot in 0..2 {
            uses.record(slot, StreamId(1));
            uses.free(&mut dev, slot).unwrap();
        }
        assert_eq!((uses.poll(&mut dev, 1), uses.take_done(), uses.is_waiting()), (Err(refusal), Some(0), true));
        assert_eq!((uses.poll(&mut dev, 1), uses.take_done(), uses.is_waiting()), (Ok(()), Some(1), false));
    }

    #[test]
    fn polls_are_bounded_and_come_to_every_stream() {
        let (mut dev, mut uses) = start();
        for ticket in 0..10 {
            uses.record(ticket, StreamId::ticket(ticket));
            uses.free(&mut dev, ticket).unwrap();
        }
        dev.complete(9);
        for round in 1..=3 {
            uses.poll(&mut dev, 4).unwrap();
            let polls = dev.usage().calls[CallKind::Poll as usize];
            assert!(polls <= 4 * round, "{polls} after {round} rounds");
        }
        assert_eq!(uses.take_done(), Some(9));
    }

    #[test]
    fn after_a_fence_that_fails_the_block_is_as_before() {
        let mut uses = StreamUses::default();
        let refusal = DeviceError::Invalid(CallKind::Fence);
        let mut dev = FaultDevice::new(SimDevice::new(1 << 30)).fail_nth(CallKind::Fence, 2, refusal);
        uses.record(0, StreamId(1));
        uses.record(0, StreamId(2));
        assert_eq!((uses.free(&mut dev, 0), uses.is_waiting()), (Err(refusal), false));
        assert_eq!((uses.free(&mut dev, 0), uses.is_waiting()), (Ok(true), true));
    }
}
