//! Blocks that live until chance picks them.

use crate::lengths::Rng;
use crate::tensor::Storage;
use std::rc::Rc;

/// Blocks without an order.
#[derive(Default)]
pub(super) struct Live {
    blocks: Vec<(Rc<Storage>, u64)>,
    bytes: u64,
}

impl Live {
    pub(super) fn push(&mut self, block: Rc<Storage>, bytes: u64) {
        self.blocks.push((block, bytes));
        self.bytes += bytes;
    }

    /// Frees one of them.
    pub(super) fn free_any(&mut self, rng: &mut Rng) {
        if !self.blocks.is_empty() {
            let place = rng.below(self.blocks.len() as u64) as usize;
            self.bytes -= self.blocks.swap_remove(place).1;
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}
