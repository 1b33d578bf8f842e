//! The device as a job sees it: it counts slots and writes down what happens.

use super::graph::GraphState;
use super::label::{Labels, Name, Role};
use super::sink::{Batch, Sink, Totals};
use super::storage::{Dtype, Storage, Tensor};
use crate::trace::{Event, PoolOp};
use allocator_core::{PoolId, StreamId};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Full batches that may wait for the sink.
const WAITING: usize = 4;

/// A handle to the device. Clones are the same device.
#[derive(Clone)]
pub struct Gpu(Rc<Inner>);

struct Inner {
    state: RefCell<State>,
    stream: Cell<StreamId>,
    pool: Cell<PoolId>,
    /// Set by the sink's side, too.
    is_stopped: Arc<AtomicBool>,
    is_muted: Cell<bool>,
    is_over: Cell<bool>,
    is_backward: Cell<bool>,
    kept: RefCell<Vec<(Kept, Rc<Storage>)>>,
    graph: GraphState,
}

/// What a library made once for a thread and a stream: which of its buffers, whether the thread is the backward pass's, and the stream.
type Kept = (&'static str, bool, StreamId);

struct State {
    batch: Batch,
    /// `None` when the job is over: what owns the device may own itself, so nobody waits for it to go.
    to_sink: Option<SyncSender<Batch>>,
    empty: Receiver<Batch>,
    labels: Labels,
    texts: u32,
    free_slots: BinaryHeap<Reverse<u32>>,
    allocated: u64,
    max_allocated: u64,
    totals: Totals,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gpu")
    }
}

/// How long the sink is left alone while a job makes nothing.
const SILENCE: Duration = Duration::from_millis(100);

/// Runs a job on a thread of its own and hands its events to `sink` as they come.
pub fn run(job: impl FnOnce(&Gpu) + Send, sink: &mut dyn Sink) -> Totals {
    let (to_sink, batches) = sync_channel(WAITING);
    let (give_back, empty) = sync_channel(WAITING + 2);
    let is_stopped = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let stop = is_stopped.clone();
        let generator = scope.spawn(move || {
            let gpu = Gpu::new(to_sink, empty, stop);
            // Graphs may own each other and with them the device, so that nobody's drop closes the channel.
            let ended = catch_unwind(AssertUnwindSafe(|| job(&gpu)));
            let totals = gpu.finish();
            ended.map(|()| totals)
        });
        loop {
            let goes_on = match batches.recv_timeout(SILENCE) {
                Ok(batch) => {
                    let goes_on = sink.take(&batch);
                    // The generator is over when nobody waits for empty batches.
                    let _ = give_back.try_send(batch);
                    goes_on
                }
                Err(RecvTimeoutError::Timeout) => sink.goes_on(),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if !goes_on {
                is_stopped.store(true, Ordering::Relaxed);
                break;
            }
        }
        // A job that waits for room is told that there is nobody left.
        drop(batches);
        match generator.join() {
            Ok(Ok(totals)) => totals,
            Ok(Err(panic)) | Err(panic) => resume_unwind(panic),
        }
    })
}

impl Gpu {
    fn new(to_sink: SyncSender<Batch>, empty: Receiver<Batch>, is_stopped: Arc<AtomicBool>) -> Gpu {
        let state = State {
            batch: Batch::default(),
            to_sink: Some(to_sink),
            empty,
            labels: Labels::default(),
            texts: 0,
            free_slots: BinaryHeap::new(),
            allocated: 0,
            max_allocated: 0,
            totals: Totals { streams: 1, ..Totals::default() },
        };
        Gpu(Rc::new(Inner {
            state: RefCell::new(state),
            stream: Cell::new(StreamId::DEFAULT),
            pool: Cell::new(PoolId::DEFAULT),
            is_stopped,
            is_muted: Cell::new(false),
            is_over: Cell::new(false),
            is_backward: Cell::new(false),
            kept: RefCell::default(),
            graph: GraphState::default(),
        }))
    }

    /// The process ends here: what still lives is freed by nobody.
    pub fn exit(&self) {
        self.0.is_over.set(true);
    }

    /// Sends what is left.
    fn finish(self) -> Totals {
        let mut state = self.0.state.borrow_mut();
        self.send(&mut state);
        state.to_sink = None;
        let mut totals = std::mem::take(&mut state.totals);
        totals.is_cut = self.is_stopped();
        totals
    }

    fn send(&self, state: &mut State) {
        if state.batch.events.is_empty() {
            return;
        }
        if self.is_stopped() {
            // Nobody wants it, and what a job does until it looks must not pile up.
            state.batch.clear(state.texts, state.labels.count());
            return;
        }
        let mut next = state.empty.try_recv().unwrap_or_default();
        next.clear(state.texts, state.labels.count());
        let full = std::mem::replace(&mut state.batch, next);
        state.totals.events += full.events.len() as u64;
        if state.to_sink.as_ref().is_none_or(|sink| sink.send(full).is_err()) {
            self.0.is_stopped.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    fn push(&self, state: &mut State, event: Event) {
        state.batch.events.push(event);
        if state.batch.events.len() >= Batch::EVENTS {
            self.send(state);
        }
    }

    /// Writes an event down.
    pub fn event(&self, event: Event) {
        if !self.0.is_muted.get() {
            self.push(&mut self.0.state.borrow_mut(), event);
        }
    }

    /// Whether nobody takes the events any more. Jobs look between iterations and end.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Relaxed)
    }

    pub(super) fn graph(&self) -> &GraphState {
        &self.0.graph
    }

    /// Makes a name for labels.
    pub fn name(&self, text: &str) -> Name {
        self.0.state.borrow_mut().labels.name(text)
    }

    /// Allocates bytes on the current stream and from the current pool.
    #[inline]
    pub fn storage(&self, bytes: u64, role: Role, name: Name) -> Rc<Storage> {
        if bytes == 0 || self.0.is_muted.get() {
            return Storage::new(self.clone(), None, 0);
        }
        let state = &mut *self.0.state.borrow_mut();
        let slot = match state.free_slots.pop() {
            Some(Reverse(slot)) => slot,
            None => {
                state.totals.slots += 1;
                state.totals.slots - 1
            }
        };
        state.allocated = state.allocated.saturating_add(bytes);
        state.max_allocated = state.max_allocated.max(state.allocated);
        let label = state.labels.number(role, name, &mut state.batch.new_labels);
        state.batch.labels.push(label);
        self.push(state, Event::Alloc { slot, size: bytes, stream: self.0.stream.get(), pool: self.0.pool.get() });
        Storage::new(self.clone(), Some(slot), bytes)
    }

    pub(super) fn free(&self, slot: u32, bytes: u64) {
        if self.0.is_over.get() {
            return;
        }
        let state = &mut *self.0.state.borrow_mut();
        state.allocated = state.allocated.saturating_sub(bytes);
        state.free_slots.push(Reverse(slot));
        self.push(state, Event::Free { slot, ticket: None });
    }

    /// The most bytes that lived at a time so far: `max_memory_allocated`.
    pub fn max_allocated(&self) -> u64 {
        self.0.state.borrow().max_allocated
    }

    /// A tensor of its own memory, without a graph.
    #[inline]
    pub fn tensor(&self, elements: u64, dtype: Dtype, role: Role, name: Name) -> Tensor {
        Tensor::new(self.storage(elements * dtype.bytes(), role, name), elements, dtype)
    }

    /// A tensor like another one: as many elements of the same type.
    pub fn like(&self, other: &Tensor, role: Role, name: Name) -> Tensor {
        self.tensor(other.elements(), other.dtype(), role, name)
    }

    /// A tensor without memory: what stands for a weight whose memory comes and goes, and is owned elsewhere.
    pub fn hollow(&self, elements: u64, dtype: Dtype) -> Tensor {
        Tensor::new(Storage::new(self.clone(), None, 0), elements, dtype)
    }

    /// Memory that an operation needs while it runs.
    pub fn scratch(&self, bytes: u64, role: Role, name: Name) {
        drop(self.storage(bytes, role, name));
    }

    /// Memory that a library takes at its first use on a stream, by the forward or the backward thread, and keeps.
    pub fn keep(&self, what: &'static str, bytes: u64) {
        let key = (what, self.0.is_backward.get(), self.stream());
        if self.0.kept.borrow().iter().any(|(kept, _)| *kept == key) || self.0.is_muted.get() {
            return;
        }
        let name = self.name(what);
        let storage = self.storage(bytes, Role::Workspace, name);
        self.0.kept.borrow_mut().push((key, storage));
    }

    /// Gives back what libraries keep.
    pub fn drop_kept(&self) {
        let kept = self.0.kept.take();
        drop(kept);
    }

    pub(super) fn in_backward<T>(&self, body: impl FnOnce() -> T) -> T {
        let before = self.0.is_backward.replace(true);
        let result = body();
        self.0.is_backward.set(before);
        result
    }

    /// Runs `body` so that what it makes has no memory: a model on the meta device.
    pub fn without_memory<T>(&self, body: impl FnOnce() -> T) -> T {
        self.set_muted(true);
        let result = body();
        self.set_muted(false);
        result
    }

    /// Whether anything is written down. What is allocated meanwhile is not there.
    pub(super) fn set_muted(&self, is_muted: bool) {
        self.0.is_muted.set(is_muted);
    }

    /// The stream that allocations are made on.
    pub fn stream(&self) -> StreamId {
        self.0.stream.get()
    }

    /// Runs `body` with another current stream.
    pub fn on_stream<T>(&self, stream: StreamId, body: impl FnOnce() -> T) -> T {
        {
            let totals = &mut self.0.state.borrow_mut().totals;
            totals.streams = totals.streams.max(stream.0 + 1);
        }
        let before = self.0.stream.replace(stream);
        let result = body();
        self.0.stream.set(before);
        result
    }

    /// The tensor is also used on `stream`: `record_stream`.
    pub fn record_stream(&self, tensor: &Tensor, stream: StreamId) {
        if let Some(slot) = tensor.storage().slot() {
            self.event(Event::Use { slot, stream });
        }
    }

    /// Work of so many nanoseconds on the current stream.
    pub fn work(&self, ns: u64) {
        self.event(Event::Work { stream: self.stream(), ns });
    }

    /// The current stream waits for all that `on` has queued.
    pub fn wait_for(&self, on: StreamId) {
        self.event(Event::Wait { stream: self.stream(), on });
    }

    /// The host waits for the device, as when it reads a loss.
    pub fn sync(&self) {
        self.event(Event::Sync { stream: None });
    }

    /// The host waits for the current stream, as when it needs a number that is computed there.
    pub fn sync_stream(&self) {
        self.event(Event::Sync { stream: Some(self.stream()) });
    }

    /// The host is busy elsewhere for so many nanoseconds.
    pub fn host(&self, ns: u64) {
        self.event(Event::Host { ns });
    }

    /// `empty_cache`.
    pub fn empty_cache(&self) {
        self.event(Event::Empty { pool: None });
    }

    /// A marker, such as `iteration 3`.
    pub fn mark(&self, text: impl Into<String>) {
        let state = &mut *self.0.state.borrow_mut();
        let number = state.texts;
        state.texts += 1;
        state.batch.texts.push(text.into());
        self.push(state, Event::Mark { text: number });
    }

    /// A call on a private pool; numbers are given by the job, from 1 on without gaps.
    pub fn pool_call(&self, op: PoolOp, pool: PoolId) {
        {
            let totals = &mut self.0.state.borrow_mut().totals;
            totals.pools = totals.pools.max(pool.0);
        }
        self.event(Event::Pool { op, pool });
    }

    /// Runs `body` with allocations from a private pool, between its `begin` and `end`.
    pub fn in_pool<T>(&self, pool: PoolId, body: impl FnOnce() -> T) -> T {
        self.pool_call(PoolOp::Begin, pool);
        let before = self.0.pool.replace(pool);
        let result = body();
        self.0.pool.set(before);
        self.pool_call(PoolOp::End, pool);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Parameter;

    struct Nobody {
        asked: u32,
    }

    impl Sink for Nobody {
        fn take(&mut self, _batch: &Batch) -> bool {
            true
        }

        fn goes_on(&mut self) -> bool {
            self.asked += 1;
            self.asked < 3
        }
    }

    #[test]
    #[should_panic(expected = "a bug of the job")]
    fn a_job_that_panics_is_over() {
        let job = |gpu: &Gpu| {
            // The library's memory owns the device, which owns it.
            gpu.keep("library", 512);
            let name = gpu.name("weight");
            let weight = Parameter::trained(gpu, gpu.tensor(1, Dtype::F32, Role::Parameter, name), name);
            drop(weight);
            panic!("a bug of the job");
        };
        run(job, &mut Nobody { asked: 0 });
    }

    #[test]
    fn a_job_that_makes_nothing_can_be_ended() {
        let job = |gpu: &Gpu| {
            while !gpu.is_stopped() {
                thread::sleep(Duration::from_millis(1));
            }
        };
        let mut sink = Nobody { asked: 0 };
        assert!(run(job, &mut sink).is_cut);
        assert_eq!(sink.asked, 3);
    }
}
