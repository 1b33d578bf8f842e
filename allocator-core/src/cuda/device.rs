//! The device `cuda`: every call of a strategy becomes calls of the driver, timed.

use super::card::Card;
use super::driver::{self, Answer, Code, Physical, Pool, PoolAttribute, Stream};
use super::streams::{Refusal, Streams};
use crate::device::{AsyncSettings, CallKind, Device, DeviceInfo, Fence, Handle, Machine, MemoryInfo, Sync, Usage};
use crate::error::DeviceError;
use crate::page_table::PageTable;
use crate::request::StreamId;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

/// Threads of a block of the kernels.
const THREADS: u32 = 256;
/// Blocks of a launch at most: enough to fill a card.
const BLOCKS: u64 = 1024;
/// Checks whose results wait on the card at most.
const CHECKS: usize = 1 << 14;
/// Words of a check's result.
const RESULT: usize = 3;

/// Memory of a card, taken and given back through the driver.
///
/// Used on the thread that made it, where the card's context is current. Requests are checked against the device's own
/// books first, so that a strategy's mistake is [`DeviceError::Invalid`] here as on the simulated device.
#[derive(Debug)]
pub struct CudaDevice {
    card: Arc<Card>,
    total: u64,
    /// Keeps the card's memory beyond the capacity away from the strategy.
    ballast: Option<Physical>,
    /// Free bytes before the strategy took any; `None` while nobody wants to know what the driver sees.
    free_at_start: Option<u64>,
    device_used: u64,
    mallocs: BTreeMap<u64, u64>,
    malloc_bytes: u64,
    ranges: BTreeMap<u64, u64>,
    table: PageTable,
    physical: BTreeMap<Handle, Physical>,
    next_handle: u64,
    pool: Option<Pool>,
    pool_blocks: BTreeMap<u64, u64>,
    streams: Streams,
    results: Option<u64>,
    checks: Vec<u64>,
    calls: [u64; CallKind::ALL.len()],
    call_ns: [u64; CallKind::ALL.len()],
    start: Instant,
    not_send: PhantomData<*const ()>,
}

/// A check that found something else than the pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatched {
    /// The number that [`CudaDevice::check`] was given for it.
    pub tag: u64,
    /// How many words were wrong.
    pub words: u64,
    /// One of them, counted from the block's first.
    pub index: u64,
    /// What it held: `block << 40 | index` if another block's pattern is there.
    pub found: u64,
}

impl CudaDevice {
    /// Takes `capacity` bytes of a card into use; without a number, all that is free. The rest is kept from the strategy.
    pub fn new(card: Arc<Card>, capacity: Option<u64>) -> Result<CudaDevice, DeviceError> {
        let failed = |code: Code| fault(CallKind::MemoryInfo, code);
        driver::set_context(card.context).map_err(failed)?;
        let (free, total) = driver::memory_info().map_err(failed)?;
        let excess = (free as u64).saturating_sub(capacity.unwrap_or(u64::MAX)) / card.granularity * card.granularity;
        let ballast = match excess {
            0 => None,
            _ => Some(driver::create(card.device, excess as usize).map_err(|code| fault(CallKind::Create, code))?),
        };
        Ok(CudaDevice {
            card,
            total: capacity.unwrap_or(total as u64),
            ballast,
            free_at_start: None,
            device_used: 0,
            mallocs: BTreeMap::new(),
            malloc_bytes: 0,
            ranges: BTreeMap::new(),
            table: PageTable::default(),
            physical: BTreeMap::new(),
            next_handle: 1,
            pool: None,
            pool_blocks: BTreeMap::new(),
            streams: Streams::default(),
            results: None,
            checks: Vec::new(),
            calls: [0; CallKind::ALL.len()],
            call_ns: [0; CallKind::ALL.len()],
            start: Instant::now(),
            not_send: PhantomData,
        })
    }

    /// From now on asks the driver what the card lost after every call that moves memory. This takes time, which is
    /// not counted as the strategy's.
    pub fn watch_memory(&mut self) -> Result<(), DeviceError> {
        let (free, _) = driver::memory_info().map_err(|code| fault(CallKind::MemoryInfo, code))?;
        self.free_at_start = Some(free as u64);
        Ok(())
    }

    /// Writes the pattern of `block` (below 2²⁴) over a live block's memory, in the order of `stream`.
    pub fn fill(&mut self, stream: StreamId, ptr: u64, size: u64, block: u64) -> Result<(), DeviceError> {
        let stream = self.driver_stream(stream)?;
        driver::launch(self.card.fill, blocks(size), THREADS, stream, &mut [ptr, size, block]).map_err(work_failed)
    }

    /// Compares the memory with the pattern of `block`, in the order of `stream`. The result comes from
    /// [`CudaDevice::take_mismatches`], under `tag`.
    pub fn check(
        &mut self,
        stream: StreamId,
        ptr: u64,
        size: u64,
        block: u64,
        tag: u64,
    ) -> Result<Vec<Mismatched>, DeviceError> {
        let early = if self.checks.len() == CHECKS { self.take_mismatches()? } else { Vec::new() };
        let results = match self.results {
            Some(results) => results,
            None => {
                let results = driver::malloc(CHECKS * RESULT * 8).map_err(work_failed)?;
                self.results = Some(results);
                self.clear_results(results)?;
                results
            }
        };
        let result = results + (self.checks.len() * RESULT * 8) as u64;
        self.checks.push(tag);
        let stream = self.driver_stream(stream)?;
        driver::launch(self.card.check, blocks(size), THREADS, stream, &mut [ptr, size, block, result])
            .map_err(work_failed)?;
        Ok(early)
    }

    /// Waits for all checks so far; those that found something wrong.
    pub fn take_mismatches(&mut self) -> Result<Vec<Mismatched>, DeviceError> {
        let Some(results) = self.results else { return Ok(Vec::new()) };
        driver::synchronize().map_err(work_failed)?;
        let mut words = vec![0; self.checks.len() * RESULT];
        driver::read(results, &mut words).map_err(work_failed)?;
        let checks = std::mem::take(&mut self.checks);
        self.clear_results(results)?;
        let found = checks.into_iter().zip(words.chunks(RESULT)).filter(|(_, result)| result[0] > 0);
        Ok(found
            .map(|(tag, result)| Mismatched { tag, words: result[0], index: result[1], found: result[2] })
            .collect())
    }

    fn clear_results(&self, results: u64) -> Result<(), DeviceError> {
        let cleared = driver::fill(results, 0, CHECKS * RESULT * 8, Stream::DEFAULT);
        cleared.and_then(|()| driver::synchronize()).map_err(work_failed)
    }

    fn driver_stream(&mut self, stream: StreamId) -> Result<Stream, DeviceError> {
        self.streams.stream(stream).map_err(|refusal| refused(CallKind::Fence, refusal))
    }

    /// Makes driver calls that count as `count` calls of a kind.
    fn timed<T>(
        &mut self,
        kind: CallKind,
        count: u64,
        run: impl FnOnce(&mut Self) -> Answer<T>,
    ) -> Result<T, DeviceError> {
        let start = Instant::now();
        let answer = run(self);
        self.charge(kind, count, start);
        answer.map_err(|code| fault(kind, code))
    }

    /// The same for calls on streams.
    fn queued<T>(
        &mut self,
        kind: CallKind,
        run: impl FnOnce(&mut Streams) -> Result<T, Refusal>,
    ) -> Result<T, DeviceError> {
        let start = Instant::now();
        let answer = run(&mut self.streams);
        self.charge(kind, 1, start);
        answer.map_err(|refusal| refused(kind, refusal))
    }

    fn charge(&mut self, kind: CallKind, count: u64, start: Instant) {
        self.calls[kind as usize] += count;
        self.call_ns[kind as usize] += start.elapsed().as_nanos() as u64;
    }

    /// A call that the books refuse.
    fn invalid<T>(&mut self, kind: CallKind) -> Result<T, DeviceError> {
        self.calls[kind as usize] += 1;
        Err(DeviceError::Invalid(kind))
    }

    /// Memory may have moved.
    fn look(&mut self) {
        if let Some(start) = self.free_at_start
            && let Ok((free, _)) = driver::memory_info()
        {
            self.device_used = start.saturating_sub(free as u64);
        }
    }

    fn pool(&mut self) -> Result<Pool, DeviceError> {
        if let Some(pool) = self.pool {
            return Ok(pool);
        }
        if !self.card.stream_ordered {
            return Err(DeviceError::Unsupported(CallKind::MallocAsync));
        }
        let pool = driver::create_pool(self.card.device).map_err(|code| fault(CallKind::MallocAsync, code))?;
        self.pool = Some(pool);
        Ok(pool)
    }

    fn pool_bytes(&self) -> u64 {
        let reserved = |pool| driver::pool_bytes(pool, PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        self.pool.and_then(|pool| reserved(pool).ok()).unwrap_or(0)
    }

    /// Gives everything back. Errors mean a broken context, which goes as a whole.
    fn give_back(&mut self) {
        let _ = driver::set_context(self.card.context).and_then(|()| driver::synchronize());
        for ptr in std::mem::take(&mut self.pool_blocks).into_keys() {
            let _ = driver::pool_free(ptr, Stream::DEFAULT);
        }
        let _ = driver::synchronize();
        if let Some(pool) = self.pool.take() {
            let _ = driver::destroy_pool(pool);
        }
        for ptr in std::mem::take(&mut self.mallocs).into_keys().chain(self.results.take()) {
            let _ = driver::free(ptr);
        }
        for (va, size) in self.table.up_to(u64::MAX) {
            let _ = driver::unmap(va, size as usize);
        }
        self.table = PageTable::default();
        for handle in std::mem::take(&mut self.physical).into_values().chain(self.ballast.take()) {
            let _ = driver::release(handle);
        }
        for (va, size) in std::mem::take(&mut self.ranges) {
            let _ = driver::unreserve(va, size as usize);
        }
        self.streams.destroy();
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn fault(call: CallKind, code: Code) -> DeviceError {
    if code == Code::OUT_OF_MEMORY {
        DeviceError::OutOfMemory
    } else {
        DeviceError::Driver { call, code: code.number() }
    }
}

/// Launches and copies of the harness have no kind of call; the error names the wait for them.
fn work_failed(code: Code) -> DeviceError {
    fault(CallKind::Sync, code)
}

fn refused(kind: CallKind, refusal: Refusal) -> DeviceError {
    match refusal {
        Refusal::Unknown => DeviceError::Invalid(kind),
        Refusal::Driver(code) => fault(kind, code),
    }
}

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            total: self.total,
            alignment: 512,
            granularity: self.card.granularity,
            virtual_memory: self.card.virtual_memory,
            stream_ordered: self.card.stream_ordered,
        }
    }

    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        if size == 0 {
            return self.invalid(CallKind::Malloc);
        }
        let ptr = self.timed(CallKind::Malloc, 1, |_| driver::malloc(size as usize))?;
        self.mallocs.insert(ptr, size);
        self.malloc_bytes += size;
        self.look();
        Ok(ptr)
    }

    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        let Some(size) = self.mallocs.get(&ptr).copied() else { return self.invalid(CallKind::Free) };
        self.timed(CallKind::Free, 1, |_| driver::free(ptr))?;
        self.mallocs.remove(&ptr);
        self.malloc_bytes -= size;
        self.look();
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        if !is_multiple(size, self.card.granularity) {
            return self.invalid(CallKind::Reserve);
        }
        let va = self.timed(CallKind::Reserve, 1, |_| driver::reserve(size as usize))?;
        self.ranges.insert(va, size);
        Ok(va)
    }

    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        if self.ranges.get(&va) != Some(&size) || self.table.has_mapping(va, va + size) {
            return self.invalid(CallKind::Unreserve);
        }
        self.timed(CallKind::Unreserve, 1, |_| driver::unreserve(va, size as usize))?;
        self.ranges.remove(&va);
        Ok(())
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        if !is_multiple(size, self.card.granularity) {
            return self.invalid(CallKind::Create);
        }
        let device = self.card.device;
        let physical = self.timed(CallKind::Create, 1, |_| driver::create(device, size as usize))?;
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.table.create(handle, size);
        self.physical.insert(handle, physical);
        self.look();
        Ok(handle)
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        let Some(&physical) = self.physical.get(&handle) else { return self.invalid(CallKind::Release) };
        self.timed(CallKind::Release, 1, |_| driver::release(physical))?;
        self.physical.remove(&handle);
        self.table.release(handle);
        self.look();
        Ok(())
    }

    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        let sizes: Option<Vec<(Physical, u64)>> = handles
            .iter()
            .map(|handle| Some((*self.physical.get(handle)?, self.table.size(std::slice::from_ref(handle))?)))
            .collect();
        let room = self.ranges.range(..=va).next_back().and_then(|(start, size)| (start + size).checked_sub(va));
        let size = self.table.size(handles);
        let (Some(sizes), Some(size)) = (sizes, size) else { return self.invalid(CallKind::Map) };
        let is_free = va.checked_add(size).is_some_and(|end| !self.table.has_mapping(va, end));
        if room.is_none_or(|room| room < size) || !is_free || !va.is_multiple_of(self.card.granularity) {
            return self.invalid(CallKind::Map);
        }
        let device = self.card.device;
        self.timed(CallKind::Map, handles.len() as u64, |_| {
            let mut mapped = 0;
            let mut result = Ok(());
            for &(physical, size) in &sizes {
                result = driver::map(va + mapped, size as usize, physical);
                if result.is_err() {
                    break;
                }
                mapped += size;
            }
            let result = result.and_then(|()| driver::set_access(va, size as usize, device));
            if result.is_err() && mapped > 0 {
                let _ = driver::unmap(va, mapped as usize);
            }
            result
        })?;
        self.table.map(va, handles);
        Ok(())
    }

    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        let Some(mappings) = self.table.mappings(va, size) else { return self.invalid(CallKind::Unmap) };
        self.timed(CallKind::Unmap, mappings, |_| driver::unmap(va, size as usize))?;
        self.table.unmap(va, size);
        self.look();
        Ok(())
    }

    fn malloc_async(&mut self, size: u64, stream: StreamId) -> Result<u64, DeviceError> {
        let pool = self.pool()?;
        if size == 0 {
            return self.invalid(CallKind::MallocAsync);
        }
        let stream = self.driver_stream(stream)?;
        let ptr = self.timed(CallKind::MallocAsync, 1, |_| driver::pool_malloc(pool, size as usize, stream))?;
        self.pool_blocks.insert(ptr, size);
        self.look();
        Ok(ptr)
    }

    fn free_async(&mut self, ptr: u64, stream: StreamId) -> Result<(), DeviceError> {
        if !self.pool_blocks.contains_key(&ptr) {
            return self.invalid(CallKind::FreeAsync);
        }
        let stream = self.driver_stream(stream)?;
        self.timed(CallKind::FreeAsync, 1, |_| driver::pool_free(ptr, stream))?;
        self.pool_blocks.remove(&ptr);
        self.look();
        Ok(())
    }

    fn trim_async(&mut self, keep: u64) -> Result<(), DeviceError> {
        let pool = self.pool()?;
        self.timed(CallKind::TrimAsync, 1, |_| driver::trim_pool(pool, keep as usize))?;
        self.look();
        Ok(())
    }

    fn configure_async(&mut self, settings: AsyncSettings) -> Result<(), DeviceError> {
        let pool = self.pool()?;
        let flag = |attribute, value| driver::set_pool_flag(pool, attribute, value);
        let threshold = settings.release_threshold;
        driver::set_pool_bytes(pool, PoolAttribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, threshold)
            .and_then(|()| {
                flag(PoolAttribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, settings.follow_event_dependencies)
            })
            .and_then(|()| flag(PoolAttribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, settings.opportunistic))
            .and_then(|()| {
                flag(PoolAttribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, settings.internal_dependencies)
            })
            .map_err(|code| fault(CallKind::MallocAsync, code))
    }

    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.queued(CallKind::Fence, |streams| streams.fence(stream))
    }

    fn poll(&mut self, fence: Fence) -> Result<bool, DeviceError> {
        self.queued(CallKind::Poll, |streams| streams.poll(fence))
    }

    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.queued(CallKind::OrderAfter, |streams| streams.order_after(stream, fence))
    }

    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.queued(CallKind::Sync, |streams| match what {
            Sync::Fence(fence) => streams.wait_fence(fence),
            Sync::Stream(stream) => streams.wait_stream(stream),
            Sync::Device => streams.wait_all().map_err(Refusal::from),
        })?;
        self.look();
        Ok(())
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        let (free, _) = self.timed(CallKind::MemoryInfo, 1, |_| driver::memory_info())?;
        Ok(MemoryInfo { free: free as u64, total: self.total })
    }
}

/// Blocks of a launch over `size` bytes: a word for each thread, and more only where the card is full.
fn blocks(size: u64) -> u32 {
    (size / 8).div_ceil(u64::from(THREADS)).clamp(1, BLOCKS) as u32
}

fn is_multiple(size: u64, granularity: u64) -> bool {
    size > 0 && size.is_multiple_of(granularity)
}

impl Machine for CudaDevice {
    fn work(&mut self, stream: StreamId, ns: u64) -> Result<(), DeviceError> {
        let stream = self.driver_stream(stream)?;
        driver::launch(self.card.spin, 1, 1, stream, &mut [ns]).map_err(work_failed)
    }

    /// The host is kept busy: sleeping is not exact enough.
    fn host_work(&mut self, ns: u64) {
        let start = Instant::now();
        while (start.elapsed().as_nanos() as u64) < ns {
            std::hint::spin_loop();
        }
    }

    fn complete(&mut self, ticket: u32) {
        self.streams.complete(StreamId::ticket(ticket));
    }

    fn usage(&self) -> Usage {
        let reserved = self.malloc_bytes + self.table.bytes() + self.pool_bytes();
        Usage {
            reserved,
            device_used: if self.free_at_start.is_some() { self.device_used } else { reserved },
            calls: self.calls,
            call_ns: self.call_ns,
            now_ns: self.start.elapsed().as_nanos() as u64,
        }
    }
}
