//! A strategy on a watched device: carries operations out and checks each answer.

use super::memory::Placed;
use super::op::{Bytes, Op, name};
use super::order::Clock;
use super::witness::Witness;
use super::{Broken, Make, Rule};
use crate::device::Device;
use crate::error::{AllocError, ControlError, DeviceError, FreeError, FreeFailure};
use crate::faults::FaultDevice;
use crate::request::{Block, PoolId, Request, StreamId};
use crate::sim::SimDevice;
use crate::strategy::{Control, Span, Strategy};
use std::collections::{BTreeMap, VecDeque};

/// How long each use of a block keeps its stream busy.
const WORK_NS: u64 = 50_000;
/// By how much the last growth may pass a limit. PyTorch's expandable segments compare the limit with what is asked
/// for, and map whole pages of 20 MiB.
const ROUNDING: u64 = 20 << 20;
/// How many freed blocks [`Op::FreeAgain`] may go back.
const REMEMBERED: usize = 64;

/// What a run starts from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub capacity: u64,
    /// Spans are checked after every so many operations, and at the end; 0 is never.
    pub inspect_every: u64,
}

impl Setup {
    pub(super) const fn new(capacity: u64) -> Setup {
        Setup { capacity, inspect_every: 0 }
    }
}

/// The parts of a block that a copy of it is made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    ptr: u64,
    slot: u32,
    generation: u32,
}

impl Key {
    fn of(block: &Block) -> Key {
        Key { ptr: block.ptr(), slot: block.slot(), generation: block.generation() }
    }

    fn forge(self) -> Option<Block> {
        Block::new(self.ptr, self.slot, self.generation)
    }
}

/// A live block.
struct Live {
    block: Block,
    placed: Placed,
    /// Every stream that uses it, its own first.
    users: Vec<StreamId>,
    /// Streams that used it while a pool's context was open.
    captured: Vec<StreamId>,
}

/// See the module.
pub(super) struct Session {
    strategy: Box<dyn Strategy>,
    pub device: Witness,
    live: BTreeMap<u32, Live>,
    freed: VecDeque<(u32, Key)>,
    /// Pools with a user, and whether their context is open.
    pools: BTreeMap<u32, bool>,
    /// Uses of blocks by further streams since a context was opened.
    captured: Vec<(u32, StreamId)>,
    limit: Option<u64>,
    setup: Setup,
    steps: u64,
}

type Verdict = Result<(), Broken>;

fn broken(rule: Rule, text: impl Into<String>) -> Verdict {
    Err(Broken::new(rule, text.into()))
}

impl Session {
    pub(super) fn new(make: Make<'_>, setup: Setup) -> Session {
        let device = SimDevice::new(setup.capacity).with_stream_ordered();
        let device = Witness::new(FaultDevice::new(device));
        Session {
            strategy: make(&device.info()),
            device,
            live: BTreeMap::new(),
            freed: VecDeque::new(),
            pools: BTreeMap::new(),
            captured: Vec::new(),
            limit: None,
            setup,
            steps: 0,
        }
    }

    /// Whether the strategy has private pools. Leaves it with one if so.
    pub(super) fn has_pools(mut self) -> bool {
        self.strategy.control(&mut self.device, Control::PoolCreate(PoolId(1))) != Err(ControlError::Unsupported)
    }

    /// Whether the strategy keeps to a memory limit. Leaves it without one.
    pub(super) fn has_limit(mut self) -> bool {
        self.strategy.control(&mut self.device, Control::Limit(None)) != Err(ControlError::Unsupported)
    }

    /// Carries one operation out.
    pub(super) fn step(&mut self, op: Op) -> Verdict {
        self.device.begin();
        let held = self.device.memory.held();
        let verdict = self.carry_out(op);
        // What the strategy did to the device explains more than what it answered.
        self.device.verdict()?;
        verdict?;
        let holds = self.device.memory.held();
        if let Some(limit) = self.limit.filter(|&limit| holds >= limit.saturating_add(ROUNDING) && holds > held) {
            let text = format!("{} are held under a limit of {}", Bytes(holds), Bytes(limit));
            return broken(Rule::Limit, text);
        }
        self.steps += 1;
        if self.setup.inspect_every > 0 && self.steps.is_multiple_of(self.setup.inspect_every) {
            self.check_spans()?;
        }
        Ok(())
    }

    fn carry_out(&mut self, op: Op) -> Verdict {
        match op {
            Op::Allocate { id, size, stream, pool } => {
                let is_open = pool == 0 || self.pools.get(&pool) == Some(&true);
                if is_open && !self.live.contains_key(&id) {
                    return self.allocate(id, size, StreamId(stream), PoolId(pool));
                }
            }
            Op::Use { id, stream } => return self.record_stream(id, StreamId(stream)),
            Op::Free { id, ticket } => {
                if let Some(ticket) = ticket {
                    self.record_stream(id, StreamId::ticket(ticket))?;
                    self.device.verdict()?;
                }
                return self.free(id);
            }
            Op::FreeAgain { id } => return self.free_again(id),
            Op::Work { stream, us } => self.device.work(StreamId(stream), u64::from(us) * 1_000),
            Op::Host { us } => self.device.host_work(u64::from(us) * 1_000),
            Op::Complete { ticket } => self.device.complete(ticket),
            Op::Trim { keep } => return self.trim(keep),
            Op::Fail { kind, nth, broken } => {
                let error =
                    if broken { DeviceError::Driver { call: kind, code: 999 } } else { DeviceError::OutOfMemory };
                self.device.plan(kind, nth.into(), error);
            }
            Op::Limit { bytes } => return self.set_limit(bytes),
            Op::PoolBegin { pool } => {
                if !self.pools.contains_key(&pool) {
                    self.begin_pool(pool)?;
                    self.pools.insert(pool, true);
                }
            }
            Op::PoolEnd { pool } => {
                if self.pools.get(&pool) == Some(&true) {
                    self.pool_call(Control::PoolEnd(PoolId(pool)))?;
                    self.pools.insert(pool, false);
                    self.join_captured();
                }
            }
            Op::PoolRelease { pool } => {
                if self.pools.get(&pool) == Some(&false) {
                    self.pool_call(Control::PoolRelease(PoolId(pool)))?;
                    self.pools.remove(&pool);
                }
            }
        }
        Ok(())
    }

    fn allocate(&mut self, id: u32, size: u64, stream: StreamId, pool: PoolId) -> Verdict {
        let request = Request::new(size, stream).in_pool(pool);
        let block = match self.strategy.allocate(&mut self.device, request) {
            Ok(block) => block,
            Err(error) => return self.judge_refusal(error, &request),
        };
        let (who, ptr, alignment) = (name(id), block.ptr(), self.device.info().alignment);
        if !ptr.is_multiple_of(alignment) {
            return broken(Rule::Alignment, format!("{who} is at {ptr:#x}, not a multiple of {alignment}"));
        }
        if block.is_empty() && size > 0 {
            return broken(Rule::NoOverlap, format!("{who} got the block of zero bytes for {size} bytes"));
        }
        let placed = Placed { id, ptr, size, stream, pool };
        if size > 0 {
            self.device.memory.place(placed, &self.device.order)?;
        }
        self.device.work(stream, WORK_NS);
        self.live.insert(id, Live { block, placed, users: vec![stream], captured: Vec::new() });
        Ok(())
    }

    /// Which refusals of an allocation are in order.
    fn judge_refusal(&self, error: AllocError, request: &Request) -> Verdict {
        let total = self.device.info().total;
        let size = request.size;
        match error {
            AllocError::Device(DeviceError::OutOfMemory) => {
                let text = "want of memory was reported as a failure of the device, not as AllocError::OutOfMemory";
                broken(Rule::Limit, text)
            }
            AllocError::OutOfMemory if size > 0 => Ok(()),
            AllocError::TooLarge if size > total => Ok(()),
            AllocError::TooLarge if size > 0 => {
                let text = format!("{} are called larger than any device on one of {}", Bytes(size), Bytes(total));
                broken(Rule::Limit, text)
            }
            AllocError::OutOfMemory | AllocError::Device(_) if self.device.refused() => Ok(()),
            _ if size == 0 => broken(Rule::ZeroSize, format!("a request for 0 bytes failed: {error}")),
            AllocError::UnknownPool => broken(Rule::Pools, format!("open pool {} is unknown", request.pool.0)),
            _ => broken(Rule::ErrorRecovery, format!("allocate failed although no device call did: {error}")),
        }
    }

    fn record_stream(&mut self, id: u32, stream: StreamId) -> Verdict {
        let Some(live) = self.live.get_mut(&id) else { return Ok(()) };
        match self.strategy.record_stream(&mut self.device, &live.block, stream) {
            Ok(()) => {
                if !live.users.contains(&stream) && !live.captured.contains(&stream) {
                    live.users.push(stream);
                }
                if stream != live.placed.stream && self.pools.values().any(|open| *open) {
                    live.captured.push(stream);
                    self.captured.push((id, stream));
                }
                self.device.work(stream, WORK_NS);
                Ok(())
            }
            Err(AllocError::NotLive) => {
                broken(Rule::ForeignBlock, format!("record_stream refused {}, which is live", name(id)))
            }
            Err(AllocError::Device(_)) if self.device.refused() => Ok(()),
            Err(error) => {
                broken(Rule::ErrorRecovery, format!("record_stream failed though no device call did: {error}"))
            }
        }
    }

    /// The end of the last open context joins the streams that were recorded in it: a context stands for a graph
    /// capture, which records work instead of doing it and ends only when every stream is joined. So blocks need not
    /// wait for those uses. PyTorch does not wait for such a stream again even if it uses the block after the end;
    /// that is allowed too.
    fn join_captured(&mut self) {
        if self.pools.values().any(|open| *open) {
            return;
        }
        for (id, stream) in std::mem::take(&mut self.captured) {
            self.device.order.saw_stream(stream);
            if let Some(live) = self.live.get_mut(&id) {
                live.users.retain(|user| *user != stream);
            }
        }
    }

    fn free(&mut self, id: u32) -> Verdict {
        let Some(Live { block, placed, users, captured }) = self.live.remove(&id) else { return Ok(()) };
        let key = Key::of(&block);
        self.mark(&placed, Some(self.device.order.points(&users)));
        let Err(FreeError { block, reason }) = self.strategy.free(&mut self.device, block) else {
            if placed.ptr != Block::EMPTY_PTR {
                self.freed.truncate(REMEMBERED - 1);
                self.freed.push_front((id, key));
            }
            return Ok(());
        };
        let who = name(id);
        if Key::of(&block) != key {
            return broken(Rule::ErrorRecovery, format!("the refused free of {who} gave another block back"));
        }
        match reason {
            FreeFailure::NotLive => broken(Rule::ForeignBlock, format!("free refused {who}, which is live")),
            FreeFailure::Device(_) if self.device.refused() => {
                self.mark(&placed, None);
                self.live.insert(id, Live { block, placed, users, captured });
                Ok(())
            }
            FreeFailure::Device(error) => {
                broken(Rule::ErrorRecovery, format!("free of {who} failed though no device call did: {error}"))
            }
        }
    }

    fn mark(&mut self, placed: &Placed, points: Option<Clock>) {
        if placed.size > 0 {
            self.device.memory.mark(placed.ptr, placed.size, points);
        }
    }

    fn free_again(&mut self, id: u32) -> Verdict {
        let key = self.freed.iter().find(|(freed, _)| *freed == id).map(|(_, key)| *key);
        match key {
            Some(key) => self.offer_foreign(key, &format!("{}, which is not live any more,", name(id))),
            None => Ok(()),
        }
    }

    /// Offers blocks that were never handed out: an unknown slot, and the right slot with a wrong generation or address.
    pub(super) fn offer_forgeries(&mut self) -> Verdict {
        let unknown = Key { ptr: 1 << 40, slot: u32::MAX - 1, generation: 0 };
        self.offer_foreign(unknown, "a block of another strategy")?;
        let keys: Vec<Key> =
            self.live.values().filter(|live| !live.block.is_empty()).map(|live| Key::of(&live.block)).collect();
        for key in keys {
            let other = Key { generation: key.generation.wrapping_add(1), ..key };
            self.offer_foreign(other, "a block with the slot of a live one and another generation")?;
            let other = Key { ptr: key.ptr + (1 << 40), ..key };
            self.offer_foreign(other, "a block with the slot of a live one and another address")?;
        }
        Ok(())
    }

    fn offer_foreign(&mut self, key: Key, what: &str) -> Verdict {
        let (Some(block), Some(copy)) = (key.forge(), key.forge()) else { return Ok(()) };
        match self.strategy.record_stream(&mut self.device, &block, StreamId(1)) {
            Err(AllocError::NotLive) => {}
            Err(AllocError::Device(_)) if self.device.refused() => {}
            answer => return broken(Rule::ForeignBlock, format!("record_stream of {what} answered {answer:?}")),
        }
        match self.strategy.free(&mut self.device, block) {
            Err(FreeError { block, .. }) if block != copy => {
                broken(Rule::ForeignBlock, format!("the refused free of {what} gave another block back"))
            }
            Err(FreeError { reason: FreeFailure::NotLive, .. }) => Ok(()),
            Err(FreeError { reason: FreeFailure::Device(_), .. }) if self.device.refused() => Ok(()),
            answer => broken(Rule::ForeignBlock, format!("free of {what} answered {answer:?}")),
        }
    }

    fn trim(&mut self, keep: u64) -> Verdict {
        let before = self.device.memory.held();
        let answer = self.strategy.trim(&mut self.device, keep);
        let released = before.saturating_sub(self.device.memory.held());
        match answer {
            // After a failed call, memory may come back late.
            Ok(said) if said != released && !self.device.had_failure() => {
                let text = format!("trim says it released {}, the device got {}", Bytes(said), Bytes(released));
                broken(Rule::TrimToEmpty, text)
            }
            Ok(_) if before <= keep && released > 0 => {
                let (keep, before) = (Bytes(keep), Bytes(before));
                broken(Rule::TrimToEmpty, format!("trim to {keep} released {} of {before}", Bytes(released)))
            }
            Ok(_) => Ok(()),
            Err(AllocError::Device(_)) if self.device.refused() => Ok(()),
            Err(error) => broken(Rule::ErrorRecovery, format!("trim failed though no device call did: {error}")),
        }
    }

    fn set_limit(&mut self, bytes: Option<u64>) -> Verdict {
        match self.strategy.control(&mut self.device, Control::Limit(bytes)) {
            Ok(()) => {
                self.limit = bytes;
                Ok(())
            }
            Err(ControlError::Unsupported) => Ok(()),
            Err(ControlError::Device(_)) if self.device.refused() => Ok(()),
            Err(error) => broken(Rule::Limit, format!("the limit was refused: {error}")),
        }
    }

    /// Opens a pool's context. Strategies differ in whether a context alone brings a pool into being.
    fn begin_pool(&mut self, pool: u32) -> Verdict {
        let pool = PoolId(pool);
        self.device.forget_plan();
        match self.strategy.control(&mut self.device, Control::PoolBegin(pool)) {
            Err(ControlError::UnknownPool(_)) => {
                self.pool_call(Control::PoolCreate(pool))?;
                self.pool_call(Control::PoolBegin(pool))
            }
            Err(error) => broken(Rule::Pools, format!("pool {} could not be begun: {error}", pool.0)),
            Ok(()) => Ok(()),
        }
    }

    /// A pool call, on a device without planned failures: what a half-done one means is not said anywhere.
    fn pool_call(&mut self, what: Control<'_>) -> Verdict {
        self.device.forget_plan();
        let answer = self.strategy.control(&mut self.device, what);
        answer.or_else(|error| broken(Rule::Pools, format!("{what:?} failed: {error}")))
    }

    /// Ends everything: contexts, limits, planned failures, blocks, pools. Then the device must be empty after a
    /// `trim(0)`, and the strategy must work as on the first day.
    pub(super) fn finish(&mut self) -> Verdict {
        self.device.forget_plan();
        let open: Vec<u32> = self.pools.iter().filter(|&(_, open)| *open).map(|(&pool, _)| pool).collect();
        let pools: Vec<u32> = self.pools.keys().copied().collect();
        let blocks: Vec<u32> = self.live.keys().copied().collect();
        let steps = (self.limit.map(|_| Op::Limit { bytes: None }).into_iter())
            .chain(open.into_iter().map(|pool| Op::PoolEnd { pool }))
            .chain(blocks.into_iter().map(|id| Op::Free { id, ticket: None }))
            .chain(pools.into_iter().map(|pool| Op::PoolRelease { pool }));
        for op in steps {
            self.step(op)?;
        }
        if self.setup.inspect_every > 0 {
            self.check_spans()?;
        }
        self.expect_empty()?;
        self.step(Op::Allocate { id: u32::MAX, size: 1 << 20, stream: 0, pool: 0 })?;
        if self.live.is_empty() {
            return broken(Rule::Limit, "with everything freed and trimmed, a request for 1 MiB was refused");
        }
        self.step(Op::Free { id: u32::MAX, ticket: None })?;
        self.expect_empty()
    }

    /// With nothing live, `trim(0)` must leave the device empty.
    fn expect_empty(&mut self) -> Verdict {
        self.step(Op::Trim { keep: 0 })?;
        match self.device.taken() {
            0 => Ok(()),
            held => {
                broken(Rule::TrimToEmpty, format!("with all blocks freed, {held} bytes are still held after trim(0)"))
            }
        }
    }

    fn check_spans(&self) -> Verdict {
        let mut spans: Vec<Span> = Vec::new();
        self.strategy.inspect(&mut |span| spans.push(span));
        let blocks: Vec<Placed> =
            self.live.values().filter(|live| !live.block.is_empty()).map(|live| live.placed).collect();
        super::spans::check(&spans, &blocks, &self.device.memory)
    }

    /// What happened in the last step, for comparing two runs: device calls with answers, and the newest block's
    /// address.
    pub(super) fn trail(&self) -> (&[String], Option<u64>) {
        (self.device.log(), self.live.values().next_back().map(|live| live.block.ptr()))
    }

    /// The strategy and its device, for calls that no operation stands for.
    pub(super) fn parts(&mut self) -> (&mut dyn Strategy, &mut Witness) {
        self.device.begin();
        (&mut *self.strategy, &mut self.device)
    }
}
