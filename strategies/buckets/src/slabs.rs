//! Slabs, their blocks, and the lists of slabs that have room.
//!
//! ```text
//! slab   [ live │ free │ live │ free │ … never used … ]
//!                   ▲─────────────┘ free blocks are linked; what was never used is carved off in order
//! ```
//!
//! A block gets its slot when it is carved off, and keeps it until the slab goes back or changes its class.

/// No slot: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// A piece of device memory, cut into blocks of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slab {
    pub ptr: u64,
    pub bytes: u64,
    /// Bytes of a block.
    pub block: u64,
    /// The class's number.
    pub class: u64,
    /// The stream it belongs to, as an index.
    pub lane: u32,
    /// How many blocks it has room for.
    pub room: u32,
    /// How many have been carved off, from its start.
    pub carved: u32,
    /// How many of these are live or wait for other streams.
    pub used: u32,
    /// The first free one.
    pub free: u32,
    /// Its neighbours in a list.
    pub prev: u32,
    pub next: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Live,
    /// Live, and used on further streams.
    Shared,
    Pending,
    Free,
    /// A slot without memory.
    Vacant,
}

/// A block that was carved off, or a slot for one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub ptr: u64,
    pub slab: u32,
    /// The next free block of its slab, or the next vacant slot.
    pub next: u32,
    pub generation: u32,
    pub state: State,
}

/// All slabs and blocks.
#[derive(Clone, Debug)]
pub(crate) struct Slabs {
    pub slabs: Vec<Slab>,
    pub entries: Vec<Entry>,
    /// Slots of slabs without memory.
    vacant_slabs: Vec<u32>,
    /// The first slot of a block without memory.
    vacant: u32,
}

impl Slabs {
    pub(crate) fn new() -> Slabs {
        Slabs { slabs: Vec::new(), entries: Vec::new(), vacant_slabs: Vec::new(), vacant: NONE }
    }

    /// The slabs that have memory, in no order.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Slab> {
        self.slabs.iter().filter(|slab| slab.bytes > 0)
    }

    pub(crate) fn add(&mut self, slab: Slab) -> u32 {
        match self.vacant_slabs.pop() {
            Some(at) => {
                self.slabs[at as usize] = slab;
                at
            }
            None => {
                self.slabs.push(slab);
                (self.slabs.len() - 1) as u32
            }
        }
    }

    /// Forgets an empty slab.
    pub(crate) fn remove(&mut self, at: u32) {
        self.clear(at);
        self.slabs[at as usize].bytes = 0;
        self.vacant_slabs.push(at);
    }

    /// The blocks of an empty slab are as if never carved off.
    pub(crate) fn clear(&mut self, at: u32) {
        let slab = &mut self.slabs[at as usize];
        let mut slot = std::mem::replace(&mut slab.free, NONE);
        slab.carved = 0;
        while slot != NONE {
            let entry = &mut self.entries[slot as usize];
            let next = std::mem::replace(&mut entry.next, self.vacant);
            entry.state = State::Vacant;
            self.vacant = slot;
            slot = next;
        }
    }

    /// A block of a slab that has room, and whether it has room for more.
    #[inline]
    pub(crate) fn take(&mut self, at: u32) -> (u32, bool) {
        let slab = &mut self.slabs[at as usize];
        let slot = match slab.free {
            NONE => {
                let ptr = slab.ptr + u64::from(slab.carved) * slab.block;
                slab.carved += 1;
                match self.vacant {
                    NONE => {
                        self.entries.push(Entry { ptr, slab: at, next: NONE, generation: 0, state: State::Live });
                        (self.entries.len() - 1) as u32
                    }
                    slot => {
                        let entry = &mut self.entries[slot as usize];
                        self.vacant = entry.next;
                        (entry.ptr, entry.slab) = (ptr, at);
                        slot
                    }
                }
            }
            slot => {
                slab.free = self.entries[slot as usize].next;
                slot
            }
        };
        slab.used += 1;
        let entry = &mut self.entries[slot as usize];
        entry.state = State::Live;
        entry.generation = entry.generation.wrapping_add(1);
        (slot, slab.used < slab.room)
    }

    /// Puts a block back into its slab.
    #[inline]
    pub(crate) fn put(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        let slab = &mut self.slabs[entry.slab as usize];
        entry.state = State::Free;
        entry.next = slab.free;
        slab.free = slot;
        slab.used -= 1;
    }

    /// Puts a slab at the front of a list.
    #[inline]
    pub(crate) fn link(&mut self, head: &mut u32, at: u32) {
        if *head != NONE {
            self.slabs[*head as usize].prev = at;
        }
        let slab = &mut self.slabs[at as usize];
        (slab.prev, slab.next) = (NONE, *head);
        *head = at;
    }

    /// Takes a slab out of its list.
    #[inline]
    pub(crate) fn unlink(&mut self, head: &mut u32, at: u32) {
        let Slab { prev, next, .. } = self.slabs[at as usize];
        match prev {
            NONE => *head = next,
            prev => self.slabs[prev as usize].next = next,
        }
        if next != NONE {
            self.slabs[next as usize].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slab(ptr: u64, room: u32) -> Slab {
        let bytes = u64::from(room) * 512;
        let ends = (NONE, NONE, NONE);
        let (free, prev, next) = ends;
        Slab { ptr, bytes, block: 512, class: 0, lane: 0, room, carved: 0, used: 0, free, prev, next }
    }

    #[test]
    fn blocks_are_carved_in_order_and_used_again_last_one_first() {
        let mut slabs = Slabs::new();
        let at = slabs.add(slab(4096, 3));
        let taken: Vec<(u32, bool)> = (0..3).map(|_| slabs.take(at)).collect();
        assert_eq!(taken.iter().map(|taken| taken.1).collect::<Vec<_>>(), [true, true, false]);
        let ptrs: Vec<u64> = taken.iter().map(|taken| slabs.entries[taken.0 as usize].ptr).collect();
        assert_eq!(ptrs, [4096, 4608, 5120]);
        slabs.put(taken[0].0);
        slabs.put(taken[2].0);
        assert_eq!((slabs.take(at), slabs.take(at)), ((taken[2].0, true), (taken[0].0, false)));
        for (slot, _) in taken {
            slabs.put(slot);
        }
        slabs.remove(at);
        assert_eq!(slabs.held().count(), 0);
        let at = slabs.add(slab(8192, 3));
        let again: Vec<u32> = (0..3).map(|_| slabs.take(at).0).collect();
        assert_eq!((slabs.slabs.len(), slabs.entries.len()), (1, 3), "slots are used again");
        assert_eq!(slabs.entries[again[2] as usize].ptr, 8192 + 1024);
    }

    #[test]
    fn a_slab_leaves_its_list_from_any_place() {
        for out in 0..3u32 {
            let mut slabs = Slabs::new();
            let mut head = NONE;
            for at in 0..3 {
                slabs.add(slab(u64::from(at + 1) * 4096, 1));
                slabs.link(&mut head, at);
            }
            slabs.unlink(&mut head, out);
            let mut order = Vec::new();
            while head != NONE {
                order.push(head);
                let first = head;
                slabs.unlink(&mut head, first);
            }
            assert_eq!(order, [2, 1, 0].into_iter().filter(|&at| at != out).collect::<Vec<_>>());
        }
    }
}
