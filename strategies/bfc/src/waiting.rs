//! Chunks that were freed while other streams still use them.
//!
//! Each of those streams gets a fence. The chunk is free when all its fences have passed, which is looked at when memory
//! is next asked for. A stream passes its fences in order, so one look at the oldest is enough where none has passed.

use allocator_core::{Device, DeviceError, Fence, StreamId};
use std::collections::{BTreeMap, VecDeque};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    /// The other streams of live chunks.
    users: BTreeMap<u32, Vec<StreamId>>,
    /// Fences and the chunks that wait for them, by stream, oldest first.
    queues: BTreeMap<StreamId, VecDeque<(Fence, u32)>>,
    /// How many fences a chunk waits for.
    fences: BTreeMap<u32, usize>,
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Another stream uses a live chunk.
    pub(crate) fn used_by(&mut self, slot: u32, stream: StreamId) {
        let users = self.users.entry(slot).or_default();
        if !users.contains(&stream) {
            users.push(stream);
        }
    }

    /// Sets a fence on each stream that uses the chunk beside its own. After an error nothing has changed.
    pub(crate) fn start(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let users = self.users.get(&slot).map_or(&[][..], Vec::as_slice);
        let fences = users.iter().map(|&user| dev.fence(user)).collect::<Result<Vec<_>, _>>()?;
        self.users.remove(&slot);
        self.fences.insert(slot, fences.len());
        for fence in fences {
            self.queues.entry(fence.stream).or_default().push_back((fence, slot));
        }
        Ok(())
    }

    /// A chunk that need not wait any more, if there is one. Fences that have passed are forgotten, also before an error.
    pub(crate) fn next_done(&mut self, dev: &mut dyn Device) -> Result<Option<u32>, DeviceError> {
        for queue in self.queues.values_mut() {
            while let Some(&(fence, slot)) = queue.front()
                && dev.poll(fence)?
            {
                queue.pop_front();
                if let Some(fences) = self.fences.get_mut(&slot) {
                    *fences -= 1;
                    if *fences == 0 {
                        self.fences.remove(&slot);
                        return Ok(Some(slot));
                    }
                }
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        Ok(None)
    }
}
