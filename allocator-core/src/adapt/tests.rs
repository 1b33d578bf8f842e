use super::*;
use crate::device::{CallKind, Device, Machine};
use crate::error::{AllocError, ControlError, DeviceError, FreeFailure};
use crate::faults::FaultDevice;
use crate::request::{Block, PoolId, Request, StreamId};
use crate::sim::SimDevice;
use crate::strategy::{Control, Span, Strategy};
use crate::toy::Toy;
use crate::virtual_range::VirtualRange;

const MIB: u64 = 1 << 20;

fn request(size: u64) -> Request {
    Request::new(size, StreamId::DEFAULT)
}

#[test]
fn blocks_are_freed_by_address() {
    let mut dev = SimDevice::new(64 * MIB);
    let mut index = AddressIndex::new(Toy::default());
    let ptrs = [100, 5 * MIB, 512, 100].map(|size| index.allocate(&mut dev, request(size)).unwrap());
    index.free(&mut dev, ptrs[1]).unwrap();
    assert_eq!(index.free(&mut dev, ptrs[1]), Err(FreeFailure::NotLive), "a double free");
    for wild in [0, 1, ptrs[0] + 1, ptrs[3] + 512, u64::MAX] {
        assert_eq!(index.free(&mut dev, wild), Err(FreeFailure::NotLive), "{wild:#x}");
        assert_eq!(index.record_stream(&mut dev, wild, StreamId(1)), Err(AllocError::NotLive), "{wild:#x}");
    }
    assert_eq!(index.allocate(&mut dev, request(5 * MIB)), Ok(ptrs[1]), "it did reach the strategy");
    for ptr in ptrs {
        index.free(&mut dev, ptr).unwrap();
    }
    assert_eq!(index.trim(&mut dev, 0), Ok(5 * MIB + 712));
    assert_eq!(dev.usage().reserved, 0);
}

#[test]
fn streams_are_recorded_by_address() {
    let mut dev = SimDevice::new(64 * MIB);
    let mut index = AddressIndex::new(Toy::default());
    let ptr = index.allocate(&mut dev, request(MIB)).unwrap();
    index.record_stream(&mut dev, ptr, StreamId::ticket(0)).unwrap();
    index.free(&mut dev, ptr).unwrap();
    assert_ne!(index.allocate(&mut dev, request(MIB)), Ok(ptr));
    dev.complete(0);
    assert_eq!(index.allocate(&mut dev, request(MIB)), Ok(ptr));
}

#[test]
fn a_failed_free_leaves_the_block_live() {
    let failure = DeviceError::Driver { call: CallKind::Fence, code: 1 };
    let mut dev = FaultDevice::new(SimDevice::new(64 * MIB)).fail_nth(CallKind::Fence, 1, failure);
    let mut index = AddressIndex::new(Toy::default());
    let ptr = index.allocate(&mut dev, request(MIB)).unwrap();
    index.record_stream(&mut dev, ptr, StreamId(1)).unwrap();
    assert_eq!(index.free(&mut dev, ptr), Err(FreeFailure::Device(failure)));
    assert_eq!(index.free(&mut dev, ptr), Ok(()));
    assert_eq!(index.free(&mut dev, ptr), Err(FreeFailure::NotLive));
}

#[test]
fn zero_bytes_have_an_address_that_is_always_live() {
    let mut dev = SimDevice::new(64 * MIB);
    let mut index = AddressIndex::new(Toy::default());
    for _ in 0..2 {
        assert_eq!(index.allocate(&mut dev, request(0)), Ok(Block::EMPTY_PTR));
    }
    for _ in 0..3 {
        assert_eq!(index.free(&mut dev, Block::EMPTY_PTR), Ok(()));
    }
    assert_eq!(index.record_stream(&mut dev, Block::EMPTY_PTR, StreamId(1)), Ok(()));
    assert_eq!(dev.usage().calls, [0; CallKind::ALL.len()]);
}

#[test]
fn control_reaches_the_strategy() {
    let mut dev = SimDevice::new(64 * MIB);
    let mut index = AddressIndex::new(Limit::new(Toy::default(), None));
    index.control(&mut dev, Control::Limit(Some(MIB))).unwrap();
    assert_eq!(index.allocate(&mut dev, request(2 * MIB)), Err(AllocError::OutOfMemory));
    index.control(&mut dev, Control::Limit(None)).unwrap();
    assert!(index.allocate(&mut dev, request(2 * MIB)).is_ok());
}

#[test]
fn threads_share_a_locked_index() {
    let index = Locked::new(AddressIndex::new(Toy::default()));
    let device = Locked::new(SimDevice::new(64 * MIB));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (index, device) = (&index, &device);
            scope.spawn(move || {
                for round in 1..=50 {
                    let mut dev = device.lock();
                    let ptr = index.allocate(&mut *dev, request(512 * (thread + round))).unwrap();
                    index.record_stream(&mut *dev, ptr, StreamId(1)).unwrap();
                    drop(dev);
                    index.free(&mut *device.lock(), ptr).unwrap();
                }
            });
        }
    });
    let mut dev = device.lock();
    assert_eq!(index.control(&mut *dev, Control::PoolCreate(PoolId(1))), Err(ControlError::Unsupported));
    index.allocate(&mut *dev, request(MIB)).unwrap();
    assert!(index.trim(&mut *dev, 0).unwrap() > 0);
    assert_eq!(dev.usage().reserved, MIB);
}

#[test]
fn a_panic_does_not_lock_others_out() {
    let locked = Locked::new(7);
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _held = locked.lock();
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        thread.join()
    });
    assert!(outcome.is_err());
    assert_eq!(*locked.lock(), 7);
}

#[test]
fn a_strategy_at_its_limit_flushes_and_then_fails() {
    let mut dev = SimDevice::new(64 * MIB);
    let mut limit = Limit::new(Toy::default(), Some(10 * MIB));
    let six = limit.allocate(&mut dev, request(6 * MIB)).unwrap();
    assert_eq!(limit.allocate(&mut dev, request(5 * MIB)), Err(AllocError::OutOfMemory));
    let four = limit.allocate(&mut dev, request(4 * MIB)).unwrap();
    assert_eq!(dev.usage().reserved, 10 * MIB, "the limit itself is allowed");
    limit.free(&mut dev, six).unwrap();
    let five = limit.allocate(&mut dev, request(5 * MIB)).unwrap();
    assert_eq!(dev.usage().reserved, 9 * MIB, "the cached block went back to the device");
    limit.free(&mut dev, four).unwrap();
    limit.control(&mut dev, Control::Limit(Some(MIB))).unwrap();
    assert_eq!(limit.allocate(&mut dev, request(512)), Err(AllocError::OutOfMemory), "5 MiB are live");
    limit.control(&mut dev, Control::Limit(None)).unwrap();
    let all = limit.allocate(&mut dev, request(50 * MIB)).unwrap();
    assert_eq!(limit.control(&mut dev, Control::PoolCreate(PoolId(1))), Err(ControlError::Unsupported));
    limit.free(&mut dev, all).unwrap();
    limit.free(&mut dev, five).unwrap();
    assert_eq!(limit.trim(&mut dev, 0), Ok(55 * MIB));
}

/// Maps one page more on every request, keeps all, and sizes nothing.
struct Grower(VirtualRange);

impl Strategy for Grower {
    fn allocate(&mut self, dev: &mut dyn Device, req: Request) -> Result<Block, AllocError> {
        assert!(dev.memory_info()?.free <= 10 * MIB);
        self.0.map(dev, self.0.mapped_bytes(), req.size)?;
        Ok(Block::empty())
    }

    fn free(&mut self, _dev: &mut dyn Device, _block: Block) -> Result<(), crate::error::FreeError> {
        Ok(())
    }

    fn record_stream(&mut self, _: &mut dyn Device, _: &Block, _: StreamId) -> Result<(), AllocError> {
        Ok(())
    }

    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<u64, AllocError> {
        let bytes = self.0.mapped_bytes() - keep;
        self.0.unmap(dev, keep, bytes)?;
        Ok(bytes)
    }

    fn inspect(&self, _visit: &mut dyn FnMut(Span)) {}
}

#[test]
fn mapped_memory_counts_towards_the_limit() {
    let mut dev = SimDevice::new(64 * MIB);
    let range = VirtualRange::reserve(&mut dev, 64 * MIB, 2 * MIB).unwrap();
    let mut limit = Limit::new(Grower(range), Some(10 * MIB));
    limit.allocate(&mut dev, request(6 * MIB)).unwrap();
    let refused = limit.allocate(&mut dev, request(6 * MIB));
    assert_eq!(refused, Err(AllocError::Device(DeviceError::OutOfMemory)));
    assert_eq!(dev.usage().reserved, 6 * MIB, "what was created in vain is back");
    limit.allocate(&mut dev, request(4 * MIB)).unwrap();
    limit.trim(&mut dev, 2 * MIB).unwrap();
    assert!(limit.allocate(&mut dev, request(10 * MIB)).is_err());
    limit.allocate(&mut dev, request(8 * MIB)).unwrap();
    assert_eq!(dev.usage().reserved, 10 * MIB);
}
