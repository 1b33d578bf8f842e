//! Runs the command programs of the golden file on the strategy, over a device that behaves like the stub CUDA
//! runtime the file was recorded on.

use allocator_core::{
    AllocError, Block, Control, Device, DeviceError, DeviceInfo, Fence, Handle, MemoryInfo, PoolId, Request, SimDevice,
    Span, Strategy, StreamId, Sync,
};
use std::collections::BTreeMap;
use strategy_caching::{Caching, Settings};

/// Where `cudaMalloc` and address reservations start on the stub, as `M+` and `E+` in the file.
const MALLOC_BASE: u64 = 0x7000_0000_0000;
const RESERVE_BASE: u64 = 0x6000_0000_0000;

/// The oracle's short names of statistics, and their names in `memory_stats()`.
pub const STATS: [(&str, &str); 16] = [
    ("alloc", "allocation.all.current"),
    ("allocB", "allocated_bytes.all.current"),
    ("resB", "reserved_bytes.all.current"),
    ("actB", "active_bytes.all.current"),
    ("act", "active.all.current"),
    ("inact", "inactive_split.all.current"),
    ("inactB", "inactive_split_bytes.all.current"),
    ("reqB", "requested_bytes.all.current"),
    ("seg", "segment.all.current"),
    ("retries", "num_alloc_retries"),
    ("ooms", "num_ooms"),
    ("sync", "num_sync_all_streams"),
    ("ndev+", "num_device_alloc"),
    ("ndev-", "num_device_free"),
    ("ovA", "oversize_allocations.current"),
    ("ovS", "oversize_segments.current"),
];

/// An event: action, address, size, stream handle, pool pair.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Event {
    pub action: String,
    pub addr: String,
    pub size: u64,
    pub stream: u64,
    pub pool: (u64, u64),
}

/// What the stub's `cudaMalloc` rounds to.
const PAGE: u64 = 2 << 20;

/// The simulated device with the addresses of the stub, one switch for all events, and a log of what was asked of it.
struct Stub {
    sim: SimDevice,
    ready: bool,
    log: Vec<(&'static str, u64, u64)>,
    /// Size of each segment and its address on the simulated device.
    segments: BTreeMap<u64, (u64, u64)>,
    pages: BTreeMap<Handle, u64>,
}

impl Stub {
    /// The lowest address at which the stub has room.
    fn first_fit(&self, size: u64) -> u64 {
        let mut at = MALLOC_BASE;
        for (&ptr, &(taken, _)) in &self.segments {
            if ptr - at >= size.next_multiple_of(PAGE) {
                break;
            }
            at = ptr + taken.next_multiple_of(PAGE);
        }
        at
    }
}

impl Device for Stub {
    fn info(&self) -> DeviceInfo {
        self.sim.info()
    }
    fn malloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        let there = self.sim.malloc(size)?;
        let ptr = self.first_fit(size);
        self.segments.insert(ptr, (size, there));
        self.log.push(("segment_alloc", ptr, size));
        Ok(ptr)
    }
    fn free(&mut self, ptr: u64) -> Result<(), DeviceError> {
        let (size, there) = self.segments[&ptr];
        self.log.push(("segment_free", ptr, size));
        self.sim.free(there)?;
        self.segments.remove(&ptr);
        Ok(())
    }
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.sim.reserve(size)
    }
    fn unreserve(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.sim.unreserve(va, size)
    }
    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        let handle = self.sim.create(size)?;
        self.pages.insert(handle, size);
        Ok(handle)
    }
    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.sim.release(handle)
    }
    fn map(&mut self, va: u64, handles: &[Handle]) -> Result<(), DeviceError> {
        self.sim.map(va, handles)?;
        self.log.push(("segment_map", va, handles.iter().map(|handle| self.pages[handle]).sum()));
        Ok(())
    }
    fn unmap(&mut self, va: u64, size: u64) -> Result<(), DeviceError> {
        self.log.push(("segment_unmap", va, size));
        self.sim.unmap(va, size)
    }
    fn fence(&mut self, stream: StreamId) -> Result<Fence, DeviceError> {
        self.sim.fence(stream)
    }
    fn poll(&mut self, _fence: Fence) -> Result<bool, DeviceError> {
        Ok(self.ready)
    }
    fn order_after(&mut self, stream: StreamId, fence: Fence) -> Result<(), DeviceError> {
        self.sim.order_after(stream, fence)
    }
    fn sync(&mut self, what: Sync) -> Result<(), DeviceError> {
        self.sim.sync(what)
    }
    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.sim.memory_info()
    }
    fn retired(&mut self, ptr: u64) {
        self.log.push(("free_completed", ptr, 0));
    }
}

/// What is known of an allocation by its name in the program.
struct Live {
    block: Block,
    requested: u64,
    stream: u64,
    pool: (u64, u64),
}

/// The strategy at the end of a program of commands.
pub struct Runner {
    dev: Stub,
    strategy: Caching,
    total: u64,
    /// Raw handles, ascending; a stream's number is its position.
    streams: Vec<u64>,
    pools: Vec<(u64, u64)>,
    open: Vec<PoolId>,
    live: BTreeMap<String, Live>,
    /// Freed and not yet completed, by address: requested bytes, stream, pool.
    pending: BTreeMap<u64, (u64, u64, (u64, u64))>,
    /// Stream and pool of each segment or mapped range.
    owners: BTreeMap<u64, (u64, (u64, u64))>,
}

fn shown(addr: u64) -> String {
    match addr {
        Block::EMPTY_PTR => "0".to_owned(),
        MALLOC_BASE.. => format!("M+{}", addr - MALLOC_BASE),
        RESERVE_BASE.. => format!("E+{}", addr - RESERVE_BASE),
        _ => addr.to_string(),
    }
}

impl Runner {
    /// `streams` are the raw handles that the program will name.
    pub fn new(total: u64, mut streams: Vec<u64>) -> Runner {
        streams.push(0);
        streams.sort_unstable();
        streams.dedup();
        let dev = Stub {
            sim: SimDevice::new(total),
            ready: true,
            log: Vec::new(),
            segments: BTreeMap::new(),
            pages: BTreeMap::new(),
        };
        let strategy = Caching::with_settings(Settings::default(), &dev.info()).expect("default settings");
        Runner {
            dev,
            strategy,
            total,
            streams,
            pools: vec![(0, 0)],
            open: Vec::new(),
            live: BTreeMap::new(),
            pending: BTreeMap::new(),
            owners: BTreeMap::new(),
        }
    }

    fn stream(&self, hex: &str) -> (u64, StreamId) {
        let raw = u64::from_str_radix(hex, 16).expect("a hexadecimal stream");
        (raw, StreamId(self.streams.binary_search(&raw).expect("a stream named beforehand") as u32))
    }

    fn pool(&mut self, cmd: &[&str]) -> PoolId {
        let pair = (cmd[1].parse().expect("a number"), cmd[2].parse().expect("a number"));
        let at = self.pools.iter().position(|&known| known == pair).unwrap_or_else(|| {
            self.pools.push(pair);
            self.pools.len() - 1
        });
        PoolId(at as u32)
    }

    /// Runs a command. Returns its events, and for an allocation its address or the error.
    pub fn run(&mut self, cmd: &[&str]) -> (Vec<Event>, Option<Result<String, AllocError>>) {
        let mut before = Vec::new();
        let mut result = None;
        let mut last = None;
        match cmd[0] {
            "a" => {
                let (raw, stream) = self.stream(cmd[3]);
                let size: u64 = cmd[2].parse().expect("bytes");
                let pool = self.open.last().copied().unwrap_or(PoolId::DEFAULT);
                let pair = self.pools[pool.0 as usize];
                let outcome = self.strategy.allocate(&mut self.dev, Request::new(size, stream).in_pool(pool));
                result = Some(match outcome {
                    Ok(block) => {
                        let addr = shown(block.ptr());
                        if !block.is_empty() {
                            // An overflow pool may have served it.
                            let pool = self.owner_of(block.ptr()).map_or(pair, |(_, pool)| pool);
                            last = Some(self.event("alloc", block.ptr(), size, raw, pool));
                            let live = Live { block, requested: size, stream: raw, pool };
                            self.live.insert(cmd[1].to_owned(), live);
                        }
                        Ok(addr)
                    }
                    Err(error) => {
                        if error == AllocError::OutOfMemory {
                            let free = self.dev.sim.memory_info().expect("the stub's free bytes").free;
                            let rounded = self.strategy.settings().round(size);
                            last = Some(self.event("oom", free, rounded, raw, pair));
                        }
                        Err(error)
                    }
                });
            }
            "f" => {
                for id in &cmd[1..] {
                    let Some(Live { block, requested, stream, pool }) = self.live.remove(*id) else { continue };
                    let ptr = block.ptr();
                    self.strategy.free(&mut self.dev, block).expect("a live block");
                    before.push(self.event("free_requested", ptr, requested, stream, pool));
                    let mut waits = false;
                    self.strategy.inspect(&mut |span: Span| {
                        waits |= span.ptr == ptr && span.state == allocator_core::SpanState::Pending;
                    });
                    if waits {
                        self.pending.insert(ptr, (requested, stream, pool));
                    } else {
                        before.push(self.event("free_completed", ptr, requested, stream, pool));
                    }
                }
            }
            "r" => {
                let (_, stream) = self.stream(cmd[2]);
                if let Some(live) = self.live.get(cmd[1]) {
                    self.strategy.record_stream(&mut self.dev, &live.block, stream).expect("a live block");
                }
            }
            "ev" => self.dev.ready = cmd[1] == "1",
            "empty" => {
                self.strategy.trim(&mut self.dev, 0).expect("the stub does not fail");
            }
            "conf" => self.control(Control::Settings(cmd[1])),
            "frac" => {
                let fraction: f64 = cmd[1].parse().expect("a fraction");
                let limit = (fraction < 1.0).then_some((fraction * self.total as f64) as u64);
                self.control(Control::Limit(limit));
            }
            "mkpool" | "begin" | "end" | "release" | "emptypool" | "nosplit" | "useoom" => {
                let pool = self.pool(cmd);
                self.control(match cmd[0] {
                    "mkpool" => Control::PoolCreate(pool),
                    "begin" => Control::PoolBegin(pool),
                    "end" => Control::PoolEnd(pool),
                    "release" => Control::PoolRelease(pool),
                    "emptypool" => Control::PoolEmpty(pool),
                    "nosplit" => Control::PoolNoSplit(pool),
                    _ => Control::PoolUseOnOom(pool),
                });
                match cmd[0] {
                    "begin" => self.open.push(pool),
                    "end" => self.open.retain(|&open| open != pool),
                    _ => {}
                }
            }
            "s" => {}
            other => panic!("unknown command {other}"),
        }
        let log = std::mem::take(&mut self.dev.log);
        let events = before.into_iter().chain(log.into_iter().map(|entry| self.logged(entry))).chain(last);
        (events.collect(), result)
    }

    fn control(&mut self, what: Control<'_>) {
        if let Err(error) = self.strategy.control(&mut self.dev, what) {
            panic!("{what:?}: {error}");
        }
    }

    fn event(&self, action: &str, addr: u64, size: u64, stream: u64, pool: (u64, u64)) -> Event {
        Event { action: action.to_owned(), addr: shown(addr), size, stream, pool }
    }

    /// Stream and pool of the span at an address, as the strategy reports them.
    fn owner_of(&self, addr: u64) -> Option<(u64, (u64, u64))> {
        let mut owner = None;
        self.strategy.inspect(&mut |span: Span| {
            if (span.ptr..span.ptr + span.size).contains(&addr) {
                owner = Some((self.streams[span.stream.index()], self.pools[span.pool.0 as usize]));
            }
        });
        owner
    }

    fn logged(&mut self, (action, addr, size): (&'static str, u64, u64)) -> Event {
        if action == "free_completed" {
            let (requested, stream, pool) = self.pending.remove(&addr).expect("a free that waited");
            return self.event(action, addr, requested, stream, pool);
        }
        // Memory given back keeps the owner it had: the strategy's state is that after the command.
        if matches!(action, "segment_alloc" | "segment_map")
            && let Some(owner) = self.owner_of(addr)
        {
            self.owners.insert(addr, owner);
        }
        let below = self.owners.range(..=addr).next_back().map(|(_, &owner)| owner);
        let (stream, pool) = below.unwrap_or((u64::MAX, (u64::MAX, 0)));
        self.event(action, addr, size, stream, pool)
    }

    /// The table of `memory_summary()`.
    pub fn summary(&self, abbreviated: bool) -> String {
        self.strategy.stats().memory_summary(0, abbreviated)
    }

    /// All statistics by PyTorch's names.
    pub fn stats(&self) -> BTreeMap<String, i64> {
        let mut all = BTreeMap::new();
        self.strategy.counters(&mut |key, value| {
            all.insert(key.to_owned(), value);
        });
        all
    }
}
