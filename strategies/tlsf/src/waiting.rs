//! Blocks that were freed while other streams may still use them.

use allocator_core::{Device, DeviceError, Fence, StreamId};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// The other streams of blocks. A block keeps the number of its record, 0 where there is none.
#[derive(Clone, Debug)]
pub(crate) struct Uses {
    records: Vec<Use>,
    vacant: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Use {
    /// The other streams and tickets that use the block.
    pub streams: Vec<StreamId>,
    /// Fences that have not been seen to pass; 0 while the block is live.
    pub fences: usize,
}

impl Uses {
    pub(crate) fn new() -> Uses {
        Uses { records: vec![Use::default()], vacant: Vec::new() }
    }

    /// Adds a stream to a record, or to a new one for 0. The answer is the record's number.
    pub(crate) fn add(&mut self, mut number: u32, stream: StreamId) -> u32 {
        if number == 0 {
            number = self.vacant.pop().unwrap_or_else(|| {
                self.records.push(Use::default());
                (self.records.len() - 1) as u32
            });
        }
        let streams = &mut self.get(number).streams;
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        number
    }

    pub(crate) fn get(&mut self, number: u32) -> &mut Use {
        &mut self.records[number as usize]
    }

    /// Gives a record back; its memory is used again.
    pub(crate) fn give(&mut self, number: u32) {
        let record = self.get(number);
        record.streams.clear();
        record.fences = 0;
        self.vacant.push(number);
    }
}

/// Fences and the slots of the blocks that wait for them, by stream, oldest first: a stream passes its fences in order.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    queues: BTreeMap<StreamId, VecDeque<(Fence, u32)>>,
    /// The stream that was looked at last.
    last: StreamId,
}

impl Waiting {
    pub(crate) fn new() -> Waiting {
        Waiting { queues: BTreeMap::new(), last: StreamId::DEFAULT }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(crate) fn push(&mut self, fence: Fence, slot: u32) {
        self.queues.entry(fence.stream).or_default().push_back((fence, slot));
    }

    /// Looks at the fences of up to `streams` streams, those that have not been looked at for longest first, and tells
    /// `passed` the block of each that has passed. If that fails, the fence is asked for again at the next call.
    pub(crate) fn poll(
        &mut self,
        dev: &mut dyn Device,
        streams: usize,
        mut passed: impl FnMut(&mut dyn Device, u32) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        for _ in 0..streams.min(self.queues.len()) {
            let next = self.queues.range((Excluded(self.last), Unbounded)).next().map(|(&stream, _)| stream);
            let Some(stream) = next.or_else(|| self.queues.keys().next().copied()) else { break };
            self.last = stream;
            let Some(queue) = self.queues.get_mut(&stream) else { break };
            while let Some(&(fence, slot)) = queue.front()
                && dev.poll(fence)?
            {
                passed(dev, slot)?;
                queue.pop_front();
            }
            if queue.is_empty() {
                self.queues.remove(&stream);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::{Machine, SimDevice};

    #[test]
    fn streams_take_turns_and_a_stream_passes_its_fences_in_order() {
        let mut dev = SimDevice::new(1 << 30);
        let mut waiting = Waiting::new();
        for slot in 0..10 {
            let fence = dev.fence(StreamId::ticket(slot % 5)).unwrap();
            waiting.push(fence, slot);
        }
        (0..5).for_each(|ticket| dev.complete(ticket));
        let mut order = Vec::new();
        while !waiting.is_empty() {
            waiting
                .poll(&mut dev, 2, |_, slot| {
                    order.push(slot);
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(order, [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]);
    }

    #[test]
    fn no_more_streams_are_looked_at_than_said_and_none_is_forgotten() {
        let mut dev = SimDevice::new(1 << 30);
        let mut waiting = Waiting::new();
        for ticket in 0..6 {
            waiting.push(dev.fence(StreamId::ticket(ticket)).unwrap(), ticket);
        }
        let polls = |dev: &SimDevice| dev.usage().calls[allocator_core::CallKind::Poll as usize];
        waiting.poll(&mut dev, 4, |_, slot| panic!("{slot}")).unwrap();
        assert_eq!(polls(&dev), 4);
        dev.complete(5);
        let mut order = Vec::new();
        waiting
            .poll(&mut dev, 2, |_, slot| {
                order.push(slot);
                Ok(())
            })
            .unwrap();
        assert_eq!(order, [5]);
    }

    #[test]
    fn what_fails_is_tried_again() {
        let mut dev = SimDevice::new(1 << 30);
        let mut waiting = Waiting::new();
        waiting.push(dev.fence(StreamId(1)).unwrap(), 7);
        let mut failures = vec![Err(DeviceError::OutOfMemory)];
        for expected in [Err(DeviceError::OutOfMemory), Ok(())] {
            let told = waiting.poll(&mut dev, 1, |_, slot| {
                assert_eq!(slot, 7);
                failures.pop().unwrap_or(Ok(()))
            });
            assert_eq!(told, expected);
        }
        assert!(waiting.is_empty());
    }
}
