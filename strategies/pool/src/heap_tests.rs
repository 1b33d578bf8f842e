//! The heap against lists as the source has them: ordered by address, walked from the start.

use super::*;

/// A free piece of the model: address, size, and whether a region starts here.
type Piece = (u64, u64, bool);

#[derive(Default)]
struct Model {
    lists: [Vec<Piece>; 3],
    heads: Vec<u64>,
}

impl Model {
    fn insert(&mut self, stream: usize, piece: Piece) {
        let list = &mut self.lists[stream];
        list.push(piece);
        list.sort_unstable();
        let mut joined: Vec<Piece> = Vec::new();
        for &(ptr, size, head) in list.iter() {
            match joined.last_mut() {
                Some(below) if below.0 + below.1 == ptr && !head => below.1 += size,
                _ => joined.push((ptr, size, head)),
            }
        }
        *list = joined;
    }

    fn best_fit(&self, stream: usize, size: u64) -> Option<u64> {
        let fits = self.lists[stream].iter().filter(|piece| piece.1 >= size);
        fits.min_by_key(|piece| piece.1).map(|piece| piece.0)
    }

    /// Cuts `size` bytes off the piece at `ptr`.
    fn take(&mut self, stream: usize, ptr: u64, size: u64) {
        let at = self.lists[stream].iter().position(|piece| piece.0 == ptr).unwrap();
        let (_, had, _) = self.lists[stream].remove(at);
        if had > size {
            self.insert(stream, (ptr + size, had - size, false));
        }
    }

    fn is_head(&self, ptr: u64) -> bool {
        self.heads.contains(&ptr)
    }
}

fn free_pieces(heap: &Heap) -> [Vec<Piece>; 3] {
    let mut lists: [Vec<Piece>; 3] = Default::default();
    heap.visit(&mut |region, piece| {
        if piece.state == State::Free {
            lists[piece.stream as usize].push((piece.ptr, piece.size, piece.ptr == region.ptr));
        }
    });
    lists
}

#[test]
fn pieces_lie_where_the_source_puts_them() {
    let (mut heap, mut model) = (Heap::default(), Model::default());
    heap.open(2);
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut live: Vec<(u32, u64, u64)> = Vec::new();
    let (mut end, mut hits, mut absorbed) = (1 << 20, 0, 0);
    for step in 0..30_000 {
        let (stream, from) = (random(3), random(3));
        let size = (1 + random(12)) * 512;
        match random(if live.len() < 300 { 100 } else { 60 }) {
            0..50 if !live.is_empty() => {
                let (slot, ptr, size) = live.swap_remove(random(live.len() as u64) as usize);
                let stream = heap.get(slot).unwrap().stream as usize;
                heap.release(slot);
                model.insert(stream, (ptr, size, model.is_head(ptr)));
            }
            50 if stream != from => {
                heap.absorb(from as u32, stream as u32);
                for piece in std::mem::take(&mut model.lists[from as usize]) {
                    model.insert(stream as usize, piece);
                }
                absorbed += 1;
            }
            // Regions that touch stay apart.
            51 => {
                heap.add_region(end, 64 << 10, stream as u32);
                model.heads.push(end);
                model.insert(stream as usize, (end, 64 << 10, true));
                end += 64 << 10;
            }
            _ => {
                let found = heap.best_fit(from as u32, size);
                let ptr = model.best_fit(from as usize, size);
                assert_eq!(found.map(|slot| heap.get(slot).unwrap().ptr), ptr, "step {step}");
                let (Some(slot), Some(ptr)) = (found, ptr) else { continue };
                heap.take(slot, stream as u32, size);
                model.take(from as usize, ptr, size);
                live.push((slot, ptr, size));
                hits += 1;
            }
        }
        if step % 64 == 0 {
            assert_eq!(free_pieces(&heap), model.lists, "step {step}");
        }
    }
    assert!(hits > 5_000 && absorbed > 100, "{hits} {absorbed}");
    live.into_iter().for_each(|(slot, ..)| heap.release(slot));
    for (at, region) in heap.unused_regions() {
        assert!(model.heads.contains(&region.ptr));
        heap.remove_region(at);
    }
    assert_eq!(free_pieces(&heap), <[Vec<Piece>; 3]>::default());
    assert!((0..3).all(|stream| heap.best_fit(stream, 1).is_none()), "nothing hangs in a tree any more");
}
