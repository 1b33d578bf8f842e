//! Repeating a run: one device logs every call and its answer, another answers from such a log.
//!
//! A strategy decides by its calls and the device's answers alone. So the same strategy, given the same calls and the
//! logged answers, makes the same device calls again, anywhere and without the first device; where it does not, the
//! first call that differs is known.

use crate::device::{AsyncSettings, CallKind, Device, DeviceInfo, Fence, Handle, Machine, MemoryInfo, Sync, Usage};
use crate::error::DeviceError;
use crate::holdings::Holdings;
use crate::request::StreamId;
use std::fmt;

/// A call of a strategy to its device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are the parameters of the calls named")]
pub enum Call {
    /// [`Device::malloc`]
    Malloc { size: u64 },
    /// [`Device::free`]
    Free { ptr: u64 },
    /// [`Device::reserve`]
    Reserve { size: u64 },
    /// [`Device::unreserve`]
    Unreserve { va: u64, size: u64 },
    /// [`Device::create`]
    Create { size: u64 },
    /// [`Device::release`]
    Release { handle: Handle },
    /// [`Device::map`]
    Map { va: u64, handles: Vec<Handle> },
    /// [`Device::unmap`]
    Unmap { va: u64, size: u64 },
    /// [`Device::fence`]
    Fence { stream: StreamId },
    /// [`Device::poll`]
    Poll { fence: Fence },
    /// [`Device::order_after`]
    OrderAfter { stream: StreamId, fence: Fence },
    /// [`Device::sync`]
    Sync { what: Sync },
    /// [`Device::memory_info`]
    MemoryInfo,
    /// [`Device::malloc_async`]
    MallocAsync { size: u64, stream: StreamId },
    /// [`Device::free_async`]
    FreeAsync { ptr: u64, stream: StreamId },
    /// [`Device::trim_async`]
    TrimAsync { keep: u64 },
    /// [`Device::configure_async`]
    ConfigureAsync { settings: AsyncSettings },
    /// [`Device::retired`]
    Retired { ptr: u64 },
}

/// What a call that succeeded was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// That it is done.
    Done,
    /// The address that [`Call::Malloc`], [`Call::Reserve`] or [`Call::MallocAsync`] got.
    Address(u64),
    /// What [`Call::Create`] got.
    Handle(Handle),
    /// What [`Call::Fence`] got.
    Fence(Fence),
    /// Whether the fence of [`Call::Poll`] was done.
    Poll(bool),
    /// What [`Call::MemoryInfo`] got.
    Memory(MemoryInfo),
}

/// A call and its outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The call.
    pub call: Call,
    /// Its outcome.
    pub answer: Result<Answer, DeviceError>,
}

/// The first call in which a played run differs from the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The number of calls that agreed.
    pub at: usize,
    /// The recorded step; `None` if the recording had come to its end.
    pub expected: Option<Step>,
    /// The call made instead; `None` if the run had come to its end.
    pub got: Option<Call>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device call {}: ", self.at)?;
        match &self.expected {
            Some(step) => write!(f, "the recording has {:?}", step.call)?,
            None => f.write_str("the recording has ended")?,
        }
        match &self.got {
            Some(call) => write!(f, ", the run made {call:?}"),
            None => f.write_str(", the run has ended"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Wraps a device and logs the calls of the strategy. Those of the harness (work, tickets) are passed on unlogged:
/// they come from the trace, and will come from it again.
#[derive(Clone, Debug)]
pub struct LogDevice<D> {
    inner: D,
    steps: Vec<Step>,
}

impl<D> LogDevice<D> {
    /// Starts an empty log.
    pub fn new(inner: D) -> LogDevice<D> {
        LogDevice { inner, steps: Vec::new() }
    }

    /// The log so far.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The log, without the device.
    pub fn into_steps(self) -> Vec<Step> {
        self.steps
    }

    fn log<T: Copy>(
        &mut self,
        call: Call,
        outcome: Result<T, DeviceError>,
        answer: fn(T) -> Answer,
    ) -> Result<T, DeviceError> {
        self.steps.push(Step { call, answer: outcome.map(answer) });
        outcome
    }

    fn log_done(&mut self, call: Call, outcome: Result<(), DeviceError>) -> Result<(), DeviceError> {
        self.log(call, outcome, |()| Answer::Done)
    }
}

impl<D: Device> Device for LogDevice<D> {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        let outcome = self.inner.malloc(size);
        self.log(Call::Malloc { size }, outcome, Answer::Address)
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        let outcome = self.inner.free(ptr);
        self.log_done(Call::Free { ptr }, outcome)
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        let outcome = self.inner.reserve(size);
        self.log(Call::Reserve { size }, outcome, Answer::Address)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let outcome = self.inner.unreserve(va, size);
        self.log_done(Call::Unreserve { va, size }, outcome)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        let outcome = self.inner.create(size);
        self.log(Call::Create { size }, outcome, Answer::Handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        let outcome = self.inner.release(handle);
        self.log_done(Call::Release { handle }, outcome)
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        let outcome = self.inner.map(va, handles);
        self.log_done(Call::Map { va, handles: handles.to_vec() }, outcome)
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let outcome = self.inner.unmap(va, size);
        self.log_done(Call::Unmap { va, size }, outcome)
    }

    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        let outcome = self.inner.malloc_async(size, stream);
        self.log(Call::MallocAsync { size, stream }, outcome, Answer::Address)
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        let outcome = self.inner.free_async(ptr, stream);
        self.log_done(Call::FreeAsync { ptr, stream }, outcome)
    }

    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        let outcome = self.inner.trim_async(keep);
        self.log_done(Call::TrimAsync { keep }, outcome)
    }

    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        let outcome = self.inner.configure_async(settings);
        self.log_done(Call::ConfigureAsync { settings }, outcome)
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        let outcome = self.inner.fence(stream);
        self.log(Call::Fence { stream }, outcome, Answer::Fence)
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        let outcome = self.inner.poll(fence);
        self.log(Call::Poll { fence }, outcome, Answer::Poll)
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        let outcome = self.inner.order_after(stream, fence);
        self.log_done(Call::OrderAfter { stream, fence }, outcome)
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        let outcome = self.inner.sync(what);
        self.log_done(Call::Sync { what }, outcome)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        let outcome = self.inner.memory_info();
        self.log(Call::MemoryInfo, outcome, Answer::Memory)
    }

    fn retired(&mut self, ptr: u64) {
        self.inner.retired(ptr);
        self.steps.push(Step { call: Call::Retired { ptr }, answer: Ok(Answer::Done) });
    }
}

impl<D: Machine> Machine for LogDevice<D> {
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        self.inner.work(stream, ns)
    }

    fn host_work(&mut self, ns: u64) {
        self.inner.host_work(ns);
    }

    fn complete(&mut self, ticket: u32) {
        self.inner.complete(ticket);
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

/// A device that answers from a recording.
///
/// A call that is not the next one of the recording is a [`Mismatch`]. The first one is kept; from then on there is
/// no memory, and no fence is ever done. Work and tickets have no effect, since the recording knows when fences were
/// done; it does not know times, so in [`Machine::usage`] they are 0.
#[derive(Clone, Debug)]
pub struct ScriptDevice {
    info: DeviceInfo,
    steps: Vec<Step>,
    at: usize,
    mismatch: Option<Mismatch>,
    held: Holdings,
    calls: [u64; CallKind::ALL.len()],
}

impl ScriptDevice {
    /// Answers from `steps`, as a device with the facts `info`.
    pub fn play(info: DeviceInfo, steps: Vec<Step>) -> ScriptDevice {
        let (held, calls) = (Holdings::default(), [0; CallKind::ALL.len()]);
        ScriptDevice { info, steps, at: 0, mismatch: None, held, calls }
    }

    /// The first disagreement so far.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        self.mismatch.as_ref()
    }

    /// Ends the run, which must have come to the end of the recording.
    pub fn finish(self) -> Result<(), Mismatch> {
        match self.mismatch {
            Some(mismatch) => Err(mismatch),
            None => match self.steps.get(self.at) {
                Some(step) => Err(Mismatch { at: self.at, expected: Some(step.clone()), got: None }),
                None => Ok(()),
            },
        }
    }

    /// The recorded outcome of a call. `read` takes the kind of answer that the call has.
    fn ask<T>(&mut self, call: Call, read: fn(Answer) -> Option<T>) -> Result<T, DeviceError> {
        if self.mismatch.is_some() {
            return Err(DeviceError::OutOfMemory);
        }
        let step = self.steps.get(self.at);
        let outcome = step.filter(|step| step.call == call).and_then(|step| step.answer.map(read).transpose());
        match outcome {
            Some(outcome) => {
                self.at += 1;
                outcome
            }
            None => {
                self.mismatch = Some(Mismatch { at: self.at, expected: step.cloned(), got: Some(call) });
                Err(DeviceError::OutOfMemory)
            }
        }
    }

    fn count(&mut self, kind: CallKind, calls: u64) {
        self.calls[kind as usize] += calls;
    }
}

fn done(answer: Answer) -> Option<()> {
    (answer == Answer::Done).then_some(())
}

fn address(answer: Answer) -> Option<u64> {
    if let Answer::Address(ptr) = answer { Some(ptr) } else { None }
}

impl Device for ScriptDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.count(CallKind::Malloc, 1);
        let ptr = self.ask(Call::Malloc { size }, address)?;
        self.held.malloc(ptr, size);
        Ok(ptr)
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        self.count(CallKind::Free, 1);
        self.ask(Call::Free { ptr }, done)?;
        self.held.free(ptr);
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.count(CallKind::Reserve, 1);
        self.ask(Call::Reserve { size }, address)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.count(CallKind::Unreserve, 1);
        self.ask(Call::Unreserve { va, size }, done)
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.count(CallKind::Create, 1);
        let read = |answer| if let Answer::Handle(handle) = answer { Some(handle) } else { None };
        let handle = self.ask(Call::Create { size }, read)?;
        self.held.create(handle, size);
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.count(CallKind::Release, 1);
        self.ask(Call::Release { handle }, done)?;
        self.held.release(handle);
        Ok(())
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        let outcome = self.ask(Call::Map { va, handles: handles.to_vec() }, done);
        self.count(CallKind::Map, if outcome.is_ok() { handles.len() as u64 } else { 1 });
        outcome?;
        self.held.map(va, handles);
        Ok(())
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let outcome = self.ask(Call::Unmap { va, size }, done);
        let mappings = if outcome.is_ok() { self.held.unmap(va, size) } else { 1 };
        self.count(CallKind::Unmap, mappings);
        outcome
    }

    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        self.count(CallKind::MallocAsync, 1);
        let ptr = self.ask(Call::MallocAsync { size, stream }, address)?;
        self.held.malloc(ptr, size);
        Ok(ptr)
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        self.count(CallKind::FreeAsync, 1);
        self.ask(Call::FreeAsync { ptr, stream }, done)?;
        self.held.free(ptr);
        Ok(())
    }

    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        self.count(CallKind::TrimAsync, 1);
        self.ask(Call::TrimAsync { keep }, done)
    }

    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        self.ask(Call::ConfigureAsync { settings }, done)
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.count(CallKind::Fence, 1);
        self.ask(Call::Fence { stream }, |answer| if let Answer::Fence(fence) = answer { Some(fence) } else { None })
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        self.count(CallKind::Poll, 1);
        let read = |answer| if let Answer::Poll(done) = answer { Some(done) } else { None };
        let outcome = self.ask(Call::Poll { fence }, read);
        if self.mismatch.is_some() { Ok(false) } else { outcome }
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.count(CallKind::OrderAfter, 1);
        self.ask(Call::OrderAfter { stream, fence }, done)
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.count(CallKind::Sync, 1);
        self.ask(Call::Sync { what }, done)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.count(CallKind::MemoryInfo, 1);
        self.ask(Call::MemoryInfo, |answer| if let Answer::Memory(info) = answer { Some(info) } else { None })
    }

    fn retired(&mut self, ptr: u64) {
        // A disagreement is kept in `mismatch`; there is nobody here to report it to.
        let _ = self.ask(Call::Retired { ptr }, done);
    }
}

impl Machine for ScriptDevice {
    fn work(&mut self, _stream: StreamId, _ns: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn host_work(&mut self, _ns: u64) {}

    fn complete(&mut self, _ticket: u32) {}

    fn usage(&self) -> Usage {
        let reserved = self.held.bytes();
        Usage { reserved, device_used: reserved, calls: self.calls, ..Usage::default() }
    }
}

#[cfg(test)]
mod tests;
