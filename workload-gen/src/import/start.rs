//! What was there before the first entry of a history that lost its beginning.
//!
//! The buffer that PyTorch records into keeps the last so many entries, and nothing marks the cut. But an address that
//! the history first mentions in a free held a block before, and so did a block that is there at the end and that the
//! history never mentions.

use super::addresses::AddressMap;
use crate::snapshot::{Action, BlockState, Entry, History, Segment};

/// A block that was live, or waited for other streams, before the first entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Before {
    pub(super) address: u64,
    /// Requested bytes.
    pub(super) size: u64,
    /// Raw handle.
    pub(super) stream: u64,
    /// It had been freed and waited.
    pub(super) pending: bool,
}

/// The blocks before the first entry, by address.
pub(super) fn blocks_before<'a>(
    history: &History,
    segments: impl Iterator<Item = &'a Segment>,
    raw_stream: impl Fn(&Entry) -> u64,
    only_completed: bool,
) -> Vec<Before> {
    let mut mentioned: AddressMap<()> = AddressMap::default();
    let mut before = Vec::new();
    for entry in history {
        let pending = match entry.action {
            Action::Alloc => {
                mentioned.insert(entry.addr, ());
                continue;
            }
            Action::FreeRequested => false,
            // Without any request in the history a completion stands for the whole free.
            Action::FreeCompleted => !only_completed,
            _ => continue,
        };
        if mentioned.insert(entry.addr, ()).is_none() {
            before.push(Before { address: entry.addr, size: entry.size, stream: raw_stream(entry), pending });
        }
    }
    for segment in segments {
        for block in &segment.blocks {
            if block.state != BlockState::Inactive && mentioned.insert(block.address, ()).is_none() {
                before.push(Before {
                    address: block.address,
                    size: block.requested_size,
                    stream: segment.stream,
                    pending: block.state == BlockState::PendingFree,
                });
            }
        }
    }
    before.sort_unstable_by_key(|block| block.address);
    before
}
