//! Where memory for a request comes from, and when it goes back.
//!
//! ```text
//! hit     best fit among the stream's own free memory and what no work uses
//! miss 1  follow: memory freed on a stream that this one was made to wait for since
//!      2  opportunistic: streams whose frees are over leave their memory to all
//!      3  a row: the stream's own free memory and what no work uses, where they lie side by side, are one part
//!      4  remapping: pieces that are free as a whole move to where they are contiguous; what is missing is a new piece
//!      5  internal: memory of another stream; this stream waits for that one's free, the host does not
//!      6  the host waits, which makes all free memory usable; what is free as a whole goes back; and 4 again
//! ```
//!
//! Before either, a request looks at a few of the streams and tickets that something waits for, and above the threshold gives
//! memory back for a stream that is done.

use crate::index::Key;
use crate::lanes::{Lanes, lane_of, stream_of};
use crate::params::Rules;
use crate::parts::{COMMON, Part, Parts, State};
use crate::pieces::Pieces;
use allocator_core::{Block, Device, DeviceError, Request, StreamId, StreamUses, Sync};
use std::collections::BTreeMap;

/// How many waiting streams and tickets a request looks at.
const POLLS: usize = 4;

/// A model of the driver's stream-ordered pool.
#[derive(Clone, Debug)]
pub struct AsyncPool {
    pub(crate) rules: Rules,
    pub(crate) pieces: Pieces,
    /// The range's first address, 0 before there is one.
    pub(crate) base: u64,
    pub(crate) parts: Parts,
    pub(crate) lanes: Lanes,
    /// Other streams that use a live block.
    users: BTreeMap<u32, Vec<StreamId>>,
    /// Tickets that use a block, or used it when it was freed.
    tickets: StreamUses,
    pub(crate) counts: Counts,
}

/// What the pool has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub reserved_high: u64,
    pub used: u64,
    pub used_high: u64,
    /// Waits of one stream for another that the third reuse rule inserted.
    pub inserted_waits: u64,
    /// Bytes that went from one address to another.
    pub moved: u64,
    /// How often memory went back because a stream was done.
    pub releases: u64,
}

impl AsyncPool {
    pub(crate) fn with_rules(rules: Rules) -> AsyncPool {
        AsyncPool {
            rules,
            pieces: Pieces::default(),
            base: 0,
            parts: Parts::default(),
            lanes: Lanes::default(),
            users: BTreeMap::new(),
            tickets: StreamUses::default(),
            counts: Counts::default(),
        }
    }

    /// The part of a block, or `None` if the block is not ours or not live any more.
    #[inline]
    pub(crate) fn find(&self, block: &Block) -> Option<Part> {
        let part = self.parts.get(block.slot())?;
        let is_it = part.state == State::Live && part.generation == block.generation() && part.ptr == block.ptr();
        is_it.then_some(*part)
    }

    /// A block of `size` bytes, a multiple of the unit; `None` if there is no memory.
    #[inline]
    pub(crate) fn serve(
        &mut self,
        dev: &mut dyn Device,
        req: Request,
        size: u64,
    ) -> Result<Option<Block>, DeviceError> {
        if self.base == 0 {
            self.base = dev.reserve(self.rules.range)?;
            self.parts.start(self.base, self.rules.range);
        }
        if self.tickets.is_waiting() {
            self.settle_tickets(dev, POLLS)?;
        }
        if self.lanes.has_marks() && self.pieces.reserved > self.rules.threshold {
            self.watch(dev)?;
        }
        let lane = lane_of(req.stream);
        self.lanes.open(lane);
        self.parts.open_lane(lane);
        let found = match self.parts.best_fit(lane, size) {
            Some(found) => found,
            None => match self.miss(dev, lane, size)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let part = self.parts.take(found, lane, size);
        self.counts.used += size;
        self.counts.used_high = self.counts.used_high.max(self.counts.used);
        Ok(Block::new(part.ptr, found.slot, part.generation))
    }

    /// Another stream or a ticket uses a live block.
    pub(crate) fn share(&mut self, slot: u32, stream: StreamId) {
        let Some(part) = self.parts.get_mut(slot).filter(|part| stream_of(part.lane) != stream) else { return };
        part.shared = true;
        if stream.as_ticket().is_some() {
            self.tickets.record(slot, stream);
            return;
        }
        let users = self.users.entry(slot).or_default();
        if !users.contains(&stream) {
            users.push(stream);
        }
    }

    /// Takes a live block back. Its own stream waits for the others that use it, and where tickets do, the block waits.
    /// After an error it is live, and may be tried again.
    #[inline]
    pub(crate) fn take_back(&mut self, dev: &mut dyn Device, slot: u32) -> Result<(), DeviceError> {
        let Some(&Part { size, shared, lane, .. }) = self.parts.get(slot) else { return Ok(()) };
        let waits = shared && self.order_frees(dev, slot, lane)?;
        if let Some(part) = self.parts.get_mut(slot) {
            part.generation = part.generation.wrapping_add(1);
            part.state = State::Waiting;
        }
        self.counts.used -= size;
        if !waits {
            self.release(dev, slot, lane);
        }
        Ok(())
    }

    /// Orders the free of a shared block after the work of other streams; whether it waits for tickets.
    #[cold]
    fn order_frees(&mut self, dev: &mut dyn Device, slot: u32, lane: u32) -> Result<bool, DeviceError> {
        for &user in self.users.get(&slot).into_iter().flatten() {
            self.lanes.wait_for(dev, lane, lane_of(user), u64::MAX)?;
        }
        let waits = self.tickets.free(dev, slot)?;
        self.users.remove(&slot);
        Ok(waits)
    }

    /// The part is free from now on, in the order of its stream. Where that may leave a piece to give back, the stream is
    /// watched.
    #[inline]
    fn release(&mut self, dev: &mut dyn Device, slot: u32, lane: u32) {
        let seq = self.lanes.freed(lane);
        let size = self.parts.release(slot, seq);
        if size >= self.rules.chunk && self.pieces.reserved > self.rules.threshold {
            // The block is free whatever the answer, and the next free of the stream asks again. Where the question is put off
            // until the next request, a stream that is idle now is found done then, as if the host had waited for it.
            let _ = if self.rules.releases_idle { self.lanes.mark(dev, lane) } else { self.lanes.ask(dev, lane) };
        }
    }

    /// Frees blocks whose tickets have ended, and looks at so many tickets at most.
    fn settle_tickets(&mut self, dev: &mut dyn Device, most: usize) -> Result<(), DeviceError> {
        let answer = self.tickets.poll(dev, most);
        while let Some(slot) = self.tickets.take_done() {
            if let Some(&Part { ptr, lane, .. }) = self.parts.get(slot) {
                dev.retired(ptr);
                self.release(dev, slot, lane);
            }
        }
        answer
    }

    /// A stream that was seen at work and is now seen to be done with everything freed on it: that is what the host's
    /// waiting for it looks like from here, so memory goes back, down to the threshold.
    #[cold]
    fn watch(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        for _ in 0..POLLS.min(self.lanes.marks()) {
            let Some(lane) = self.lanes.next_marked() else { break };
            if !self.lanes.look(dev, lane)? {
                continue;
            }
            self.lanes.ask(dev, lane)?;
            let is_done = self.lanes.is_done(lane);
            if (is_done || self.rules.is_opportunistic)
                && let Some(seq) = self.lanes.newly_done(lane)
            {
                self.parts.make_common(lane, seq, COMMON);
            }
            if is_done {
                self.counts.releases += 1;
                self.give_back(dev, self.rules.threshold)?;
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn miss(&mut self, dev: &mut dyn Device, lane: u32, size: u64) -> Result<Option<Key>, DeviceError> {
        if size > self.rules.limit {
            return Ok(None);
        }
        if self.rules.follows
            && let Some(found) = self.follow(lane, size)
        {
            return Ok(Some(found));
        }
        self.welcome_done(dev, lane)?;
        if let Some(found) = self.parts.best_fit(lane, size) {
            return Ok(Some(found));
        }
        if let Some(found) = self.parts.join_row(lane, size) {
            return Ok(Some(found));
        }
        if let Some(found) = self.remap(dev, lane, size)? {
            return Ok(Some(found));
        }
        if self.rules.inserts_waits
            && let Some(found) = self.insert_wait(dev, lane, size)?
        {
            return Ok(Some(found));
        }
        self.wait(dev)?;
        if let Some(found) = self.parts.best_fit(lane, size) {
            return Ok(Some(found));
        }
        self.give_back(dev, 0)?;
        self.remap(dev, lane, size)
    }

    /// The best fit among what was freed on streams before this stream was made to wait for them.
    fn follow(&self, lane: u32, size: u64) -> Option<Key> {
        let lanes = self.lanes.followed_by(lane);
        lanes.filter_map(|(other, seq)| self.parts.best_fit_until(other, size, seq)).min()
    }

    /// Looks which frees are over: those of the stream itself, so that their pages may move, and if the rules allow it those
    /// of all, whose memory is then everyone's.
    fn welcome_done(&mut self, dev: &mut dyn Device, own: u32) -> Result<(), DeviceError> {
        for lane in self.lanes.all() {
            if !self.parts.has_free(lane) || !(lane == own || self.rules.is_opportunistic) {
                continue;
            }
            self.lanes.look(dev, lane)?;
            self.lanes.ask(dev, lane)?;
            if self.rules.is_opportunistic
                && let Some(seq) = self.lanes.newly_done(lane)
            {
                self.parts.make_common(lane, seq, own);
            }
        }
        Ok(())
    }

    /// The best fit among other streams' memory. The stream of the request waits for the free that it comes from.
    fn insert_wait(&mut self, dev: &mut dyn Device, lane: u32, size: u64) -> Result<Option<Key>, DeviceError> {
        let others = self.lanes.all().filter(|&other| other != lane);
        let fits = others.filter_map(|other| Some((self.parts.best_fit_until(other, size, u64::MAX)?, other)));
        let Some((found, other)) = fits.min() else { return Ok(None) };
        let seq = self.parts.get(found.slot).map_or(u64::MAX, |part| part.seq);
        self.lanes.wait_for(dev, lane, other, seq)?;
        self.counts.inserted_waits += 1;
        Ok(Some(found))
    }

    /// The host waits for the device. Nothing uses free memory any more, and tickets have ended.
    fn wait(&mut self, dev: &mut dyn Device) -> Result<(), DeviceError> {
        dev.sync(Sync::Device)?;
        self.settle_tickets(dev, usize::MAX)?;
        self.lanes.all_done();
        for lane in self.lanes.all() {
            if let Some(seq) = self.lanes.newly_done(lane) {
                self.parts.make_common(lane, seq, COMMON);
            }
        }
        Ok(())
    }

    /// Gives memory back until at most `keep` bytes are reserved; the bytes given back. Only to give all of it back the host
    /// waits.
    pub(crate) fn shrink(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, DeviceError> {
        let before = self.pieces.reserved;
        if before <= keep {
            return Ok(0);
        }
        if keep == 0 {
            self.wait(dev)?;
        } else {
            self.settle_tickets(dev, usize::MAX)?;
            for lane in self.lanes.all() {
                self.lanes.look(dev, lane)?;
                self.lanes.ask(dev, lane)?;
            }
        }
        self.give_back(dev, keep)?;
        Ok(before - self.pieces.reserved)
    }
}
