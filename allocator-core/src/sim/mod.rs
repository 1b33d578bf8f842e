//! A simulated device: memory that can run out, page tables, and a clock, on any machine.
//!
//! It answers as a card would, deterministically: addresses depend on the calls alone, time is modelled from a
//! [`Profile`] and from the work that was queued.

mod arena;
mod chunks;
mod clock;
mod maxima;
mod ordered;
mod pages;
mod profile;
mod steps;
#[cfg(test)]
mod tests;

pub use profile::{Cost, Measured, Packing, Profile, Residual};

use crate::device::{AsyncSettings, CallKind, Device, DeviceInfo, Fence, Handle, Machine, MemoryInfo, Sync, Usage};
use crate::error::DeviceError;
use crate::request::StreamId;
use arena::Arena;
use clock::Clock;
use ordered::Pool;
use pages::Pages;

/// The simulated device.
///
/// `malloc` gives the addresses that a card gives (see `arena`); requests under 2 MiB share pages. A call that finds no
/// memory has a cost of its own, other failed calls cost their base. `free` waits for the work queued on all streams, but
/// does not end tickets: when those end is known only to the recording they come from. Waiting for a ticket with `sync`
/// does end it. The stream-ordered calls are for tests ([`SimDevice::with_stream_ordered`]).
#[derive(Clone, Debug)]
pub struct SimDevice {
    capacity: u64,
    profile: Profile,
    arena: Arena,
    pages: Pages,
    pool: Option<Pool>,
    clock: Clock,
    calls: [u64; CallKind::ALL.len()],
    call_ns: [u64; CallKind::ALL.len()],
}

impl SimDevice {
    /// A device of `capacity` bytes with the built-in call costs.
    pub fn new(capacity: u64) -> SimDevice {
        SimDevice::with_profile(capacity, Profile::default())
    }

    /// A device of `capacity` bytes with the call costs of `profile`.
    pub fn with_profile(capacity: u64, profile: Profile) -> SimDevice {
        SimDevice {
            capacity,
            profile,
            arena: Arena::default(),
            pages: Pages::default(),
            pool: None,
            clock: Clock::default(),
            calls: [0; CallKind::ALL.len()],
            call_ns: [0; CallKind::ALL.len()],
        }
    }

    /// The device with the stream-ordered calls, for tests of what strategies do with them. It holds them to the order
    /// of streams, but says nothing about a card's driver: its calls cost nothing, each block has memory of its own, which
    /// goes back when its stream has come to the free, and the pool's settings have no effect.
    pub fn with_stream_ordered(self) -> SimDevice {
        SimDevice { pool: Some(Pool::default()), ..self }
    }

    /// The call costs in force.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Whether every byte of the range is memory: allocated by `malloc`, or mapped. An empty range always is.
    pub fn holds(&self, ptr: u64, size: u64) -> bool {
        let Some(end) = ptr.checked_add(size) else { return false };
        size == 0 || covers(self.arena.up_to(end - 1), ptr, end) || covers(self.pages.up_to(end - 1), ptr, end)
    }

    fn device_used(&self) -> u64 {
        self.arena.used() + self.pages.created()
    }

    fn left(&self) -> u64 {
        self.capacity - self.device_used()
    }

    /// Counts `calls` calls that are about `bytes` bytes together, and lets their cost pass on the host.
    fn charge(&mut self, kind: CallKind, calls: u64, bytes: u64) {
        self.calls[kind as usize] += calls;
        self.spend(kind, self.profile.cost(kind).total_ns(calls, bytes));
    }

    /// Charges a call that neither takes a driver page nor gives one back.
    fn charge_within_page(&mut self, kind: CallKind) {
        self.calls[kind as usize] += 1;
        self.spend(kind, self.profile.within_page.total_ns(1, 0));
    }

    fn spend(&mut self, kind: CallKind, ns: u64) {
        self.clock.pass(ns);
        let total = &mut self.call_ns[kind as usize];
        *total = total.saturating_add(ns);
    }

    /// Takes memory back whose free was reached.
    fn collect(&mut self) {
        while let Some(ptr) = self.pool.as_mut().and_then(|pool| pool.next_reached(&mut self.clock)) {
            self.arena.give(ptr);
        }
    }

    /// Charges a call about `bytes` bytes by its outcome.
    fn charged<T>(&mut self, kind: CallKind, bytes: u64, outcome: Result<T, DeviceError>) -> Result<T, DeviceError> {
        let refused = match kind {
            CallKind::Malloc => Some(self.profile.malloc_failed),
            CallKind::Create => Some(self.profile.create_failed),
            _ => None,
        };
        match refused.filter(|_| outcome.as_ref().err() == Some(&DeviceError::OutOfMemory)) {
            Some(cost) => {
                self.calls[kind as usize] += 1;
                self.spend(kind, cost.total_ns(1, bytes));
            }
            None => self.charge(kind, 1, if outcome.is_ok() { bytes } else { 0 }),
        }
        outcome
    }

    /// Books the time that the host waits in `wait` on `kind`.
    fn waiting<T>(&mut self, kind: CallKind, wait: impl FnOnce(&mut Clock) -> T) -> T {
        let before = self.clock.now();
        let answer = wait(&mut self.clock);
        let total = &mut self.call_ns[kind as usize];
        *total = total.saturating_add(self.clock.now() - before);
        answer
    }
}

/// Whether pieces, given by falling address, cover `from..to` without a hole.
fn covers(pieces: impl Iterator<Item = (u64, u64)>, from: u64, to: u64) -> bool {
    let mut lowest = to;
    for (start, size) in pieces {
        if start + size < lowest {
            return false;
        }
        lowest = start;
        if lowest <= from {
            return true;
        }
    }
    false
}

impl Device for SimDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            total: self.capacity,
            alignment: arena::STEP,
            granularity: arena::PAGE,
            virtual_memory: true,
            stream_ordered: self.pool.is_some(),
        }
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        let outcome = match size {
            0 => Err(DeviceError::Invalid(CallKind::Malloc)),
            _ => {
                let used = self.arena.used();
                let outcome = self.arena.take(size, self.left()).ok_or(DeviceError::OutOfMemory);
                if outcome.is_ok() && self.arena.used() == used {
                    self.charge_within_page(CallKind::Malloc);
                    return outcome;
                }
                outcome
            }
        };
        self.charged(CallKind::Malloc, size, outcome)
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        let used = self.arena.used();
        let is_of_pool = self.pool.as_ref().is_some_and(|pool| pool.has(ptr));
        match if is_of_pool { None } else { self.arena.give(ptr) } {
            Some(size) => {
                self.waiting(CallKind::Free, Clock::wait_idle);
                if self.arena.used() == used {
                    self.charge_within_page(CallKind::Free);
                } else {
                    self.charge(CallKind::Free, 1, size);
                }
                Ok(())
            }
            None => self.charged(CallKind::Free, 0, Err(DeviceError::Invalid(CallKind::Free))),
        }
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        let outcome = self.pages.reserve(size);
        self.charged(CallKind::Reserve, size, outcome)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let outcome = self.pages.unreserve(va, size);
        self.charged(CallKind::Unreserve, size, outcome)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        let outcome = self.pages.create(size, self.left());
        self.charged(CallKind::Create, size, outcome)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        let outcome = self.pages.release(handle);
        let bytes = *outcome.as_ref().unwrap_or(&0);
        self.charged(CallKind::Release, bytes, outcome.map(drop))
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        let outcome = self.pages.map(va, handles);
        if let Ok(bytes) = outcome {
            self.charge(CallKind::Map, handles.len() as u64, bytes);
            return Ok(());
        }
        self.charged(CallKind::Map, 0, outcome.map(drop))
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        match self.pages.unmap(va, size) {
            Ok(mappings) => {
                self.charge(CallKind::Unmap, mappings, size);
                Ok(())
            }
            Err(error) => self.charged(CallKind::Unmap, 0, Err(error)),
        }
    }

    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        self.collect();
        let left = self.left();
        let outcome = match &mut self.pool {
            None => return Err(DeviceError::Unsupported(CallKind::MallocAsync)),
            Some(_) if size == 0 || stream.as_ticket().is_some() => Err(DeviceError::Invalid(CallKind::MallocAsync)),
            Some(pool) => self.arena.take(size, left).inspect(|&ptr| pool.take(ptr)).ok_or(DeviceError::OutOfMemory),
        };
        self.charged(CallKind::MallocAsync, size, outcome)
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        let outcome = match &mut self.pool {
            None => return Err(DeviceError::Unsupported(CallKind::FreeAsync)),
            Some(pool) if stream.as_ticket().is_none() && pool.is_live(ptr) => {
                pool.give(ptr, self.clock.fence(stream));
                Ok(())
            }
            Some(_) => Err(DeviceError::Invalid(CallKind::FreeAsync)),
        };
        self.charged(CallKind::FreeAsync, 0, outcome)
    }

    fn trim_async(&mut self, _keep: u64) -> Result<(), DeviceError> {
        if self.pool.is_none() {
            return Err(DeviceError::Unsupported(CallKind::TrimAsync));
        }
        self.collect();
        self.charged(CallKind::TrimAsync, 0, Ok(()))
    }

    fn configure_async(&mut self, _settings: AsyncSettings) -> Result<(), DeviceError> {
        if self.pool.is_some() { Ok(()) } else { Err(DeviceError::Unsupported(CallKind::MallocAsync)) }
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.charge(CallKind::Fence, 1, 0);
        Ok(self.clock.fence(stream))
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        self.charge(CallKind::Poll, 1, 0);
        self.clock.poll(fence).ok_or(DeviceError::Invalid(CallKind::Poll))
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.charge(CallKind::OrderAfter, 1, 0);
        self.clock.order_after(stream, fence)
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.charge(CallKind::Sync, 1, 0);
        let known = self.waiting(CallKind::Sync, |clock| match what {
            Sync::Fence(fence) => clock.wait_fence(fence),
            Sync::Stream(stream) => {
                clock.wait_stream(stream);
                true
            }
            Sync::Device => {
                clock.wait_all();
                true
            }
        });
        self.collect();
        if known { Ok(()) } else { Err(DeviceError::Invalid(CallKind::Sync)) }
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.charge(CallKind::MemoryInfo, 1, 0);
        Ok(MemoryInfo { free: self.left(), total: self.capacity })
    }
}

impl Machine for SimDevice {
    /// A ticket's work has no known length, so none can be queued on it; there being no kind of call for work, the
    /// error names the fence, the only use of a ticket.
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        if self.clock.work(stream, ns) { Ok(()) } else { Err(DeviceError::Invalid(CallKind::Fence)) }
    }

    fn host_work(&mut self, ns: u64) {
        self.clock.pass(ns);
    }

    fn complete(&mut self, ticket: u32) {
        self.clock.complete(StreamId::ticket(ticket));
    }

    fn usage(&self) -> Usage {
        Usage {
            reserved: self.arena.asked() + self.pages.created(),
            device_used: self.device_used(),
            calls: self.calls,
            call_ns: self.call_ns,
            now_ns: self.clock.now(),
        }
    }
}
