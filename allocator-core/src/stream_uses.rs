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

/// The further streams of live blocks, and the fences of freed ones. Blocks go by the strategy's own slots.
#[derive(Clone, Debug, Default)]
pub struct StreamUses {
    /// Streams other than its own that use a live block.
    users: BTreeMap<u32, Vec<StreamId>>,
    /// How many fences a freed block waits for.
    waiting: BTreeMap<u32, usize>,
    /// Fences and their blocks, by stream, oldest first: a stream passes its fences in order. None is empty.
    queues: Vec<(StreamId, VecDeque<(Fence, u32)>)>,
    /// The queue to look at next.
    turn: usize,
    /// Blocks that need not wait any more.
    done: Vec<u32>,
}

impl StreamUses {
    /// A further stream, or a ticket, uses a live block. It must not be the block's own stream.
    pub fn record(&mut self, slot: u32, stream: StreamId) {
        let users = self.users.entry(slot).or_default();
        if !users.contains(&stream) {
            users.push(stream);
        }
    }

    /// A block is freed. `true`: other streams use it, and it waits from now on. After an error nothing has changed.
    pub fn free(&mut self, dev: &mut dyn Device, slot: u32) -> Result<bool, DeviceError> {
        let Some(users) = self.users.get(&slot) else { return Ok(false) };
        let fences = users.iter().map(|&stream| dev.fence(stream)).collect::<Result<Vec<_>, _>>()?;
        self.users.remove(&slot);
        self.waiting.insert(slot, fences.len());
        for fence in fences {
            match self.queues.iter_mut().find(|(stream, _)| *stream == fence.stream) {
                Some((_, queue)) => queue.push_back((fence, slot)),
                None => self.queues.push((fence.stream, VecDeque::from([(fence, slot)]))),
            }
        }
        Ok(true)
    }

    /// Whether any block waits, or has not been taken since.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !(self.queues.is_empty() && self.done.is_empty())
    }

    /// Looks whether fences have passed, by turns over the streams, and stops when `most` of them have not. What is done
    /// is there for [`StreamUses::take_done`], also after an error.
    pub fn poll(&mut self, dev: &mut dyn Device, most: usize) -> Result<(), DeviceError> {
        for _ in 0..most.min(self.queues.len()) {
            self.turn = if self.turn < self.queues.len() { self.turn } else { 0 };
            let Some((_, queue)) = self.queues.get_mut(self.turn) else { break };
            while let Some(&(fence, slot)) = queue.front()
                && dev.poll(fence)?
            {
                queue.pop_front();
                if let Some(left) = self.waiting.get_mut(&slot) {
                    *left -= 1;
                    if *left == 0 {
                        self.waiting.remove(&slot);
                        self.done.push(slot);
                    }
                }
            }
            if queue.is_empty() {
                self.queues.swap_remove(self.turn);
            } else {
                self.turn += 1;
            }
        }
        Ok(())
    }

    /// The block that [`StreamUses::take_done`] would give.
    pub fn next_done(&self) -> Option<u32> {
        self.done.last().copied()
    }

    /// The next block that need not wait any more. The caller tells [`Device::retired`].
    pub fn take_done(&mut self) -> Option<u32> {
        self.done.pop()
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
