//! Frees that wait for other streams.
//!
//! The free of a block that further streams used sets a fence on each of them, and its memory is free when all have been
//! seen to pass. Fences of one stream pass in order, so each look at them ends at the first that has not: the cost is a
//! poll for each stream that is waited for, however many blocks wait.

use allocator_core::{Device, DeviceError, Fence, StreamId};
use std::collections::VecDeque;

/// See the module. Blocks are known by their slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    /// By slot: who used the live block beside its own stream, and how many fences a freed one waits for.
    uses: Vec<Uses>,
    /// Fences that have not been seen to pass, oldest first, by ascending stream.
    queues: Vec<(StreamId, VecDeque<(Fence, u32)>)>,
    /// How many fences `queues` holds.
    fences: usize,
    /// The fences of one free, before it is known that all can be had.
    made: Vec<Fence>,
}

#[derive(Clone, Debug, Default)]
struct Uses {
    streams: Vec<StreamId>,
    fences: u32,
}

impl Waiting {
    /// Whether nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.fences == 0
    }

    /// A live block is used on a stream that is not its own.
    pub(crate) fn record(&mut self, slot: u32, stream: StreamId) {
        if self.uses.len() <= slot as usize {
            self.uses.resize_with(slot as usize + 1, Uses::default);
        }
        let streams = &mut self.uses[slot as usize].streams;
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// The block's uses do not matter any more.
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(uses) = self.uses.get_mut(slot as usize) {
            uses.streams.clear();
        }
    }

    /// Sets a fence on each stream that used the block. After an error nothing waits, and it may be tried again.
    pub(crate) fn fence(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let Some(uses) = self.uses.get_mut(slot as usize) else { return Ok(()) };
        self.made.clear();
        for &stream in &uses.streams {
            self.made.push(dev.fence(stream)?);
        }
        uses.streams.clear();
        uses.fences = self.made.len() as u32;
        self.fences += self.made.len();
        for &fence in &self.made {
            let at = match self.queues.binary_search_by_key(&fence.stream, |queue| queue.0) {
                Ok(at) => at,
                Err(at) => {
                    self.queues.insert(at, (fence.stream, VecDeque::new()));
                    at
                }
            };
            self.queues[at].1.push_back((fence, slot));
        }
        Ok(())
    }

    /// The next block that need not wait any more. `queue` is 0 at first and keeps what was looked at.
    pub(crate) fn next_done(&mut self, dev: &mut dyn Device, queue: &mut usize) -> Result<Option<u32>, DeviceError> {
        while let Some((stream, fences)) = self.queues.get_mut(*queue) {
            while let Some(&(fence, slot)) = fences.front()
                && dev.poll(fence)?
            {
                fences.pop_front();
                self.fences -= 1;
                let left = &mut self.uses[slot as usize].fences;
                *left -= 1;
                if *left == 0 {
                    return Ok(Some(slot));
                }
            }
            // A ticket does not come again, a stream does.
            if fences.is_empty() && stream.as_ticket().is_some() {
                self.queues.remove(*queue);
            } else {
                *queue += 1;
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::{CallKind, FaultDevice, Machine, SimDevice};

    fn done(waiting: &mut Waiting, dev: &mut dyn Device) -> Vec<u32> {
        let mut queue = 0;
        std::iter::from_fn(|| waiting.next_done(dev, &mut queue).unwrap()).collect()
    }

    #[test]
    fn a_block_is_done_when_all_its_fences_have_passed() {
        let (mut dev, mut waiting) = (SimDevice::new(1 << 30), Waiting::default());
        let tickets = [StreamId::ticket(3), StreamId::ticket(1)];
        for (slot, streams) in [(0, &tickets[..]), (7, &tickets[..1]), (2, &[StreamId(4)])] {
            streams.iter().chain(streams).for_each(|&stream| waiting.record(slot, stream));
            waiting.fence(&mut dev, slot).unwrap();
        }
        assert_eq!(done(&mut waiting, &mut dev), [2], "stream 4 has nothing to do");
        dev.complete(3);
        assert_eq!(done(&mut waiting, &mut dev), [7]);
        assert!(!waiting.is_empty());
        dev.complete(1);
        assert_eq!(done(&mut waiting, &mut dev), [0]);
        assert!(waiting.is_empty() && waiting.queues.len() == 1, "{waiting:?}");
    }

    #[test]
    fn many_that_wait_cost_one_poll() {
        let (mut dev, mut waiting) = (SimDevice::new(1 << 30), Waiting::default());
        for slot in 0..100 {
            waiting.record(slot, StreamId::ticket(0));
            waiting.fence(&mut dev, slot).unwrap();
        }
        assert!(done(&mut waiting, &mut dev).is_empty());
        assert_eq!(dev.usage().calls[CallKind::Poll as usize], 1);
    }

    #[test]
    fn a_fence_that_fails_leaves_the_uses() {
        let error = DeviceError::Driver { call: CallKind::Fence, code: 999 };
        let mut dev = FaultDevice::new(SimDevice::new(1 << 30)).fail_nth(CallKind::Fence, 2, error);
        let mut waiting = Waiting::default();
        waiting.record(0, StreamId(1));
        waiting.record(0, StreamId(2));
        assert_eq!(waiting.fence(&mut dev, 0), Err(error));
        assert!(waiting.is_empty());
        waiting.fence(&mut dev, 0).unwrap();
        assert_eq!(done(&mut waiting, &mut dev), [0]);
        assert!(waiting.is_empty());
    }
}
