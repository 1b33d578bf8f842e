//! What DeepSpeed computes of gradients and looks at before each step: their norm, whether anything is clipped or not, and whether they are finite.
//!
//! Facts are those of DeepSpeed 0.19 (`get_grad_norm_direct`, `combine_grad_norm_groups`, `is_invalid_grad_norm`, `has_inf_or_nan`).

use crate::ops::{Reduction, release_list};
use crate::tensor::{Dtype, Gpu, Name, Role, Tensor};

/// Where norms are computed, and for what.
#[derive(Clone, Copy)]
pub(super) struct Norms<'g> {
    pub(super) gpu: &'g Gpu,
    pub(super) name: Name,
    /// The type of the norm of all gradients. Those of each are in 64 bits.
    pub(super) dtype: Dtype,
}

impl Norms<'_> {
    fn make(&self, elements: u64, dtype: Dtype) -> Tensor {
        self.gpu.tensor(elements, dtype, Role::Temporary, self.name)
    }

    pub(super) fn number(&self) -> Tensor {
        self.make(1, self.dtype)
    }

    pub(super) fn flag(&self) -> Tensor {
        self.make(1, Dtype::U8)
    }

    /// The norm of a gradient of so many elements.
    pub(super) fn one(&self, elements: u64) -> Tensor {
        let _double = self.make(elements, Dtype::F64);
        self.reduced(elements, Dtype::F64)
    }

    /// One number of so many, of which blocks leave partial results of the same type.
    fn reduced(&self, elements: u64, dtype: Dtype) -> Tensor {
        let result = self.make(1, dtype);
        Reduction::whole(elements).with_partial(dtype.bytes()).run(self.gpu, self.name);
        result
    }

    /// Whether one of so many elements is not finite: the largest or the smallest.
    pub(super) fn is_broken(&self, elements: u64, dtype: Dtype) -> Tensor {
        let is_finite = || {
            let extreme = self.reduced(elements, dtype);
            self.is_finite(&extreme)
        };
        let (largest, smallest) = (is_finite(), is_finite());
        let both = self.flag();
        drop((largest, smallest));
        let neither = self.flag();
        drop(both);
        neither
    }

    /// The norm of all, from those of each, as the first two stages compute it: marked in place if it is not finite.
    pub(super) fn marked(&self, norms: Vec<Tensor>) -> Tensor {
        let count = norms.len() as u64;
        let squares = {
            let _stacked = self.make(count, Dtype::F64);
            self.make(count, Dtype::F64)
        };
        let sum = self.reduced(count, Dtype::F64);
        drop(squares);
        let rounded = self.number();
        drop(sum);
        let root = self.number();
        drop(rounded);
        drop(self.marks(self.dtype));
        release_list(norms);
        root
    }

    /// The norm of all, from those of each, as the third stage computes it.
    pub(super) fn all(&self, norms: Vec<Tensor>) -> Tensor {
        let sum = {
            let stacked = self.make(norms.len() as u64, Dtype::F64);
            let powers = self.gpu.like(&stacked, Role::Temporary, self.name);
            drop(stacked);
            let sum = self.number();
            drop(powers);
            sum
        };
        let root = self.number();
        let marks = self.marks(self.dtype);
        let chosen = {
            let _widened = self.number();
            self.number()
        };
        drop(root);
        drop(sum);
        release_list(norms);
        drop(marks);
        chosen
    }

    /// What stands in a norm's place if it is not finite: whether it is infinite, no number, or either, and the number in its place.
    fn marks(&self, dtype: Dtype) -> [Tensor; 4] {
        let is_infinite = {
            let _magnitude = self.make(1, dtype);
            self.flag()
        };
        [is_infinite, self.flag(), self.flag(), self.make(1, Dtype::F32)]
    }

    /// The norm of a gradient of so many elements that goes to the host: of so many at once (`_constant_buffered_norm2`).
    pub(super) fn on_the_way(&self, elements: u64, at_once: u64) -> Tensor {
        let mut sum = None;
        let mut left = elements;
        while left > 0 {
            let part = left.min(at_once);
            left -= part;
            let square = {
                let _norm = self.one(part);
                self.number()
            };
            sum.get_or_insert(square);
        }
        self.number()
    }

    /// The norm of all, from those of each, where the host updates the weights and adds up the norms
    /// (`complete_grad_norm_calculation_for_cpu_offload`).
    pub(super) fn all_on_host(&self, norms: usize) {
        let single = || self.make(1, Dtype::F32);
        let mut total = None;
        for _ in 0..norms {
            let _square = self.number();
            total.get_or_insert_with(|| self.number());
        }
        self.gpu.sync();
        let sum = single();
        let root = single();
        drop(total);
        drop(self.marks(Dtype::F32));
        self.gpu.sync();
        drop((root, sum));
    }

    /// The norm of all weights, from those of so many groups.
    pub(super) fn combined(&self, groups: usize) -> Tensor {
        let stacked = self.make(groups as u64, self.dtype);
        let invalid = self.is_invalid(&stacked);
        let combined = self.number();
        let infinite = self.number();
        let chosen = self.number();
        drop(infinite);
        drop((stacked, invalid, combined));
        chosen
    }

    /// Whether one of these norms is not finite or less than nothing.
    pub(super) fn is_invalid(&self, norms: &Tensor) -> Tensor {
        let flags = || self.make(norms.elements(), Dtype::U8);
        let finite = self.is_finite(norms);
        let not = flags();
        drop(finite);
        let is_negative = flags();
        let either = flags();
        drop((not, is_negative));
        let any = self.flag();
        drop(either);
        any
    }

    /// `isfinite`: whether numbers are themselves, and their magnitudes are not infinite.
    fn is_finite(&self, numbers: &Tensor) -> Tensor {
        let flags = || self.make(numbers.elements(), Dtype::U8);
        let magnitude = self.gpu.like(numbers, Role::Temporary, self.name);
        let is_bounded = flags();
        let is_number = flags();
        let both = flags();
        drop((is_number, is_bounded, magnitude));
        both
    }

    /// The factor that a group's gradients are clipped by, which is applied in place.
    pub(super) fn clip(&self) {
        // The norm over the scale, plus a little, over the limit, and at least one: each dies when the next is there.
        let mut factor = self.number();
        for _ in 0..3 {
            factor = self.number();
        }
        let scaled = self.number();
        let inverse = {
            let _reciprocal = self.number();
            self.number()
        };
        drop(inverse);
        drop((scaled, factor));
    }
}
