//! The suite's own map of device memory: what the strategy holds, which blocks lie where, and who used it last.
//!
//! Addresses are looked up in `mapped`, everything else is kept by *physical* position, so that a block that reaches
//! another one's memory through an alias is found too. A physical position is never used twice: what the device takes
//! back and hands out again is new memory here.
//!
//! ```text
//! address    ├── malloc ──┤  ├─ page ─┤─ page ─┤        mapped: address → physical position, size, pool
//!                  │              ╲       ╱
//! physical   ├─────┼──────┤    ├───────X───────┤
//! extents      [live][freed]     [ live      ]          who has it, or which work may still use it
//! ```

use super::op::{Lane, name};
use super::order::{Clock, Order};
use super::{Broken, Rule};
use crate::device::Handle;
use crate::request::{PoolId, StreamId};
use std::collections::BTreeMap;

/// Memory behind addresses: one `malloc`, or one mapped handle.
#[derive(Clone, Copy, Debug)]
struct Piece {
    size: u64,
    physical: u64,
    /// The handle, if it was mapped.
    handle: Option<Handle>,
    /// The pool of the first block that lay here.
    pool: Option<PoolId>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Live,
    /// Freed when these points had been reached.
    Freed(Clock),
}

/// Memory that a block had last.
#[derive(Clone, Copy, Debug)]
struct Extent {
    size: u64,
    /// The address it was used at.
    va: u64,
    block: u32,
    state: State,
}

#[derive(Clone, Copy, Debug)]
struct Physical {
    at: u64,
    size: u64,
    mappings: u32,
    released: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    mapped: BTreeMap<u64, Piece>,
    extents: BTreeMap<u64, Extent>,
    handles: BTreeMap<Handle, Physical>,
    next_physical: u64,
    held: u64,
    reserved_ranges: BTreeMap<u64, u64>,
}

/// A block as the suite sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub id: u32,
    pub ptr: u64,
    pub size: u64,
    pub stream: StreamId,
    pub pool: PoolId,
}

impl Memory {
    /// Bytes taken from the device.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Bytes of reserved addresses.
    pub(super) fn address_space(&self) -> u64 {
        self.reserved_ranges.values().sum()
    }

    /// Bytes of memory that can be reached at some address.
    pub(super) fn reachable(&self) -> u64 {
        let allocated = self.mapped.values().filter(|piece| piece.handle.is_none()).map(|piece| piece.size);
        let mapped = self.handles.values().filter(|handle| handle.mappings > 0).map(|handle| handle.size);
        allocated.sum::<u64>() + mapped.sum::<u64>()
    }

    pub(super) fn malloced(&mut self, ptr: u64, size: u64) {
        let physical = self.new_physical(size);
        self.mapped.insert(ptr, Piece { size, physical, handle: None, pool: None });
    }

    /// The device took back what `malloc` gave; it has waited for all work before.
    pub(super) fn freed(&mut self, ptr: u64, order: &Order) -> Result<(), Broken> {
        let Some(piece) = self.mapped.remove(&ptr) else { return Ok(()) };
        self.held -= piece.size;
        self.vacate(ptr, &piece, None, order)
    }

    /// The device's pool took back what it gave, for use when `stream` has come to this point.
    pub(super) fn freed_on(&mut self, ptr: u64, stream: StreamId, order: &Order) -> Result<(), Broken> {
        let Some(piece) = self.mapped.remove(&ptr) else { return Ok(()) };
        self.held -= piece.size;
        self.vacate(ptr, &piece, Some(stream), order)
    }

    pub(super) fn reserved(&mut self, va: u64, size: u64) {
        self.reserved_ranges.insert(va, size);
    }

    pub(super) fn unreserved(&mut self, va: u64) {
        self.reserved_ranges.remove(&va);
    }

    pub(super) fn created(&mut self, handle: Handle, size: u64) {
        let at = self.new_physical(size);
        self.handles.insert(handle, Physical { at, size, mappings: 0, released: false });
    }

    pub(super) fn released(&mut self, handle: Handle) {
        if let Some(physical) = self.handles.get_mut(&handle) {
            physical.released = true;
            self.forget_if_unused(handle);
        }
    }

    pub(super) fn mapped(&mut self, va: u64, handles: &[Handle]) {
        let mut at = va;
        for &handle in handles {
            if let Some(physical) = self.handles.get_mut(&handle) {
                physical.mappings += 1;
                let piece = Piece { size: physical.size, physical: physical.at, handle: Some(handle), pool: None };
                self.mapped.insert(at, piece);
                at += piece.size;
            }
        }
    }

    pub(super) fn unmapped(&mut self, va: u64, size: u64, order: &Order) -> Result<(), Broken> {
        let mut verdict = Ok(());
        while let Some((&at, &piece)) = self.mapped.range(va..va + size).next() {
            self.mapped.remove(&at);
            if let Some(handle) = piece.handle {
                if let Some(physical) = self.handles.get_mut(&handle) {
                    physical.mappings -= 1;
                }
                self.forget_if_unused(handle);
            }
            verdict = verdict.and(self.vacate(at, &piece, None, order));
        }
        verdict
    }

    fn new_physical(&mut self, size: u64) -> u64 {
        self.held += size;
        self.next_physical += size;
        self.next_physical - size
    }

    fn forget_if_unused(&mut self, handle: Handle) {
        if let Some(&Physical { size, mappings: 0, released: true, .. }) = self.handles.get(&handle) {
            self.handles.remove(&handle);
            self.held -= size;
        }
    }

    /// Nobody may have a piece at the address that goes, or still be using it: now, or when `stream` comes to this point.
    fn vacate(&mut self, va: u64, piece: &Piece, stream: Option<StreamId>, order: &Order) -> Result<(), Broken> {
        let mut verdict = Ok(());
        for (at, extent) in self.overlapping(piece.physical, piece.size) {
            let used_through_an_alias = extent.va.wrapping_sub(at) != va.wrapping_sub(piece.physical);
            if used_through_an_alias {
                continue;
            }
            let who = name(extent.block);
            match extent.state {
                State::Live => {
                    let text = format!("the memory of {who} was given back to the device while {who} is live");
                    verdict = verdict.and(Err(Broken::new(Rule::NoOverlap, text)));
                }
                State::Freed(points) => {
                    let (user, what) = match stream {
                        None => (order.may_still_run(&points), "unmapped".to_string()),
                        Some(stream) => {
                            (order.may_run_beside(&points, stream), format!("freed in the order of {}", Lane(stream)))
                        }
                    };
                    if let Some(user) = user.map(Lane) {
                        let text = format!(
                            "the memory of {who} was {what} while {user} may still use it: nothing waited for {user}"
                        );
                        verdict = verdict.and(Err(Broken::new(Rule::StreamOrder, text)));
                    }
                    self.carve(at, extent, piece.physical, piece.physical + piece.size);
                }
            }
        }
        verdict
    }

    /// Physical ranges behind addresses, neighbours joined; `None` where there is no memory.
    pub(super) fn behind(&self, ptr: u64, size: u64) -> Option<Vec<(u64, u64)>> {
        let end = ptr.checked_add(size)?;
        let first = self.mapped.range(..=ptr).next_back()?.0;
        let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(1);
        let mut at = ptr;
        for (&va, piece) in self.mapped.range(first..) {
            if at >= end {
                break;
            }
            if va > at || va + piece.size <= at {
                return None;
            }
            let physical = piece.physical + (at - va);
            let size = (va + piece.size).min(end) - at;
            match ranges.last_mut() {
                Some((start, len)) if *start + *len == physical => *len += size,
                _ => ranges.push((physical, size)),
            }
            at += size;
        }
        (at >= end).then_some(ranges)
    }

    /// Whether some memory lies between the addresses.
    pub(super) fn any_behind(&self, ptr: u64, size: u64) -> bool {
        self.mapped.range(..ptr + size).next_back().is_some_and(|(&va, piece)| va + piece.size > ptr)
    }

    fn overlapping(&self, at: u64, size: u64) -> Vec<(u64, Extent)> {
        let before = self.extents.range(..at).next_back().filter(|(start, extent)| *start + extent.size > at);
        before.into_iter().chain(self.extents.range(at..at + size)).map(|(&at, &extent)| (at, extent)).collect()
    }

    /// Takes `from..to` out of an extent.
    fn carve(&mut self, at: u64, extent: Extent, from: u64, to: u64) {
        self.extents.remove(&at);
        if at < from {
            self.extents.insert(at, Extent { size: from - at, ..extent });
        }
        let end = at + extent.size;
        if to < end {
            self.extents.insert(to, Extent { size: end - to, va: extent.va + (to - at), ..extent });
        }
    }

    /// A block was handed out: its memory must be held, nobody else's, of its pool, and no longer in use.
    pub(super) fn place(&mut self, block: Placed, order: &Order) -> Result<(), Broken> {
        let Placed { id, ptr, size, stream, pool } = block;
        let who = name(id);
        let Some(ranges) = self.behind(ptr, size) else {
            let text = format!("{who} ({size} bytes at {ptr:#x}) lies outside the memory that the strategy holds");
            return Err(Broken::new(Rule::NoOverlap, text));
        };
        self.claim(ptr, size, pool).map_err(|owner| {
            let text = format!("{who} of pool {} lies in a segment that holds blocks of pool {}", pool.0, owner.0);
            Broken::new(Rule::Pools, text)
        })?;
        let mut va = ptr;
        for (at, len) in ranges {
            for (start, extent) in self.overlapping(at, len) {
                let other = name(extent.block);
                match extent.state {
                    State::Live => {
                        let text = format!("{who} ({size} bytes at {ptr:#x}) overlaps {other}, which is live");
                        return Err(Broken::new(Rule::NoOverlap, text));
                    }
                    State::Freed(points) => {
                        if let Some(user) = order.may_run_beside(&points, stream).map(Lane) {
                            let text = format!(
                                "{who} on {} got memory of {other}, which {user} may still use: nothing waited for \
                                 {user}",
                                Lane(stream)
                            );
                            return Err(Broken::new(Rule::StreamOrder, text));
                        }
                        self.carve(start, extent, at, at + len);
                    }
                }
            }
            self.extents.insert(at, Extent { size: len, va, block: id, state: State::Live });
            va += len;
        }
        Ok(())
    }

    /// Marks the pieces behind a block as its pool's, or says whose they are.
    fn claim(&mut self, ptr: u64, size: u64, pool: PoolId) -> Result<(), PoolId> {
        let Some((&first, _)) = self.mapped.range(..=ptr).next_back() else { return Ok(()) };
        for (_, piece) in self.mapped.range_mut(first..ptr + size) {
            match piece.pool {
                None => piece.pool = Some(pool),
                Some(owner) if owner != pool => return Err(owner),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Marks a block's memory as freed at `points`, or (`None`) as live again after a free that was refused.
    pub(super) fn mark(&mut self, ptr: u64, size: u64, points: Option<Clock>) {
        for (at, _) in self.behind(ptr, size).unwrap_or_default() {
            if let Some(extent) = self.extents.get_mut(&at) {
                extent.state = points.map_or(State::Live, State::Freed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;
    const A: StreamId = StreamId(0);
    const B: StreamId = StreamId(1);

    fn block(id: u32, ptr: u64, size: u64) -> Placed {
        Placed { id, ptr, size, stream: A, pool: PoolId::DEFAULT }
    }

    fn rule(verdict: Result<(), Broken>) -> Option<Rule> {
        verdict.err().map(|broken| broken.rule)
    }

    /// One handle at two addresses, another behind the first of them.
    fn aliased() -> Memory {
        let mut memory = Memory::default();
        memory.created(Handle(1), PAGE);
        memory.created(Handle(2), PAGE);
        memory.mapped(0x1000_0000, &[Handle(1), Handle(2)]);
        memory.mapped(0x2000_0000, &[Handle(1)]);
        memory
    }

    #[test]
    fn an_overlap_is_seen_through_an_alias() {
        let order = Order::new();
        let mut memory = aliased();
        assert_eq!((memory.held(), memory.reachable()), (2 * PAGE, 2 * PAGE));
        assert_eq!(rule(memory.place(block(0, 0x1000_0000 + PAGE - 512, 1024), &order)), None, "over both pages");
        assert_eq!(rule(memory.place(block(1, 0x2000_0000, PAGE - 512), &order)), None);
        assert_eq!(rule(memory.place(block(2, 0x2000_0000 + PAGE - 512, 512), &order)), Some(Rule::NoOverlap));
        assert_eq!(rule(memory.place(block(3, 0x2000_0000 + PAGE, 512), &order)), Some(Rule::NoOverlap), "no memory");
    }

    #[test]
    fn an_address_may_go_while_an_alias_is_used() {
        let order = Order::new();
        let mut memory = aliased();
        memory.place(block(0, 0x1000_0000, 512), &order).unwrap();
        assert_eq!(rule(memory.unmapped(0x2000_0000, PAGE, &order)), None);
        assert_eq!(rule(memory.unmapped(0x1000_0000, 2 * PAGE, &order)), Some(Rule::NoOverlap));
        memory.released(Handle(1));
        assert_eq!((memory.held(), memory.reachable()), (PAGE, 0));
    }

    #[test]
    fn memory_in_use_may_not_leave_its_address() {
        let mut order = Order::new();
        let mut memory = aliased();
        memory.place(block(0, 0x1000_0000, 512), &order).unwrap();
        order.work(A);
        memory.mark(0x1000_0000, 512, Some(order.points(&[A])));
        assert_eq!(rule(memory.clone().unmapped(0x1000_0000, 2 * PAGE, &order)), Some(Rule::StreamOrder));
        order.saw_stream(A);
        assert_eq!(rule(memory.unmapped(0x1000_0000, 2 * PAGE, &order)), None);
    }

    #[test]
    fn each_part_of_freed_memory_keeps_its_users() {
        let mut order = Order::new();
        let mut memory = Memory::default();
        memory.malloced(0x1000, 4096);
        memory.place(block(0, 0x1000, 4096), &order).unwrap();
        order.work(A);
        order.work(B);
        memory.mark(0x1000, 4096, Some(order.points(&[A, B])));
        let mut in_the_middle = memory.clone();
        assert_eq!(rule(memory.place(block(1, 0x1400, 512), &order)), Some(Rule::StreamOrder));
        in_the_middle.mark(0x1000, 4096, Some(order.points(&[A])));
        assert_eq!(rule(in_the_middle.place(block(1, 0x1400, 512), &order)), None);
        let on_b = |id, ptr| Placed { stream: B, ..block(id, ptr, 512) };
        assert_eq!(rule(in_the_middle.place(on_b(2, 0x1200), &order)), Some(Rule::StreamOrder), "below");
        assert_eq!(rule(in_the_middle.place(on_b(3, 0x1600), &order)), Some(Rule::StreamOrder), "above");
        assert_eq!(rule(in_the_middle.place(on_b(4, 0x1400), &order)), Some(Rule::NoOverlap));
        order.saw_all();
        assert_eq!(rule(in_the_middle.freed(0x1000, &order)), Some(Rule::NoOverlap), "a live block in it");
    }

    #[test]
    fn a_piece_belongs_to_the_pool_of_its_first_block() {
        let order = Order::new();
        let mut memory = Memory::default();
        memory.malloced(0x1000, 4096);
        let other = Placed { pool: PoolId(1), ..block(1, 0x1800, 512) };
        memory.place(block(0, 0x1000, 512), &order).unwrap();
        assert_eq!(rule(memory.place(other, &order)), Some(Rule::Pools));
        memory.mark(0x1000, 512, Some(Clock::default()));
        assert_eq!(rule(memory.place(other, &order)), Some(Rule::Pools), "freed, not given back");
        memory.freed(0x1000, &order).unwrap();
        memory.malloced(0x1000, 4096);
        assert_eq!(rule(memory.place(other, &order)), None);
    }
}
