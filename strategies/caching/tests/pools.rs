//! Private pools come and go without leaving anything behind.

use allocator_core::{
    AllocError, CallKind, Configure, Control, Device, Machine, PoolId, Request, SimDevice, Strategy, StreamId,
};
use strategy_caching::{Caching, Params};

const MIB: u64 = 1 << 20;

fn expandable(dev: &SimDevice) -> Caching {
    Caching::new(Params { expandable_segments: true, ..Params::default() }, &dev.info()).unwrap()
}

/// A pool whose only request failed has a range of addresses without memory; it goes when the pool goes.
#[test]
fn addresses_of_a_pool_that_never_got_memory_go_with_it() {
    let mut dev = SimDevice::new(64 * MIB);
    let mut caching = expandable(&dev);
    for round in 1..100 {
        let pool = PoolId(round);
        caching.control(&mut dev, Control::PoolCreate(pool)).unwrap();
        let request = Request::new(70 * MIB, StreamId::DEFAULT).in_pool(pool);
        assert_eq!(caching.allocate(&mut dev, request), Err(AllocError::OutOfMemory));
        caching.control(&mut dev, Control::PoolRelease(pool)).unwrap();
        caching.trim(&mut dev, 0).unwrap();
    }
    let calls = dev.usage().calls;
    assert_eq!(calls[CallKind::Reserve as usize], 99);
    assert_eq!(calls[CallKind::Unreserve as usize], 99);
}

/// What a pool that is gone has left is not offered to the next one.
#[test]
fn a_pool_that_is_gone_serves_nobody() {
    let mut dev = SimDevice::new(1 << 30);
    let mut caching = Caching::new(Params::default(), &dev.info()).unwrap();
    for round in 1..50 {
        let pool = PoolId(round);
        caching.control(&mut dev, Control::PoolCreate(pool)).unwrap();
        let sizes = [512, 3 * MIB, 30 * MIB];
        let requests = sizes.map(|size| Request::new(size, StreamId(round % 3)).in_pool(pool));
        let blocks = requests.map(|request| caching.allocate(&mut dev, request).unwrap());
        blocks.into_iter().for_each(|block| caching.free(&mut dev, block).unwrap());
        assert_eq!(
            caching.allocate(&mut dev, Request::new(30 * MIB, StreamId(7))).map(|block| {
                caching.free(&mut dev, block).unwrap();
            }),
            Ok(())
        );
        caching.control(&mut dev, Control::PoolRelease(pool)).unwrap();
        caching.trim(&mut dev, 0).unwrap();
        assert_eq!(dev.usage().reserved, 0, "round {round}");
        let gone = Request::new(512, StreamId::DEFAULT).in_pool(pool);
        assert_eq!(caching.allocate(&mut dev, gone), Err(AllocError::UnknownPool));
    }
}

/// A released pool that still holds memory serves nobody: it may vanish in the middle of a request for it.
#[test]
fn a_released_pool_serves_nobody() {
    let mut dev = SimDevice::new(1 << 30);
    let mut caching = Caching::new(Params::default(), &dev.info()).unwrap();
    let pool = PoolId(1);
    caching.control(&mut dev, Control::PoolCreate(pool)).unwrap();
    let request = Request::new(512, StreamId::DEFAULT).in_pool(pool);
    let block = caching.allocate(&mut dev, request).unwrap();
    caching.control(&mut dev, Control::PoolRelease(pool)).unwrap();
    caching.free(&mut dev, block).unwrap();
    caching.control(&mut dev, Control::Limit(Some(2 * MIB))).unwrap();
    assert_eq!(caching.allocate(&mut dev, request), Err(AllocError::UnknownPool));
    // What the request above would have flushed goes here, and large blocks get arenas of their own.
    caching.control(&mut dev, Control::Limit(None)).unwrap();
    caching.trim(&mut dev, 0).unwrap();
    assert_eq!(dev.usage().reserved, 0);
    let block = caching.allocate(&mut dev, Request::new(30 * MIB, StreamId::DEFAULT)).unwrap();
    assert!(dev.holds(block.ptr(), 30 * MIB));
}
