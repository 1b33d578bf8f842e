//! The calls that are measured, and their times.
//!
//! Every round makes each call once in each size, and rounds are repeated: what disturbs the machine for a while then
//! disturbs all sizes alike. The device itself takes the times.

use allocator_core::{CallKind, DeviceError, Handle, Machine, StreamId, Sync};
use std::collections::BTreeMap;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Requests of less than a driver page.
const SMALL: [u64; 5] = [512, 4 * KIB, 64 * KIB, 512 * KIB, MIB];
/// Requests of `malloc` from a page on.
const LARGE: [u64; 12] =
    [2 * MIB, 4 * MIB, 8 * MIB, 20 * MIB, 64 * MIB, 128 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB, 8 * GIB];
/// Physical memory in one handle.
const VIRTUAL: [u64; 9] = [2 * MIB, 4 * MIB, 20 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB];
/// Addresses without memory: strategies reserve more than a card has.
const ADDRESSES: [u64; 3] = [16 * GIB, 64 * GIB, 256 * GIB];
/// Handles of these sizes are mapped together, in one call about this many bytes.
const PIECES: [u64; 3] = [2 * MIB, 20 * MIB, 64 * MIB];
const WHOLE: u64 = GIB;
/// Requests of one size are held until they are so many bytes, or so many.
const HELD: u64 = GIB;
const MOST_HELD: u64 = 8;
/// Calls on streams are made so many times in a row: strategies make them by the thousand, and the first is the slowest.
const IN_A_ROW: usize = 32;
/// Rounds with calls that fail, which may take a quarter of a second each.
const FAILING_ROUNDS: u64 = 5;

/// What was called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct What {
    /// The name: that of a [`CallKind`], with what is special about the call.
    pub(super) call: &'static str,
    /// Bytes of all handles, or of the request.
    pub(super) bytes: u64,
    /// How many handles.
    pub(super) pieces: u64,
}

/// Nanoseconds of every sample.
pub(super) type Samples = BTreeMap<What, Vec<u64>>;

/// Makes all calls on an idle device, `rounds` times after a round for warming up. Sizes that would not fit into
/// the device's memory with ease are left out.
pub(super) fn measure(dev: &mut impl Machine, rounds: u64) -> Result<Samples, DeviceError> {
    let free = dev.memory_info()?.free;
    let mut bench = Bench { dev, samples: Samples::new(), fits: free / 4 };
    for round in 0..=rounds {
        bench.within_pages()?;
        bench.whole_pages()?;
        bench.virtual_memory()?;
        bench.pieces()?;
        bench.streams()?;
        if round < FAILING_ROUNDS {
            bench.failures()?;
        }
        if round == 0 {
            bench.samples.clear();
        }
    }
    Ok(bench.samples)
}

struct Bench<'a, M> {
    dev: &'a mut M,
    samples: Samples,
    /// The largest request that is made.
    fits: u64,
}

impl<M: Machine> Bench<'_, M> {
    /// Makes a call; what it answers, and the nanoseconds that it took by the device's own clock.
    fn clocked<T>(&mut self, kind: CallKind, call: impl FnOnce(&mut M) -> T) -> (T, u64) {
        let before = self.dev.usage().call_ns[kind as usize];
        let answer = call(self.dev);
        (answer, self.dev.usage().call_ns[kind as usize] - before)
    }

    fn keep(&mut self, call: &'static str, bytes: u64, pieces: u64, ns: u64) {
        self.samples.entry(What { call, bytes, pieces }).or_default().push(ns);
    }

    /// Makes a call and keeps its time under the name of its kind.
    fn time<T>(
        &mut self,
        kind: CallKind,
        bytes: u64,
        pieces: u64,
        call: impl FnOnce(&mut M) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let (answer, ns) = self.clocked(kind, call);
        self.keep(kind.name(), bytes, pieces, ns);
        answer
    }

    fn free_bytes(&mut self) -> Result<u64, DeviceError> {
        Ok(self.time(CallKind::MemoryInfo, 0, 1, M::memory_info)?.free)
    }

    /// Makes a call about less than a page, and sees from the card's memory whether a page came or went with it.
    fn small<T>(
        &mut self,
        kind: CallKind,
        names: [&'static str; 2],
        size: u64,
        call: impl FnOnce(&mut M) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let before = self.free_bytes()?;
        let (answer, ns) = self.clocked(kind, call);
        let moved = self.free_bytes()? != before;
        self.keep(names[usize::from(!moved)], size, 1, ns);
        answer
    }

    /// Small requests, once alone and once beside a neighbour that keeps their page.
    fn within_pages(&mut self) -> Result<(), DeviceError> {
        // What came before may have left the driver with something to do.
        let ptr = self.dev.malloc(512)?;
        self.dev.free(ptr)?;
        for has_neighbour in [false, true] {
            let neighbour = if has_neighbour { Some(self.dev.malloc(512)?) } else { None };
            for size in SMALL {
                let ptr =
                    self.small(CallKind::Malloc, ["malloc", "malloc_within_page"], size, |dev| dev.malloc(size))?;
                self.small(CallKind::Free, ["free", "free_within_page"], size, |dev| dev.free(ptr))?;
            }
            if let Some(ptr) = neighbour {
                self.dev.free(ptr)?;
            }
        }
        Ok(())
    }

    /// Several in a row, as when a strategy grows: then most need new addresses too.
    fn whole_pages(&mut self) -> Result<(), DeviceError> {
        let fits = self.fits;
        for size in LARGE.into_iter().filter(|&size| size <= fits) {
            let mut ptrs = Vec::new();
            for _ in 0..(HELD / size).clamp(1, MOST_HELD) {
                ptrs.push(self.time(CallKind::Malloc, size, 1, |dev| dev.malloc(size))?);
            }
            for ptr in ptrs {
                self.time(CallKind::Free, size, 1, |dev| dev.free(ptr))?;
            }
        }
        Ok(())
    }

    fn virtual_memory(&mut self) -> Result<(), DeviceError> {
        if !self.dev.info().virtual_memory {
            return Ok(());
        }
        let handle = self.dev.create(VIRTUAL[0])?;
        self.dev.release(handle)?;
        let fits = self.fits;
        for size in VIRTUAL.into_iter().filter(|&size| size <= fits) {
            let va = self.time(CallKind::Reserve, size, 1, |dev| dev.reserve(size))?;
            let handle = self.time(CallKind::Create, size, 1, |dev| dev.create(size))?;
            self.time(CallKind::Map, size, 1, |dev| dev.map(va, &[handle]))?;
            self.time(CallKind::Unmap, size, 1, |dev| dev.unmap(va, size))?;
            self.time(CallKind::Release, size, 1, |dev| dev.release(handle))?;
            self.time(CallKind::Unreserve, size, 1, |dev| dev.unreserve(va, size))?;
        }
        for size in ADDRESSES {
            let va = self.time(CallKind::Reserve, size, 1, |dev| dev.reserve(size))?;
            self.time(CallKind::Unreserve, size, 1, |dev| dev.unreserve(va, size))?;
        }
        Ok(())
    }

    /// Many handles in one call.
    fn pieces(&mut self) -> Result<(), DeviceError> {
        if !self.dev.info().virtual_memory || WHOLE > self.fits {
            return Ok(());
        }
        for piece in PIECES {
            let count = WHOLE.div_ceil(piece);
            let size = count * piece;
            let va = self.dev.reserve(size)?;
            let handles: Vec<Handle> = (0..count).map(|_| self.dev.create(piece)).collect::<Result<_, _>>()?;
            self.time(CallKind::Map, size, count, |dev| dev.map(va, &handles))?;
            self.time(CallKind::Unmap, size, count, |dev| dev.unmap(va, size))?;
            for handle in handles {
                self.dev.release(handle)?;
            }
            self.dev.unreserve(va, size)?;
        }
        Ok(())
    }

    /// Events and waits, on streams with nothing queued.
    fn streams(&mut self) -> Result<(), DeviceError> {
        let [first, second] = [StreamId(1), StreamId(2)];
        // Work that is done is still looked up at the driver, once for each fence.
        let mut fences = Vec::new();
        for _ in 0..IN_A_ROW {
            fences.push(self.time(CallKind::Fence, 0, 1, |dev| dev.fence(first))?);
        }
        self.sync("sync_device", Sync::Device)?;
        for &fence in &fences {
            self.time(CallKind::Poll, 0, 1, |dev| dev.poll(fence))?;
        }
        fences.clear();
        for _ in 0..IN_A_ROW {
            fences.push(self.time(CallKind::Fence, 0, 1, |dev| dev.fence(first))?);
        }
        self.sync("sync_stream", Sync::Stream(first))?;
        for &fence in &fences {
            self.time(CallKind::OrderAfter, 0, 1, |dev| dev.order_after(second, fence))?;
        }
        self.dev.sync(Sync::Device)?;
        self.sync("sync_event", Sync::Fence(fences[0]))
    }

    fn sync(&mut self, name: &'static str, what: Sync) -> Result<(), DeviceError> {
        // What was queued before is not this call's to wait for.
        self.dev.sync(Sync::Device)?;
        let (answer, ns) = self.clocked(CallKind::Sync, |dev| dev.sync(what));
        self.keep(name, 0, 1, ns);
        answer
    }

    /// Requests that no device can serve, and one that this device just cannot.
    fn failures(&mut self) -> Result<(), DeviceError> {
        let granularity = self.dev.info().granularity;
        let more_than_free = self.dev.memory_info()?.free / granularity * granularity + granularity;
        for size in [more_than_free, 1 << 45] {
            let (answer, ns) = self.clocked(CallKind::Malloc, |dev| dev.malloc(size));
            match answer {
                Ok(ptr) => self.dev.free(ptr)?,
                Err(_) => self.keep("malloc_failed", size, 1, ns),
            }
            if !self.dev.info().virtual_memory {
                continue;
            }
            let (answer, ns) = self.clocked(CallKind::Create, |dev| dev.create(size));
            match answer {
                Ok(handle) => self.dev.release(handle)?,
                Err(_) => self.keep("create_failed", size, 1, ns),
            }
        }
        Ok(())
    }
}
