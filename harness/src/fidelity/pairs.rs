//! Which free belongs to which allocation, which frees waited, and where a recording contradicts itself.
//!
//! A block's allocation, free and completion tell its size and stream three times. Where they disagree, the recording
//! was changed, and the entry at fault is the odd one: a replay would notice later, or at another of them.

use super::plan::next_decision;
use std::collections::HashMap;
use workload_gen::snapshot::{Action, BlockState, Entry, Segment};

/// See the module.
#[derive(Default)]
pub(super) struct Pairs {
    /// Numbers of `free_requested` entries that their completion does not directly follow, ascending.
    pub late: Vec<usize>,
    /// The first entry at which the recording contradicts itself, with the reason.
    pub contradiction: Option<(usize, String)>,
}

/// A block between its allocation and the completion of its free: the numbers of its entries.
struct Open {
    alloc: usize,
    requested: Option<usize>,
}

impl Pairs {
    /// The entry that no replay passes.
    pub(super) fn furthest(&self) -> usize {
        self.contradiction.as_ref().map_or(usize::MAX, |&(at, _)| at)
    }

    /// Pairs the entries of a history that ends with `segments`.
    pub(super) fn new(entries: &[Entry], segments: &[Segment]) -> Pairs {
        let mut pairs = Pairs::default();
        let mut open: HashMap<u64, Open> = HashMap::new();
        for (number, entry) in entries.iter().enumerate() {
            match entry.action {
                Action::Alloc => {
                    let before = open.insert(entry.addr, Open { alloc: number, requested: None });
                    if let Some(Open { requested: Some(requested), .. }) = before {
                        // Memory that waits for a stream cannot be handed out: the completion is missing.
                        let why = format!("{:#x} is allocated again, but its free is never completed", entry.addr);
                        pairs.contradict(next_decision(entries, requested + 1), why);
                    }
                }
                Action::FreeRequested => {
                    if let Some(block) = open.get_mut(&entry.addr) {
                        block.requested.get_or_insert(number);
                    }
                    let follows = entries.get(next_decision(entries, number + 1));
                    if !follows.is_some_and(|n| n.action == Action::FreeCompleted && n.addr == entry.addr) {
                        pairs.late.push(number);
                    }
                }
                Action::FreeCompleted => {
                    if let Some(Open { alloc, requested: Some(requested) }) = open.remove(&entry.addr) {
                        pairs.agree(entries, [alloc, requested, number]);
                    }
                }
                _ => {}
            }
        }
        pairs.compare_end(entries, segments, open);
        pairs
    }

    /// Of three sizes that should be one, the odd one is wrong; so for streams.
    fn agree(&mut self, entries: &[Entry], numbers: [usize; 3]) {
        let three = numbers.map(|number| entries[number]);
        if let Some((odd, other)) = odd_one(three.map(|entry| entry.size)) {
            let why = format!("{} bytes, but the block has {}", three[odd].size, three[other].size);
            self.contradict(numbers[odd], why);
        } else if let Some((odd, _)) = odd_one(three.map(|entry| u64::from(entry.stream))) {
            self.contradict(numbers[odd], "the block is on another stream".to_owned());
        }
    }

    /// Holds the blocks that are still open against those that were recorded at the end.
    fn compare_end(&mut self, entries: &[Entry], segments: &[Segment], open: HashMap<u64, Open>) {
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let last: HashMap<u64, (u64, BlockState)> =
            blocks.map(|block| (block.address, (block.requested_size, block.state))).collect();
        let mut open: Vec<(u64, Open)> = open.into_iter().collect();
        open.sort_unstable_by_key(|(_, open)| open.alloc);
        for (addr, Open { alloc, requested }) in open {
            match (requested, last.get(&addr)) {
                (None, Some(&(size, BlockState::Allocated))) if size != entries[alloc].size => {
                    let recorded = entries[alloc].size;
                    self.contradict(alloc, format!("{recorded} bytes, but the block at the end has {size}"));
                }
                (None, _) | (_, Some((_, BlockState::PendingFree))) => {}
                (Some(requested), _) => {
                    let why = format!("the free of {addr:#x} is never completed, but it does not wait at the end");
                    self.contradict(next_decision(entries, requested + 1), why);
                }
            }
        }
    }

    fn contradict(&mut self, at: usize, why: String) {
        if self.contradiction.as_ref().is_none_or(|&(first, _)| at < first) {
            self.contradiction = Some((at, why));
        }
    }
}

/// The position of the one of three values that is unlike the others, and of one of those. If all differ, the last.
fn odd_one(values: [u64; 3]) -> Option<(usize, usize)> {
    match values {
        [a, b, c] if a == b && b == c => None,
        [_, b, c] if b == c => Some((0, 1)),
        [a, _, c] if a == c => Some((1, 0)),
        _ => Some((2, 0)),
    }
}
