//! One arena and its halves, quarters, eighths: the buddy system itself.
//!
//! A block of order k is 2^k units long and starts at a multiple of its length, so its *buddy*, the other half of the block
//! that it was split from, is found by flipping one bit. Free blocks are numbered within their order:
//!
//! ```text
//! order 2   0                          number n of order k begins at unit n × 2^k
//! order 1   0           1              the buddy of n is n ^ 1
//! order 0   0     1     2     3        the two make n / 2 of order k + 1
//! ```

use crate::bits::Bits;

/// The orders an arena can have, less one: as many units as [`Bits`] can number.
pub(crate) const MAX_ORDER: u32 = Bits::MAX.ilog2();

/// See the module. It knows what is free; what is not free is known to those who took it.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    /// The address of its first byte.
    pub(crate) base: u64,
    /// The order of the whole.
    pub(crate) order: u32,
    /// Free blocks by order.
    free: Vec<Bits>,
    /// Bit k: there are free blocks of order k.
    orders: u64,
}

impl Arena {
    /// An arena that is one free block.
    pub(crate) fn new(base: u64, order: u32) -> Arena {
        let mut free: Vec<Bits> = (0..=order).map(|k| Bits::new(1 << (order - k))).collect();
        free[order as usize].insert(0);
        Arena { base, order, free, orders: 1 << order }
    }

    /// Bit k: there are free blocks of order k.
    #[inline]
    pub(crate) fn orders(&self) -> u64 {
        self.orders
    }

    /// Whether nothing is taken. Where merging is lazy, only after [`Arena::coalesce`].
    pub(crate) fn is_unused(&self) -> bool {
        self.orders == 1 << self.order
    }

    /// Takes the lowest free block of order `from` and splits it down to `order`; the number of what is left of it. The
    /// upper halves stay free.
    #[inline]
    pub(crate) fn take(&mut self, order: u32, from: u32) -> Option<u32> {
        let mut number = self.free[from as usize].first()?;
        self.remove(from, number);
        for half in self.free[order as usize..from as usize].iter_mut().rev() {
            number *= 2;
            half.insert(number + 1);
        }
        self.orders |= (1 << from) - (1 << order);
        Some(number)
    }

    /// Puts a taken block back, and merges it with its buddy, the two with theirs, and so on, if `merge`.
    #[inline]
    pub(crate) fn give(&mut self, mut order: u32, mut number: u32, merge: bool) {
        while merge && order < self.order && self.remove(order, number ^ 1) {
            number /= 2;
            order += 1;
        }
        self.insert(order, number);
    }

    /// Merges all free buddies.
    pub(crate) fn coalesce(&mut self) {
        for order in 0..self.order {
            let mut from = 0;
            while let Some(number) = self.free[order as usize].at_or_after(from) {
                if number.is_multiple_of(2) && self.free[order as usize].contains(number + 1) {
                    self.remove(order, number);
                    self.remove(order, number + 1);
                    self.insert(order + 1, number / 2);
                }
                from = number + 1;
            }
        }
    }

    /// The order and number of each free block.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..).zip(&self.free).flat_map(|(order, free)| free.iter().map(move |number| (order, number)))
    }

    #[inline]
    fn insert(&mut self, order: u32, number: u32) {
        self.free[order as usize].insert(number);
        self.orders |= 1 << order;
    }

    #[inline]
    fn remove(&mut self, order: u32, number: u32) -> bool {
        let free = &mut self.free[order as usize];
        let was_in = free.remove(number);
        if was_in && free.is_empty() {
            self.orders &= !(1 << order);
        }
        was_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: u32 = 8;

    /// The same by looking at every unit: `taken[u]` says whether unit u is in a taken block.
    #[derive(Default)]
    struct Model {
        taken: Vec<(u32, u32)>,
    }

    impl Model {
        /// Whether nothing of the block is taken.
        fn is_free(&self, order: u32, number: u32) -> bool {
            let units = |order: u32, number: u32| number << order..(number + 1) << order;
            let block = units(order, number);
            self.taken.iter().all(|&(k, n)| units(k, n).end <= block.start || block.end <= units(k, n).start)
        }

        /// Blocks that are free as a whole and in no larger such block.
        fn free_blocks(&self) -> Vec<(u32, u32)> {
            let all = (0..=ORDER).flat_map(|k| (0..1 << (ORDER - k)).map(move |n| (k, n)));
            all.filter(|&(k, n)| self.is_free(k, n) && (k == ORDER || !self.is_free(k + 1, n / 2))).collect()
        }
    }

    fn random_run(seed: u64, merge: bool) {
        let (mut arena, mut model) = (Arena::new(0, ORDER), Model::default());
        let mut state = seed;
        for round in 0..600 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = (state >> 33) as usize;
            if round % 200 < 100 || model.taken.is_empty() {
                let order = (choice % 6) as u32;
                let fit = arena.orders() >> order << order;
                let from = fit.trailing_zeros();
                let lowest = arena.free_blocks().find(|&(k, _)| k >= order);
                if fit == 0 {
                    assert!(lowest.is_none());
                    continue;
                }
                let number = arena.take(order, from).unwrap();
                assert_eq!(
                    lowest,
                    Some((from, number >> (from - order))),
                    "the smallest that fits, the lowest of those"
                );
                assert!(model.is_free(order, number));
                model.taken.push((order, number));
            } else {
                let (order, number) = model.taken.swap_remove(choice % model.taken.len());
                arena.give(order, number, merge);
            }
            if !merge && round % 7 == 0 {
                arena.coalesce();
            }
            if merge || round % 7 == 0 {
                assert!(arena.free_blocks().eq(model.free_blocks()));
                assert_eq!(arena.is_unused(), model.taken.is_empty());
            }
            let orders = arena.free_blocks().fold(0, |orders, (order, _)| orders | 1 << order);
            assert_eq!(arena.orders(), orders);
        }
    }

    #[test]
    fn it_does_what_looking_at_every_unit_does() {
        for seed in 0..20 {
            random_run(seed, true);
            random_run(seed, false);
        }
    }

    #[test]
    fn without_merging_a_block_stays_as_it_was_taken() {
        let mut arena = Arena::new(0, 2);
        let number = arena.take(0, 2).unwrap();
        arena.give(0, number, false);
        assert!(arena.free_blocks().eq([(0, 0), (0, 1), (1, 1)]));
        assert!(!arena.is_unused());
        arena.coalesce();
        assert!(arena.free_blocks().eq([(2, 0)]) && arena.is_unused());
    }

    #[test]
    fn an_arena_of_one_unit_is_taken_as_a_whole() {
        let mut arena = Arena::new(0, 0);
        assert_eq!(arena.take(0, 0), Some(0));
        assert_eq!((arena.take(0, 0), arena.orders()), (None, 0));
        arena.give(0, 0, true);
        assert!(arena.is_unused());
    }
}
