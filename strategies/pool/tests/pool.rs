//! What is special about `pool`: how it grows, and when memory changes its stream.

use allocator_core::{
    AllocError, Block, Call, CallKind, Configure, Device, DeviceError, FaultDevice, LogDevice, Machine, PoolId,
    Request, SimDevice, SpanState, Strategy, StreamId,
};
use strategy_pool::{Params, Pool};

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);

struct Rig<D: Machine> {
    dev: LogDevice<D>,
    pool: Pool,
}

impl Rig<SimDevice> {
    fn new(capacity: u64, params: Params) -> Rig<SimDevice> {
        Rig::on(SimDevice::new(capacity), params)
    }
}

impl<D: Machine> Rig<D> {
    fn on(dev: D, params: Params) -> Rig<D> {
        let pool = Pool::new(params, &dev.info()).unwrap();
        Rig { dev: LogDevice::new(dev), pool }
    }

    fn try_allocate(&mut self, size: u64, stream: StreamId) -> Result<Block, AllocError> {
        self.pool.allocate(&mut self.dev, Request::new(size, stream))
    }

    fn allocate(&mut self, size: u64, stream: StreamId) -> Block {
        self.try_allocate(size, stream).unwrap()
    }

    fn free(&mut self, block: Block) {
        self.pool.free(&mut self.dev, block).unwrap();
    }

    /// The sizes that the device was asked for.
    fn mallocs(&self) -> Vec<u64> {
        let sizes = self.dev.steps().iter().filter_map(|step| match step.call {
            Call::Malloc { size } => Some(size),
            _ => None,
        });
        sizes.collect()
    }

    fn calls(&self, kind: CallKind) -> u64 {
        self.dev.usage().calls[kind as usize]
    }
}

fn capped(maximum: u64) -> Params {
    Params { initial_pool_size: 0, maximum_pool_size: Some(maximum) }
}

#[test]
fn the_pool_doubles() {
    let mut rig = Rig::new(1 << 30, Params::default());
    for size in [MIB, 2 * MIB, 512, 20 * MIB] {
        rig.allocate(size, A);
    }
    // 3 MiB would do for the third one, which finds no rest: both regions were as large as their requests.
    assert_eq!(rig.mallocs(), [MIB, 2 * MIB, 3 * MIB, 20 * MIB]);
    rig.allocate(4 * MIB, A);
    assert_eq!(rig.mallocs()[4..], [26 * MIB]);
    assert_eq!(rig.pool.reserved(), 52 * MIB);
}

#[test]
fn growth_is_halved_where_the_device_refuses_it() {
    let mut rig = Rig::new(24 * MIB, Params::default());
    rig.allocate(16 * MIB, A);
    rig.allocate(3 * MIB, A);
    assert_eq!(rig.mallocs(), [16 * MIB, 16 * MIB, 8 * MIB]);
    assert_eq!(rig.try_allocate(6 * MIB, A), Err(AllocError::OutOfMemory));
    assert_eq!(rig.mallocs()[3..], [24 * MIB, 12 * MIB, 6 * MIB]);
    rig.allocate(5 * MIB, A);
}

#[test]
fn with_a_maximum_it_takes_half_of_what_is_left() {
    let mut rig = Rig::new(1 << 30, capped(64 * MIB));
    for size in [MIB, 31 * MIB, 2 * MIB, 14 * MIB, 12 * MIB] {
        rig.allocate(size, A);
    }
    assert_eq!(rig.mallocs(), [32 * MIB, 16 * MIB, 12 * MIB]);
    assert_eq!(rig.try_allocate(5 * MIB, A), Err(AllocError::OutOfMemory));
    assert_eq!(rig.mallocs().len(), 3, "the device is not asked");
}

#[test]
fn under_a_maximum_whole_free_regions_make_room() {
    let mut rig = Rig::new(1 << 30, capped(64 * MIB));
    let (a, b) = (rig.allocate(32 * MIB, A), rig.allocate(16 * MIB, B));
    assert_eq!(rig.try_allocate(65 * MIB, A), Err(AllocError::OutOfMemory));
    rig.free(a);
    assert_eq!(rig.calls(CallKind::Free), 0, "more than the maximum gives nothing back");
    rig.allocate(40 * MIB, B);
    assert_eq!((rig.mallocs(), rig.calls(CallKind::Free)), (vec![32 * MIB, 16 * MIB, 40 * MIB], 1));
    rig.free(b);
    assert_eq!(rig.pool.reserved(), 56 * MIB);
}

#[test]
fn the_first_region_is_the_default_stream_s() {
    let mut rig = Rig::new(1 << 30, Params { initial_pool_size: 64 * MIB, maximum_pool_size: None });
    rig.allocate(MIB, B);
    let block = rig.allocate(MIB, A);
    assert_eq!((rig.mallocs(), rig.calls(CallKind::OrderAfter)), (vec![64 * MIB], 0), "nothing was done in it");
    rig.free(block);
    rig.allocate(3 * MIB, B);
    assert_eq!((rig.mallocs().len(), rig.calls(CallKind::OrderAfter)), (1, 1), "the rest stayed stream 0's");
}

#[test]
fn another_stream_s_block_costs_a_wait_and_the_rest_stays_there() {
    let mut rig = Rig::new(1 << 30, Params::default());
    let block = rig.allocate(8 * MIB, A);
    let ptr = block.ptr();
    rig.dev.work(A, 1_000_000_000).unwrap();
    rig.free(block);
    assert_eq!(rig.allocate(2 * MIB, B).ptr(), ptr);
    assert_eq!(rig.calls(CallKind::OrderAfter), 1);
    assert_eq!(rig.allocate(2 * MIB, A).ptr(), ptr + 2 * MIB, "without a wait");
    assert_eq!((rig.calls(CallKind::OrderAfter), rig.calls(CallKind::Sync)), (1, 0));
    assert!(rig.dev.usage().now_ns < 1_000_000_000, "the host has not waited");
}

#[test]
fn lists_are_merged_before_the_pool_grows() {
    let mut rig = Rig::new(1 << 30, Params { initial_pool_size: 8 * MIB, maximum_pool_size: None });
    let blocks = [A, B, A, B].map(|stream| rig.allocate(2 * MIB, stream));
    let ptr = blocks[0].ptr();
    blocks.into_iter().for_each(|block| rig.free(block));
    assert_eq!(rig.allocate(8 * MIB, B).ptr(), ptr);
    assert_eq!((rig.mallocs().len(), rig.calls(CallKind::OrderAfter)), (1, 1), "stream 1 waits for stream 0 once");
}

#[test]
fn a_block_in_use_elsewhere_waits_for_its_fences() {
    let mut rig = Rig::new(1 << 30, Params::default());
    let block = rig.allocate(MIB, A);
    let ptr = block.ptr();
    for stream in [B, A, StreamId::ticket(3)] {
        rig.pool.record_stream(&mut rig.dev, &block, stream).unwrap();
    }
    rig.free(block);
    rig.dev.host_work(1_000_000);
    let other = rig.allocate(MIB, A);
    assert_ne!(other.ptr(), ptr);
    let mut pending = 0;
    rig.pool.inspect(&mut |span| pending += u64::from(span.state == SpanState::Pending));
    assert_eq!(pending, 1);
    rig.dev.complete(3);
    assert_eq!(rig.allocate(MIB, A).ptr(), ptr);
    assert_eq!(rig.dev.steps().iter().filter(|step| step.call == Call::Retired { ptr }).count(), 1);
}

#[test]
fn want_of_memory_ends_the_waiting() {
    let mut rig = Rig::new(8 * MIB, Params::default());
    let block = rig.allocate(6 * MIB, A);
    rig.pool.record_stream(&mut rig.dev, &block, B).unwrap();
    rig.dev.work(B, 1_000_000_000).unwrap();
    rig.free(block);
    rig.allocate(5 * MIB, A);
    assert_eq!(rig.calls(CallKind::Sync), 1);
}

/// Random programs on three streams, which ask for a large size again and again.
#[test]
fn what_may_not_be_had_is_refused() {
    const LARGE: u64 = 16 * MIB;
    for (params, can_be) in [(Params::default(), true), (capped(60 * MIB), true), (capped(8 * MIB), false)] {
        let mut rig = Rig::new(64 * MIB, params);
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut live, mut refused): (Vec<Block>, u64) = (Vec::new(), u64::MAX);
        let (mut known, mut served) = (0, 0);
        for _ in 0..20_000 {
            let stream = StreamId(random(3) as u32);
            match random(16) {
                0 => {
                    let may_be = rig.pool.may_have(LARGE, refused);
                    match rig.pool.allocate_at_once(&mut rig.dev, Request::new(LARGE, stream)) {
                        Ok(block) => {
                            assert!(may_be);
                            served += u64::from(refused != u64::MAX);
                            rig.free(block);
                        }
                        Err(_) => {
                            known += u64::from(!may_be);
                            refused = rig.pool.reserved();
                        }
                    }
                }
                1 if random(8) == 0 => {
                    rig.pool.trim(&mut rig.dev, 0).unwrap();
                }
                2..9 if live.len() < 24 => live.extend(rig.try_allocate((1 + random(12)) * MIB / 2, stream)),
                _ if !live.is_empty() => rig.free(live.swap_remove(random(live.len() as u64) as usize)),
                _ => {}
            }
        }
        assert!(known > 100 && (served > 100) == can_be, "{known} {served}");
    }
}

#[test]
fn at_once_the_host_does_not_wait() {
    let mut rig = Rig::new(8 * MIB, Params::default());
    let block = rig.allocate(6 * MIB, A);
    rig.pool.record_stream(&mut rig.dev, &block, StreamId::ticket(0)).unwrap();
    rig.free(block);
    let request = Request::new(5 * MIB, A);
    assert_eq!(rig.pool.allocate_at_once(&mut rig.dev, request), Err(AllocError::OutOfMemory));
    assert_eq!((rig.pool.is_waiting(), rig.calls(CallKind::Sync)), (true, 0));
    rig.pool.wait(&mut rig.dev).unwrap();
    assert!(!rig.pool.is_waiting() && rig.pool.may_have(request.size, rig.pool.reserved()));
    rig.pool.allocate_at_once(&mut rig.dev, request).unwrap();
}

#[test]
fn a_free_that_fails_can_be_made_again() {
    let error = DeviceError::Driver { call: CallKind::Fence, code: 999 };
    let dev = FaultDevice::new(SimDevice::new(1 << 30)).fail_nth(CallKind::Fence, 1, error);
    let mut rig = Rig::on(dev, Params::default());
    let block = rig.allocate(MIB, A);
    let ptr = block.ptr();
    let refused = rig.pool.free(&mut rig.dev, block).unwrap_err();
    rig.free(refused.block);
    assert_eq!(rig.allocate(MIB, A).ptr(), ptr);
}

#[test]
fn a_request_for_a_private_pool_is_refused() {
    let mut rig = Rig::new(1 << 30, Params::default());
    let request = Request::new(512, A).in_pool(PoolId(2));
    assert_eq!(rig.pool.allocate(&mut rig.dev, request), Err(AllocError::UnknownPool));
}

#[test]
fn a_parameter_that_makes_no_sense_is_named() {
    let info = SimDevice::new(MIB).info();
    for (initial_pool_size, maximum_pool_size, text) in [
        (100, None, "initial_pool_size=100: write 0 or a multiple of 512 bytes"),
        (0, Some(0), "maximum_pool_size=0: write none or a multiple of 512 bytes, above 0"),
        (0, Some(513), "maximum_pool_size=513: write none or a multiple of 512 bytes, above 0"),
        (1024, Some(512), "initial_pool_size=1024: write at most maximum_pool_size=512"),
    ] {
        let params = Params { initial_pool_size, maximum_pool_size };
        assert_eq!(Pool::new(params, &info).unwrap_err().to_string(), text);
    }
}
