//! One lock around it all, for callers with several threads.

use super::AddressIndex;
use crate::device::Device;
use crate::error::{AllocError, ControlError, FreeFailure};
use crate::request::{Request, StreamId};
use crate::strategy::{Control, Strategy};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Something behind a lock. Around an [`AddressIndex`] it has the methods of that, by shared reference.
///
/// A thread that panics while it holds the lock does not take the others down: strategies are left usable by every
/// error, and refusing all further frees would turn one thread's failure into a leak of everything.
#[derive(Debug, Default)]
pub struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    /// Puts `inner` behind a lock.
    pub const fn new(inner: T) -> Locked<T> {
        Locked(Mutex::new(inner))
    }

    /// Holds the lock for more than one call.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Strategy> Locked<AddressIndex<S>> {
    /// See [`AddressIndex::allocate`].
    #[inline]
    pub fn allocate(&self, dev: &mut dyn Device, req: Request) -> Result<u64, AllocError> {
        self.lock().allocate(dev, req)
    }

    /// See [`AddressIndex::free`].
    #[inline]
    pub fn free(&self, dev: &mut dyn Device, ptr: u64) -> Result<(), FreeFailure> {
        self.lock().free(dev, ptr)
    }

    /// See [`AddressIndex::record_stream`].
    #[inline]
    pub fn record_stream(&self, dev: &mut dyn Device, ptr: u64, stream: StreamId) -> Result<(), AllocError> {
        self.lock().record_stream(dev, ptr, stream)
    }

    /// See [`AddressIndex::trim`].
    #[inline]
    pub fn trim(&self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        self.lock().trim(dev, keep)
    }

    /// See [`AddressIndex::control`].
    #[inline]
    pub fn control(&self, dev: &mut dyn Device, what: Control<'_>) -> Result<(), ControlError> {
        self.lock().control(dev, what)
    }
}
