//! The device that strategies meet in the suite: a simulated one that can fail, seen through the suite's own books.

use super::memory::Memory;
use super::order::Order;
use super::{Broken, Rule};
use crate::device::{AsyncSettings, CallKind, Device, DeviceInfo, Fence, Handle, Machine, MemoryInfo, Sync};
use crate::error::DeviceError;
use crate::faults::FaultDevice;
use crate::request::StreamId;
use crate::sim::SimDevice;
use std::fmt;

/// Passes every call on and writes down what follows from it.
pub(super) struct Witness {
    device: FaultDevice<SimDevice>,
    pub memory: Memory,
    pub order: Order,
    /// The first rule that a device call broke since [`Witness::begin`].
    broken: Option<Broken>,
    /// Whether a call failed since [`Witness::begin`].
    refused: bool,
    /// Whether a planned failure came before the plan in force.
    failed_before: bool,
    /// Calls and answers since [`Witness::begin`], if they are wanted.
    log: Option<Vec<String>>,
}

impl Witness {
    pub(super) fn new(device: FaultDevice<SimDevice>) -> Witness {
        Witness {
            device,
            memory: Memory::default(),
            order: Order::new(),
            broken: None,
            refused: false,
            failed_before: false,
            log: None,
        }
    }

    /// Starts to keep calls and answers.
    pub(super) fn keep_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// Calls and answers since [`Witness::begin`].
    pub(super) fn log(&self) -> &[String] {
        self.log.as_deref().unwrap_or_default()
    }

    /// A call of the strategy follows.
    pub(super) fn begin(&mut self) {
        self.refused = false;
        if let Some(log) = &mut self.log {
            log.clear();
        }
    }

    /// Whether a device call failed since [`Witness::begin`].
    pub(super) fn refused(&self) -> bool {
        self.refused
    }

    /// The first rule that a device call broke since this was asked last.
    pub(super) fn verdict(&mut self) -> Result<(), Broken> {
        self.broken.take().map_or(Ok(()), Err)
    }

    /// From now on the `nth` call of `kind` fails, once. Replaces what was planned before.
    pub(super) fn plan(&mut self, kind: CallKind, nth: u64, error: DeviceError) {
        self.replace_plan(|device| device.fail_nth(kind, nth, error));
    }

    /// No call fails from now on but for a reason.
    pub(super) fn forget_plan(&mut self) {
        self.replace_plan(|device| device);
    }

    fn replace_plan(&mut self, plan: impl FnOnce(FaultDevice<SimDevice>) -> FaultDevice<SimDevice>) {
        self.failed_before = self.had_failure();
        let device = std::mem::replace(&mut self.device, FaultDevice::new(SimDevice::new(0)));
        self.device = plan(FaultDevice::new(device.into_inner()));
    }

    /// Whether a planned failure ever came.
    pub(super) fn had_failure(&self) -> bool {
        self.failed_before || self.device.failed() > 0
    }

    /// Queues a piece of work on a stream. Work on a ticket has no length, so the device does not hear of it.
    pub(super) fn work(&mut self, stream: StreamId, ns: u64) {
        self.order.work(stream);
        if stream.as_ticket().is_none() {
            // The simulated device refuses work on tickets only.
            let _ = self.device.work(stream, ns);
        }
    }

    pub(super) fn host_work(&mut self, ns: u64) {
        self.device.host_work(ns);
    }

    pub(super) fn complete(&mut self, ticket: u32) {
        self.device.complete(ticket);
    }

    /// Bytes that the device itself counts as taken: with what its pool has not got back.
    pub(super) fn taken(&self) -> u64 {
        self.device.usage().reserved
    }

    fn check(&mut self, verdict: Result<(), Broken>) {
        if let Err(broken) = verdict {
            self.broken.get_or_insert(broken);
        }
    }

    /// Notes the answer to a call.
    fn answer<T: fmt::Debug>(&mut self, call: fmt::Arguments<'_>, answer: &Result<T, DeviceError>) {
        if let Some(log) = &mut self.log {
            log.push(format!("{call} = {answer:x?}"));
        }
        if let Err(error) = answer {
            self.refused = true;
            if matches!(error, DeviceError::Invalid(_)) {
                let text = format!("the strategy called {call}, which makes no sense to the device");
                self.check(Err(Broken::new(Rule::DeviceCalls, text)));
            }
        }
    }
}

impl Device for Witness {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        let answer = self.device.malloc(size);
        self.answer(format_args!("malloc({size})"), &answer);
        if let Ok(ptr) = answer {
            self.memory.malloced(ptr, size);
        }
        answer
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        let answer = self.device.free(ptr);
        self.answer(format_args!("free({ptr:#x})"), &answer);
        if answer.is_ok() {
            self.order.saw_all();
            let verdict = self.memory.freed(ptr, &self.order);
            self.check(verdict);
        }
        answer
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        let answer = self.device.reserve(size);
        self.answer(format_args!("reserve({size})"), &answer);
        if let Ok(va) = answer {
            self.memory.reserved(va, size);
        }
        answer
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let answer = self.device.unreserve(va, size);
        self.answer(format_args!("unreserve({va:#x}, {size})"), &answer);
        if answer.is_ok() {
            self.memory.unreserved(va);
        }
        answer
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        let answer = self.device.create(size);
        self.answer(format_args!("create({size})"), &answer);
        if let Ok(handle) = answer {
            self.memory.created(handle, size);
        }
        answer
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        let answer = self.device.release(handle);
        self.answer(format_args!("release({})", handle.0), &answer);
        if answer.is_ok() {
            self.memory.released(handle);
        }
        answer
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        let answer = self.device.map(va, handles);
        self.answer(format_args!("map({va:#x}, {handles:?})"), &answer);
        if answer.is_ok() {
            self.memory.mapped(va, handles);
        }
        answer
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let answer = self.device.unmap(va, size);
        self.answer(format_args!("unmap({va:#x}, {size})"), &answer);
        if answer.is_ok() {
            let verdict = self.memory.unmapped(va, size, &self.order);
            self.check(verdict);
        }
        answer
    }

    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        let answer = self.device.malloc_async(size, stream);
        self.answer(format_args!("malloc_async({size}, {stream})"), &answer);
        if let Ok(ptr) = answer {
            self.memory.malloced(ptr, size);
        }
        answer
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        let answer = self.device.free_async(ptr, stream);
        self.answer(format_args!("free_async({ptr:#x}, {stream})"), &answer);
        if answer.is_ok() {
            let verdict = self.memory.freed_on(ptr, stream, &self.order);
            self.check(verdict);
        }
        answer
    }

    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        let answer = self.device.trim_async(keep);
        self.answer(format_args!("trim_async({keep})"), &answer);
        answer
    }

    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        let answer = self.device.configure_async(settings);
        self.answer(format_args!("configure_async({settings:?})"), &answer);
        answer
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        let answer = self.device.fence(stream);
        self.answer(format_args!("fence({stream})"), &answer);
        if let Ok(fence) = answer {
            self.order.fenced(fence);
        }
        answer
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        let answer = self.device.poll(fence);
        self.answer(format_args!("poll({}:{})", fence.stream, fence.seq), &answer);
        if answer == Ok(true) {
            self.order.saw(fence);
        }
        answer
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        let answer = self.device.order_after(stream, fence);
        self.answer(format_args!("order_after({stream}, {}:{})", fence.stream, fence.seq), &answer);
        if answer.is_ok() {
            self.order.order_after(stream, fence);
        }
        answer
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        let answer = self.device.sync(what);
        self.answer(format_args!("sync({what:?})"), &answer);
        if answer.is_ok() {
            match what {
                Sync::Fence(fence) => self.order.saw(fence),
                Sync::Stream(stream) => self.order.saw_stream(stream),
                Sync::Device => self.order.saw_all(),
            }
        }
        answer
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        let answer = self.device.memory_info();
        self.answer(format_args!("memory_info()"), &answer);
        answer
    }

    fn retired(&mut self, ptr: u64) {
        self.device.retired(ptr);
    }
}
