//! The harness's own account of a workload: what is live, what is pending, and whether the strategy may have handed out
//! what it did. It shares nothing with the strategy that it checks.

use crate::streams::Ended;
use crate::watch::Watch;
use allocator_core::{Device, Fence, Machine, StreamId};
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

/// The step to which the load counts each request, the same for every strategy.
const LOAD_STEP: u64 = 512;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shadow {
    slots: Vec<Option<Live>>,
    /// The end of each live block, by address. Blocks of zero bytes are not in it.
    ends: BTreeMap<u64, u64>,
    /// Frees that wait, by the real stream they wait for.
    waiting: BTreeMap<StreamId, Queue>,
    /// Frees that wait, by the ticket they wait for. There may be as many as there are frees, so they are looked at
    /// only when their ticket ends.
    late: BTreeMap<StreamId, Queue>,
    pending: Vec<Pending>,
    vacant: Vec<u32>,
    /// Bytes requested by blocks that are live or pending.
    pub(crate) requested: u64,
    /// The same, each block rounded up to [`LOAD_STEP`].
    pub(crate) load: u64,
    /// The part of `requested` that is pending.
    pub(crate) pending_bytes: u64,
}

/// Marks of a stream and the frees that wait for them, oldest first: a stream passes its marks in order.
type Queue = VecDeque<(Fence, u32)>;

/// A block in the caller's hands.
#[derive(Clone, Debug)]
struct Live {
    ptr: u64,
    size: u64,
    stream: StreamId,
    others: Vec<StreamId>,
}

/// A freed block that other streams may still be using.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    size: u64,
    waits: u32,
}

impl Shadow {
    /// For a trace with `slots` slots.
    pub(crate) fn new(slots: u32) -> Shadow {
        Shadow {
            slots: vec![None; slots as usize],
            ends: BTreeMap::new(),
            waiting: BTreeMap::new(),
            late: BTreeMap::new(),
            pending: Vec::new(),
            vacant: Vec::new(),
            requested: 0,
            load: 0,
            pending_bytes: 0,
        }
    }

    /// A block was handed out. Says what is wrong with it, if anything.
    pub(crate) fn allocated<M: Machine>(
        &mut self,
        slot: u32,
        ptr: u64,
        size: u64,
        stream: StreamId,
        watch: &Watch<M>,
    ) -> Result<(), String> {
        self.requested += size;
        self.load += size.next_multiple_of(LOAD_STEP);
        self.slots[slot as usize] = Some(Live { ptr, size, stream, others: Vec::new() });
        if size == 0 {
            return Ok(());
        }
        let verdict = self.judge(ptr, size, watch);
        // What overlaps stays out of the map: it would hide the block that was there first.
        if verdict.is_ok() {
            self.ends.insert(ptr, ptr + size);
        }
        verdict
    }

    fn judge<M: Machine>(&self, ptr: u64, size: u64, watch: &Watch<M>) -> Result<(), String> {
        let alignment = watch.info().alignment;
        let end = ptr.checked_add(size).ok_or_else(|| format!("{size} bytes at {ptr:#x} wrap around"))?;
        if !ptr.is_multiple_of(alignment) {
            return Err(format!("{ptr:#x} is not aligned to {alignment}"));
        }
        if let Some((start, stop)) = self.overlapping(ptr, end) {
            return Err(format!("{ptr:#x}..{end:#x} overlaps the live block {start:#x}..{stop:#x}"));
        }
        if !watch.backing.covers(ptr, end) {
            return Err(format!("{ptr:#x}..{end:#x} is not backed by device memory"));
        }
        for (from, to) in watch.backing.aliases(ptr, end) {
            if let Some((start, stop)) = self.overlapping(from, to) {
                return Err(format!("{ptr:#x}..{end:#x} shares memory with the live block {start:#x}..{stop:#x}"));
            }
        }
        Ok(())
    }

    fn overlapping(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.ends.range(..end).next_back().filter(|&(_, &stop)| stop > start).map(|(&first, &stop)| (first, stop))
    }

    /// Device memory was given back. Says which live block lost its memory, if any.
    pub(crate) fn removed(&self, ranges: &[(u64, u64)]) -> Result<(), String> {
        for &(start, end) in ranges {
            if let Some((first, stop)) = self.overlapping(start, end) {
                return Err(format!("the live block {first:#x}..{stop:#x} lost its memory"));
            }
        }
        Ok(())
    }

    /// Another stream uses a block.
    pub(crate) fn used(&mut self, slot: u32, stream: StreamId) {
        if let Some(live) = &mut self.slots[slot as usize]
            && live.stream != stream
            && !live.others.contains(&stream)
        {
            live.others.push(stream);
        }
    }

    /// A block is about to be given back. It stays pending until the other streams have passed this point.
    pub(crate) fn freed<M: Machine>(&mut self, slot: u32, ticket: Option<u32>, watch: &mut Watch<M>) {
        let Some(mut live) = self.slots[slot as usize].take() else { return };
        if self.ends.get(&live.ptr) == Some(&(live.ptr + live.size)) {
            self.ends.remove(&live.ptr);
        }
        live.others.extend(ticket.map(StreamId::ticket));
        let mut marks = Vec::new();
        for stream in live.others {
            // A device that cannot mark the stream cannot run the strategy either, and that is reported.
            if let Ok(mark) = watch.streams().mark(stream)
                && watch.streams().has_passed(mark) == Ok(false)
            {
                marks.push(mark);
            }
        }
        if marks.is_empty() {
            self.gone(live.size);
            return;
        }
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.pending.push(Pending::default());
            (self.pending.len() - 1) as u32
        });
        self.pending[id as usize] = Pending { size: live.size, waits: marks.len() as u32 };
        self.pending_bytes += live.size;
        for mark in marks {
            let queues = if mark.stream.as_ticket().is_some() { &mut self.late } else { &mut self.waiting };
            queues.entry(mark.stream).or_default().push_back((mark, id));
        }
    }

    /// Time has passed or a ticket ended: frees that need not wait any more are gone.
    pub(crate) fn settle<M: Machine>(&mut self, watch: &mut Watch<M>) {
        let mut done = Vec::new();
        self.waiting.retain(|_, queue| pass(queue, watch, &mut done));
        match watch.streams().take_ended() {
            Ended::Any => self.late.retain(|_, queue| pass(queue, watch, &mut done)),
            Ended::These(tickets) => {
                for ticket in tickets {
                    if let Entry::Occupied(mut queue) = self.late.entry(ticket)
                        && !pass(queue.get_mut(), watch, &mut done)
                    {
                        queue.remove();
                    }
                }
            }
        }
        for id in done {
            let pending = &mut self.pending[id as usize];
            pending.waits -= 1;
            if pending.waits == 0 {
                let size = pending.size;
                self.vacant.push(id);
                self.pending_bytes -= size;
                self.gone(size);
            }
        }
    }

    fn gone(&mut self, size: u64) {
        self.requested -= size;
        self.load -= size.next_multiple_of(LOAD_STEP);
    }
}

/// Moves the frees that need not wait any more to `done`; says whether some still wait.
fn pass<M: Machine>(queue: &mut Queue, watch: &mut Watch<M>, done: &mut Vec<u32>) -> bool {
    while let Some(&(mark, id)) = queue.front()
        && watch.streams().has_passed(mark) != Ok(false)
    {
        queue.pop_front();
        done.push(id);
    }
    !queue.is_empty()
}
