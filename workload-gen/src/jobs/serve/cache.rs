//! Keys and values of running sequences.

use super::model::{Names, Shape};
use crate::tensor::{Gpu, Role, Storage, Tensor};
use std::rc::Rc;

/// How caches lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// One tensor of keys and one of values for each sequence and layer, which grows by so many tokens.
    Contiguous(u64),
    /// Blocks of so many tokens, allocated when they are needed.
    Demand(u64),
    /// Blocks of so many tokens in memory that is there from the beginning.
    Pool(u64),
}

impl Layout {
    /// Tokens by which a sequence's share grows.
    pub fn grain(self) -> u64 {
        match self {
            Layout::Contiguous(tokens) | Layout::Demand(tokens) | Layout::Pool(tokens) => tokens,
        }
    }

    /// Grains for so many tokens.
    pub fn grains(self, tokens: u64) -> u64 {
        tokens.div_ceil(self.grain())
    }
}

/// The memory of all blocks, a tensor for each layer.
pub(super) fn pool(gpu: &Gpu, shape: &Shape, names: &Names, tokens: u64) -> Vec<Tensor> {
    let layer = |number| gpu.tensor(2 * tokens * shape.keys(), shape.kv_dtype, Role::KvCache, names.cache_of(number));
    (0..shape.layers as usize).map(layer).collect()
}

/// One sequence's keys and values.
#[derive(Default)]
pub(super) struct Cache {
    /// Of each layer: keys and values if they are contiguous, else blocks that hold both.
    layers: Vec<Vec<Rc<Storage>>>,
    /// Tokens that each layer has room for.
    room: Vec<u64>,
}

impl Cache {
    pub fn new(shape: &Shape) -> Cache {
        let layers = shape.layers as usize;
        Cache { layers: (0..layers).map(|_| Vec::new()).collect(), room: vec![0; layers] }
    }

    /// Makes room in all layers, as a scheduler does that hands out blocks before a pass.
    pub fn reserve(&mut self, gpu: &Gpu, shape: &Shape, names: &Names, layout: Layout, tokens: u64) {
        if let Layout::Demand(block) = layout {
            let bytes = 2 * block * shape.keys() * shape.kv_dtype.bytes();
            for (number, (layer, room)) in self.layers.iter_mut().zip(&mut self.room).enumerate() {
                while *room < tokens {
                    layer.push(gpu.storage(bytes, Role::KvCache, names.cache_of(number)));
                    *room += block;
                }
            }
        }
    }

    /// Makes room in one layer, as an attention does that puts its keys and values behind those that are there: each is copied
    /// into a new tensor, and then the old one goes.
    pub fn append(&mut self, gpu: &Gpu, shape: &Shape, names: &Names, layout: Layout, layer: usize, tokens: u64) {
        if let Layout::Contiguous(step) = layout
            && self.room[layer] < tokens
        {
            self.room[layer] = tokens.next_multiple_of(step);
            let bytes = self.room[layer] * shape.keys() * shape.kv_dtype.bytes();
            let tensors = &mut self.layers[layer];
            for place in 0..2 {
                let grown = gpu.storage(bytes, Role::KvCache, names.cache_of(layer));
                match tensors.get_mut(place) {
                    Some(tensor) => *tensor = grown,
                    None => tensors.push(grown),
                }
            }
        }
    }
}
