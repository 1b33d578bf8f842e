//! A strategy that does nothing: what is left of a measurement when the allocator is taken away.
//!
//! Its time is printed beside every measured row, so that nobody mistakes the harness's own cost for an allocator's.
//! It hands out one address again and again, and therefore is no strategy that anyone could select.

use allocator_core::{AllocError, Block, Control, ControlError, Device, FreeError, Request, Span, Strategy, StreamId};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl Strategy for Null {
    #[inline]
    fn allocate(&mut self, _: &mut dyn Device, _: Request) -> Result<Block, AllocError> {
        Ok(Block::empty())
    }

    #[inline]
    fn free(&mut self, _: &mut dyn Device, _: Block) -> Result<(), FreeError> {
        Ok(())
    }

    #[inline]
    fn record_stream(&mut self, _: &mut dyn Device, _: &Block, _: StreamId) -> Result<(), AllocError> {
        Ok(())
    }

    fn trim(&mut self, _: &mut dyn Device, _: u64) -> Result<u64, AllocError> {
        Ok(0)
    }

    fn control(&mut self, _: &mut dyn Device, _: Control<'_>) -> Result<(), ControlError> {
        Ok(())
    }

    fn inspect(&self, _: &mut dyn FnMut(Span)) {}
}
