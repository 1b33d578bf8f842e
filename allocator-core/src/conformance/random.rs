//! Seeded random operations.

use super::op::Op;
use super::order::LANES;
use crate::device::CallKind;

/// What a random run is made of. A run is the same on every machine for the same options and seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of the device.
    pub capacity: u64,
    /// Real streams, 1 to 8.
    pub streams: u32,
    /// Tickets that may be open at a time, up to 8.
    pub tickets: u32,
    /// Bytes of the largest request; most are far smaller.
    pub max_bytes: u64,
    /// Blocks that are live on average.
    pub live: u32,
    /// Whether device calls fail now and then.
    pub faults: bool,
    /// Whether private pools come and go; ignored where the strategy has none.
    pub pools: bool,
    /// [`crate::Strategy::inspect`] is checked after every so many operations, and at the end; 0 is never.
    pub inspect_every: u64,
}

impl Default for Options {
    /// Four streams, faults and pools, 60 blocks of up to 24 MiB on 1 GiB.
    fn default() -> Options {
        Options {
            capacity: 1 << 30,
            streams: 4,
            tickets: 3,
            max_bytes: 24 << 20,
            live: 60,
            faults: true,
            pools: true,
            inspect_every: 16,
        }
    }
}

/// SplitMix64: small, seeded by any number, and the same everywhere.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end` (0 if that is 0).
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Where a pool's life stands.
#[derive(Clone, Copy, Debug)]
enum PoolStage {
    None,
    Open,
    Closed,
}

/// The operations of a random run, without end. It supposes that every allocation succeeds.
#[derive(Clone, Debug)]
pub(super) struct Generator {
    options: Options,
    random: Random,
    live: Vec<u32>,
    next_id: u32,
    /// Recent sizes, for repeats: programs ask for the same sizes over and over.
    sizes: [u64; 8],
    last_freed: u32,
    open_tickets: u32,
    pool: u32,
    pool_stage: PoolStage,
    is_limited: bool,
}

impl Generator {
    pub(super) fn new(seed: u64, options: Options) -> Generator {
        let lanes = LANES as u32;
        let options =
            Options { streams: options.streams.clamp(1, lanes), tickets: options.tickets.min(lanes), ..options };
        Generator {
            options,
            random: Random(seed),
            live: Vec::new(),
            next_id: 0,
            sizes: [512, 4096, 1 << 16, 1 << 20, 1_000_000, 2 << 20, 3 << 20, 10 << 20],
            last_freed: 0,
            open_tickets: 0,
            pool: 1,
            pool_stage: PoolStage::None,
            is_limited: false,
        }
    }

    fn stream(&mut self) -> u32 {
        self.random.below(self.options.streams.into()) as u32
    }

    fn size(&mut self) -> u64 {
        let random = &mut self.random;
        let size = match random.below(64) {
            0 => 0,
            1 if random.one_in(8) => return u64::MAX - random.below(4096),
            1 => self.options.capacity / 2 + random.below(self.options.capacity),
            2..20 => self.sizes[random.below(8) as usize],
            20..40 => 1 + random.below(8192),
            40..52 => 1 + random.below(1 << 20),
            52..56 => 512 << random.below(12),
            _ => 1 + random.below(self.options.max_bytes),
        };
        let at = random.below(8) as usize;
        let size = size.min(self.options.max_bytes.max(self.options.capacity));
        if size > 0 && size <= self.options.max_bytes {
            self.sizes[at] = size;
        }
        size
    }

    fn allocate(&mut self) -> Op {
        let (size, stream) = (self.size(), self.stream());
        let in_pool = matches!(self.pool_stage, PoolStage::Open) && self.random.one_in(2);
        let id = self.next_id;
        self.next_id += 1;
        self.live.push(id);
        Op::Allocate { id, size, stream, pool: if in_pool { self.pool } else { 0 } }
    }

    fn any_live(&mut self) -> Option<usize> {
        (!self.live.is_empty()).then(|| self.random.below(self.live.len() as u64) as usize)
    }

    fn free(&mut self, ticket: Option<u32>) -> Op {
        match self.any_live() {
            Some(at) => {
                self.last_freed = self.live.swap_remove(at);
                Op::Free { id: self.last_freed, ticket }
            }
            None => self.allocate(),
        }
    }

    fn use_on_another_stream(&mut self) -> Op {
        match self.any_live() {
            Some(at) => Op::Use { id: self.live[at], stream: self.stream() },
            None => self.allocate(),
        }
    }

    fn free_with_ticket(&mut self) -> Op {
        match (0..self.options.tickets).find(|ticket| self.open_tickets & 1 << ticket == 0) {
            Some(ticket) if !self.live.is_empty() => {
                self.open_tickets |= 1 << ticket;
                self.free(Some(ticket))
            }
            _ => self.complete(),
        }
    }

    fn complete(&mut self) -> Op {
        let ticket = self.random.below(u64::from(self.options.tickets).max(1)) as u32;
        self.open_tickets &= !(1 << ticket);
        Op::Complete { ticket }
    }

    fn fault(&mut self) -> Op {
        let kind = CallKind::ALL[self.random.below(CallKind::ALL.len() as u64) as usize];
        let broken = self.random.one_in(3) || !may_lack_memory(kind);
        Op::Fail { kind, nth: 1 + self.random.below(4) as u32, broken }
    }

    fn change_limit(&mut self) -> Op {
        self.is_limited = !self.is_limited;
        let capacity = self.options.capacity;
        Op::Limit { bytes: self.is_limited.then(|| self.random.below(capacity)) }
    }

    fn pool_step(&mut self) -> Op {
        let pool = self.pool;
        match self.pool_stage {
            PoolStage::None => {
                self.pool_stage = PoolStage::Open;
                Op::PoolBegin { pool }
            }
            PoolStage::Open => {
                self.pool_stage = PoolStage::Closed;
                Op::PoolEnd { pool }
            }
            PoolStage::Closed => {
                self.pool_stage = PoolStage::None;
                self.pool += 1;
                Op::PoolRelease { pool }
            }
        }
    }
}

/// Whether calls of this kind fail for want of memory or addresses.
pub(super) fn may_lack_memory(kind: CallKind) -> bool {
    matches!(kind, CallKind::Malloc | CallKind::Reserve | CallKind::Create | CallKind::Map | CallKind::MallocAsync)
}

impl Iterator for Generator {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        Some(match self.random.below(100) {
            0..72 => {
                // The number of live blocks wanders around what was asked for.
                if self.random.below(2 * u64::from(self.options.live)) >= self.live.len() as u64 {
                    self.allocate()
                } else {
                    self.free(None)
                }
            }
            72..80 => self.use_on_another_stream(),
            80..84 => self.free_with_ticket(),
            84..87 => self.complete(),
            87..92 => Op::Host { us: self.random.below(400) as u32 },
            92 if self.random.one_in(8) => self.change_limit(),
            92..96 => Op::Work { stream: self.stream(), us: self.random.below(400) as u32 },
            96 => {
                let keep = if self.random.one_in(2) { 0 } else { self.random.below(self.options.capacity) };
                Op::Trim { keep }
            }
            97 => Op::FreeAgain { id: self.last_freed },
            98 if self.options.faults => self.fault(),
            99 if self.options.pools => self.pool_step(),
            _ => self.allocate(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let run = |seed| Generator::new(seed, Options::default()).take(1000).collect::<Vec<_>>();
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn runs_contain_every_kind_of_operation() {
        let ops: Vec<Op> = Generator::new(1, Options::default()).take(5000).collect();
        let kinds = ops.iter().map(std::mem::discriminant).collect::<std::collections::HashSet<_>>();
        assert_eq!(kinds.len(), 13);
        let allocations = ops.iter().filter(|op| matches!(op, Op::Allocate { .. })).count();
        let frees = ops.iter().filter(|op| matches!(op, Op::Free { .. })).count();
        assert!((1..200).contains(&(allocations - frees)), "{allocations} allocations, {frees} frees");
    }

    #[test]
    fn options_are_kept() {
        let options = Options { streams: 99, tickets: 0, faults: false, pools: false, ..Options::default() };
        for op in Generator::new(3, options).take(5000) {
            match op {
                Op::Allocate { stream, pool, .. } => assert!(stream < LANES as u32 && pool == 0),
                Op::Free { ticket, .. } => assert_eq!(ticket, None),
                Op::Fail { .. } | Op::PoolBegin { .. } => panic!("{op}"),
                _ => {}
            }
        }
    }
}
