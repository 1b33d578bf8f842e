//! What is special about `direct`: a driver call per request, and not a byte more than was asked for.

use allocator_core::{
    AllocError, CallKind, Device, DeviceError, FaultDevice, FreeFailure, Machine, PoolId, Request, SimDevice, Strategy,
    StreamId,
};
use strategy_direct::Direct;

const A: StreamId = StreamId(0);

#[test]
fn a_call_per_request_and_nothing_kept() {
    let (mut dev, mut direct) = (SimDevice::new(1 << 30), Direct::default());
    let sizes = [1, 513, 3 << 20, 100 << 20];
    let blocks = sizes.map(|size| direct.allocate(&mut dev, Request::new(size, A)).unwrap());
    assert_eq!(dev.usage().reserved, sizes.iter().sum::<u64>());
    blocks.into_iter().for_each(|block| direct.free(&mut dev, block).unwrap());
    assert_eq!(direct.trim(&mut dev, 0), Ok(0));
    let usage = dev.usage();
    assert_eq!(usage.reserved, 0);
    assert_eq!(usage.calls[CallKind::Malloc as usize], 4);
    assert_eq!(usage.calls[CallKind::Free as usize], 4);
    assert_eq!(usage.calls.iter().sum::<u64>(), 8);
}

#[test]
fn a_free_waits_for_every_stream() {
    let (mut dev, mut direct) = (SimDevice::new(1 << 30), Direct::default());
    let block = direct.allocate(&mut dev, Request::new(512, A)).unwrap();
    direct.record_stream(&mut dev, &block, StreamId(3)).unwrap();
    dev.work(StreamId(3), 7_000_000).unwrap();
    let before = dev.usage().now_ns;
    direct.free(&mut dev, block).unwrap();
    assert!(dev.usage().now_ns >= before + 7_000_000);
}

#[test]
fn a_free_neither_hangs_on_a_ticket_nor_ends_it() {
    let (mut dev, mut direct) = (SimDevice::new(1 << 30), Direct::default());
    let ticket = StreamId::ticket(0);
    let block = direct.allocate(&mut dev, Request::new(512, A)).unwrap();
    direct.record_stream(&mut dev, &block, ticket).unwrap();
    let others = dev.fence(ticket).unwrap();
    direct.free(&mut dev, block).unwrap();
    assert_eq!(dev.poll(others), Ok(false), "only the recording ends a ticket");
    dev.complete(0);
    assert_eq!(dev.poll(others), Ok(true));
}

#[test]
fn a_call_that_fails_changes_nothing() {
    let error = DeviceError::Driver { call: CallKind::Free, code: 999 };
    let dev = FaultDevice::new(SimDevice::new(1 << 30)).fail_nth(CallKind::Malloc, 1, DeviceError::OutOfMemory);
    let (mut dev, mut direct) = (dev.fail_nth(CallKind::Free, 1, error), Direct::default());
    assert_eq!(direct.allocate(&mut dev, Request::new(512, A)), Err(AllocError::OutOfMemory));
    let block = direct.allocate(&mut dev, Request::new(512, A)).unwrap();
    let refused = direct.free(&mut dev, block).unwrap_err();
    assert_eq!((refused.reason, dev.usage().reserved), (FreeFailure::Device(error), 512));
    direct.free(&mut dev, refused.block).unwrap();
    assert_eq!(dev.usage().reserved, 0);
}

#[test]
fn a_request_for_a_pool_is_refused() {
    let (mut dev, mut direct) = (SimDevice::new(1 << 30), Direct::default());
    let request = Request::new(512, A).in_pool(PoolId(2));
    assert_eq!(direct.allocate(&mut dev, request), Err(AllocError::UnknownPool));
    assert_eq!(dev.usage().calls.iter().sum::<u64>(), 0);
}
