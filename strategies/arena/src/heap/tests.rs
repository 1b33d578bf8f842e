//! The heap against superblocks and free lists as the source has them, walked from the start.

use super::*;

const MIB: u64 = 1 << 20;

/// A superblock of the model: address, size, owner, and its free pieces by address.
type Modelled = (u64, u64, u32, Vec<(u64, u64)>);

struct Model(Vec<Modelled>);

impl Model {
    /// Takes from the first superblock of the owner that fits; it may be cut or change hands first.
    fn take(&mut self, owner: u32, size: u64) -> Option<u64> {
        let find = |model: &Model, owner: u32| {
            let fits = |block: &&Modelled| block.2 == owner && block.3.iter().any(|piece| piece.1 >= size);
            model.0.iter().find(fits).map(|block| block.0)
        };
        let at = match find(self, owner).filter(|_| owner != GLOBAL) {
            Some(ptr) => self.index(ptr),
            None => {
                let at = self.index(find(self, GLOBAL)?);
                let (ptr, had, ..) = self.0[at];
                let least = size.max(MIB);
                if self.is_empty(at) && had >= least + MIB {
                    self.0[at] = (ptr + least, had - least, GLOBAL, vec![(ptr + least, had - least)]);
                    self.0.insert(at, (ptr, least, owner, vec![(ptr, least)]));
                }
                self.0[at].2 = owner;
                at
            }
        };
        let pieces = &mut self.0[at].3;
        let piece = pieces.iter_mut().find(|piece| piece.1 >= size).unwrap();
        let ptr = piece.0;
        *piece = (ptr + size, piece.1 - size);
        pieces.retain(|piece| piece.1 > 0);
        Some(ptr)
    }

    fn index(&self, ptr: u64) -> usize {
        self.0.iter().position(|block| (block.0..block.0 + block.1).contains(&ptr)).unwrap()
    }

    fn is_empty(&self, at: usize) -> bool {
        self.0[at].3 == [(self.0[at].0, self.0[at].1)]
    }

    fn release(&mut self, ptr: u64, size: u64) {
        let at = self.index(ptr);
        let pieces = &mut self.0[at].3;
        pieces.push((ptr, size));
        pieces.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for &(ptr, size) in pieces.iter() {
            match joined.last_mut() {
                Some(below) if below.0 + below.1 == ptr => below.1 += size,
                _ => joined.push((ptr, size)),
            }
        }
        *pieces = joined;
        self.join();
    }

    fn join(&mut self) {
        let mut at = 0;
        while at + 1 < self.0.len() {
            let are_global = [at, at + 1].iter().all(|&at| self.0[at].2 == GLOBAL && self.is_empty(at));
            if are_global {
                let upper = self.0.remove(at + 1);
                self.0[at].1 += upper.1;
                self.0[at].3 = vec![(self.0[at].0, self.0[at].1)];
            } else {
                at += 1;
            }
        }
    }

    fn collect(&mut self) {
        self.0.iter_mut().for_each(|block| block.2 = GLOBAL);
        self.join();
    }
}

#[test]
fn pieces_lie_where_the_source_puts_them() {
    let (start, size) = (1 << 30, 40 * MIB + 512);
    let mut heap = Heap::default();
    heap.open(3);
    heap.start(start, size);
    let mut model = Model(vec![(start, size, GLOBAL, vec![(start, size)])]);
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut live: Vec<(u32, u64, u64)> = Vec::new();
    let (mut small, mut large, mut refused) = (0, 0, 0);
    for step in 0..40_000 {
        let phase = if step / 500 % 2 == 0 { 40 } else { 60 };
        match random(101) {
            100 => {
                heap.collect();
                model.collect();
            }
            chance if chance < phase && !live.is_empty() => {
                let (slot, ptr, size) = live.swap_remove(random(live.len() as u64) as usize);
                heap.release(slot);
                model.release(ptr, size);
            }
            chance => {
                let size = 512 * (1 + random([64, 2048, 6000][chance as usize % 3]));
                let owner = if size > SUPERBLOCK { GLOBAL } else { 1 + random(3) as u32 };
                let taken = if owner == GLOBAL { heap.take_large(size) } else { heap.take_small(owner, size) };
                let ptr = model.take(owner, size);
                assert_eq!(taken.map(|slot| heap.get(slot).unwrap().ptr), ptr, "step {step}");
                match taken {
                    Some(slot) => live.push((slot, ptr.unwrap(), size)),
                    None => refused += 1,
                }
                *(if owner == GLOBAL { &mut large } else { &mut small }) += 1;
            }
        }
        if step % 64 == 0 {
            let mut free = Vec::new();
            heap.visit(&mut |superblock, piece| {
                if piece.state == State::Free {
                    free.push((superblock.ptr, superblock.size, superblock.owner, piece.ptr, piece.size));
                }
            });
            let pieces = |block: &Modelled| {
                let &(ptr, size, owner, _) = block;
                block.3.iter().map(move |piece| (ptr, size, owner, piece.0, piece.1)).collect::<Vec<_>>()
            };
            assert_eq!(free, model.0.iter().flat_map(pieces).collect::<Vec<_>>(), "step {step}");
        }
    }
    assert!(small > 5_000 && large > 2_000 && refused > 100, "{small} {large} {refused}");
    live.into_iter().for_each(|(slot, ..)| heap.release(slot));
    assert!(!heap.is_used());
    heap.stop();
    heap.start(start, size);
    assert_eq!(heap.take_large(size).map(|slot| heap.get(slot).unwrap().ptr), Some(start));
}
