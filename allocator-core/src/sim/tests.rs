use super::*;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;

/// Every kind of call costs something else.
fn profile() -> Profile {
    let [malloc, free] = [Cost { base_ns: 1_000, ns_per_mib: 10 }, Cost::flat(2_000)];
    Profile {
        malloc,
        malloc_failed: Cost::flat(7_000),
        free,
        within_page: Cost::flat(100),
        map: Cost { base_ns: 430, ns_per_mib: 1 },
        unmap: Cost::flat(7),
        poll: Cost::flat(3),
        fence: Cost::flat(5),
        sync: Cost::flat(11),
        ..Profile::default()
    }
}

fn calls(dev: &SimDevice, kind: CallKind) -> (u64, u64) {
    let usage = dev.usage();
    (usage.calls[kind as usize], usage.call_ns[kind as usize])
}

#[test]
fn reservations_follow_each_other() {
    let mut dev = SimDevice::new(1 << 30);
    assert_eq!(dev.reserve(3 << 30), Ok(0x6000_0000_0000));
    assert_eq!(dev.reserve(PAGE), Ok(0x6000_0000_0000 + (3 << 30)));
}

#[test]
fn reserved_is_what_was_asked_and_used_what_the_card_lost() {
    let mut dev = SimDevice::new(100 * MIB);
    let small = dev.malloc(100).unwrap();
    let large = dev.malloc(3 * MIB).unwrap();
    let handle = dev.create(PAGE).unwrap();
    assert_eq!((dev.usage().reserved, dev.usage().device_used), (100 + 3 * MIB + PAGE, 8 * MIB));
    assert_eq!(dev.memory_info(), Ok(MemoryInfo { free: 92 * MIB, total: 100 * MIB }));
    dev.free(small).unwrap();
    dev.free(large).unwrap();
    dev.release(handle).unwrap();
    assert_eq!((dev.usage().reserved, dev.usage().device_used), (0, 0));
}

#[test]
fn capacity_is_shared_by_both_kinds_of_memory() {
    let mut dev = SimDevice::new(7 * MIB);
    assert_eq!(dev.info().total, 7 * MIB);
    let handle = dev.create(PAGE).unwrap();
    dev.malloc(3 * MIB).unwrap();
    assert_eq!(dev.malloc(1), Err(DeviceError::OutOfMemory));
    assert_eq!(dev.create(PAGE), Err(DeviceError::OutOfMemory));
    dev.release(handle).unwrap();
    dev.malloc(1).unwrap();
    assert_eq!(dev.create(PAGE), Err(DeviceError::OutOfMemory));
}

#[test]
fn wrong_arguments_are_refused() {
    let mut dev = SimDevice::new(1 << 30);
    assert_eq!(dev.malloc(0), Err(DeviceError::Invalid(CallKind::Malloc)));
    let ptr = dev.malloc(1024).unwrap();
    assert_eq!(dev.free(ptr + 512), Err(DeviceError::Invalid(CallKind::Free)));
    assert_eq!(dev.free(ptr), Ok(()));
    assert_eq!(dev.free(ptr), Err(DeviceError::Invalid(CallKind::Free)));
    assert!(dev.work(StreamId::ticket(0), 1).is_err());
    assert_eq!(dev.malloc(u64::MAX), Err(DeviceError::OutOfMemory));
}

#[test]
fn calls_are_counted_and_cost_host_time() {
    let mut dev = SimDevice::with_profile(1 << 30, profile());
    dev.malloc(4 * MIB).unwrap();
    dev.malloc(2 << 30).unwrap_err();
    assert_eq!(calls(&dev, CallKind::Malloc), (2, 1_040 + 7_000), "failing has a cost of its own");
    let small = dev.malloc(512).unwrap();
    let shares_its_page = dev.malloc(512).unwrap();
    assert_eq!(calls(&dev, CallKind::Malloc), (4, 2_040 + 7_000 + 100), "the second small one needs no new page");
    dev.free(shares_its_page).unwrap();
    assert_eq!(calls(&dev, CallKind::Free), (1, 100), "the page stays");
    dev.free(small).unwrap();
    assert_eq!(calls(&dev, CallKind::Free), (2, 100 + 2_000));
    let va = dev.reserve(1 << 30).unwrap();
    let handles = [dev.create(PAGE).unwrap(), dev.create(PAGE).unwrap()];
    dev.map(va, &handles).unwrap();
    assert_eq!(calls(&dev, CallKind::Map), (2, 860 + 4), "per handle and per MiB");
    dev.map(va, &handles).unwrap_err();
    assert_eq!(calls(&dev, CallKind::Map), (3, 864 + 430));
    dev.unmap(va, 2 * PAGE).unwrap();
    assert_eq!(calls(&dev, CallKind::Unmap), (2, 14));
    let total: u64 = dev.usage().call_ns.iter().sum();
    assert_eq!(dev.usage().now_ns, total);
    dev.host_work(50);
    assert_eq!(dev.usage().now_ns, total + 50);
}

#[test]
fn free_waits_for_the_device() {
    let mut dev = SimDevice::with_profile(1 << 30, profile());
    let ptr = dev.malloc(MIB).unwrap();
    let before = dev.usage().now_ns;
    dev.work(StreamId(3), 10_000).unwrap();
    dev.work(StreamId(4), 9_000).unwrap();
    assert_eq!(dev.usage().now_ns, before, "work is queued");
    dev.free(ptr).unwrap();
    assert_eq!(dev.usage().now_ns, before + 12_000);
    assert_eq!(calls(&dev, CallKind::Free), (1, 12_000), "the wait is part of the call");
}

#[test]
fn fences_follow_the_clock_and_tickets_the_caller() {
    let mut dev = SimDevice::with_profile(1 << 30, profile());
    dev.work(StreamId(1), 1_000).unwrap();
    let fence = dev.fence(StreamId(1)).unwrap();
    let ticket = dev.fence(StreamId::ticket(0)).unwrap();
    assert_eq!(dev.poll(fence), Ok(false));
    dev.sync(Sync::Fence(fence)).unwrap();
    assert_eq!((dev.poll(fence), dev.poll(ticket)), (Ok(true), Ok(false)));
    let ptr = dev.malloc(MIB).unwrap();
    dev.free(ptr).unwrap();
    assert_eq!(dev.poll(ticket), Ok(false), "only the caller knows when a ticket ends");
    dev.complete(0);
    assert_eq!(dev.poll(ticket), Ok(true));
    for what in [Sync::Fence(Fence { seq: 1, ..ticket }), Sync::Stream(ticket.stream), Sync::Device] {
        let next = dev.fence(ticket.stream).unwrap();
        assert_eq!(dev.poll(next), Ok(false));
        dev.sync(what).unwrap();
        assert_eq!(dev.poll(next), Ok(true), "{what:?}");
    }
    let unknown = Fence { stream: StreamId(9), seq: 0 };
    assert_eq!(dev.poll(unknown), Err(DeviceError::Invalid(CallKind::Poll)));
    assert_eq!(dev.sync(Sync::Fence(unknown)), Err(DeviceError::Invalid(CallKind::Sync)));
    assert_eq!(dev.order_after(StreamId(1), unknown), Err(DeviceError::Invalid(CallKind::OrderAfter)));
}

#[test]
fn waiting_is_booked_on_the_sync() {
    let mut dev = SimDevice::with_profile(1 << 30, profile());
    dev.work(StreamId(1), 1_000).unwrap();
    dev.sync(Sync::Stream(StreamId(1))).unwrap();
    assert_eq!((calls(&dev, CallKind::Sync), dev.usage().now_ns), ((1, 1_000), 1_000));
}

#[test]
fn holds_sees_every_page() {
    let mut dev = SimDevice::new(1 << 30);
    let ptr = dev.malloc(3 * MIB).unwrap();
    assert!(dev.holds(ptr, 3 * MIB) && dev.holds(ptr + MIB, 1) && dev.holds(ptr + 3 * MIB, 0));
    assert!(!dev.holds(ptr, 3 * MIB + 1) && !dev.holds(ptr - 1, 2) && !dev.holds(u64::MAX, 2));
    let va = dev.reserve(1 << 30).unwrap();
    let handles = [0; 3].map(|_| dev.create(PAGE).unwrap());
    dev.map(va, &handles).unwrap();
    assert!(dev.holds(va, 3 * PAGE) && dev.holds(va + PAGE - 1, PAGE));
    dev.unmap(va + PAGE, PAGE).unwrap();
    assert!(dev.holds(va, PAGE) && dev.holds(va + 2 * PAGE, PAGE));
    assert!(!dev.holds(va, 3 * PAGE) && !dev.holds(va + PAGE, 1) && !dev.holds(va + 3 * PAGE, 1));
    dev.free(ptr).unwrap();
    assert!(!dev.holds(ptr, 1));
}

/// A cloned device goes on alone.
#[test]
fn clones_are_independent() {
    let mut dev = SimDevice::new(1 << 30);
    let ptr = dev.malloc(MIB).unwrap();
    let mut twin = dev.clone();
    twin.free(ptr).unwrap();
    assert!(dev.holds(ptr, MIB) && !twin.holds(ptr, MIB));
}

#[test]
fn the_pool_gets_memory_back_when_the_stream_has_come_to_the_free() {
    const A: StreamId = StreamId(1);
    let mut dev = SimDevice::new(4 * MIB).with_stream_ordered();
    assert!(dev.info().stream_ordered);
    let block = dev.malloc_async(4 * MIB, A).unwrap();
    dev.work(A, 1_000).unwrap();
    dev.free_async(block, A).unwrap();
    dev.work(A, 1_000_000).unwrap();
    assert_eq!(dev.malloc_async(4 * MIB, A), Err(DeviceError::OutOfMemory));
    assert_eq!(dev.usage().reserved, 4 * MIB);
    dev.host_work(1_000);
    dev.trim_async(0).unwrap();
    assert_eq!(dev.usage().reserved, 0, "the work behind the free does not matter");
    let block = dev.malloc_async(4 * MIB, A).unwrap();
    dev.free_async(block, A).unwrap();
    dev.sync(Sync::Stream(A)).unwrap();
    assert_eq!(dev.usage().reserved, 0, "waiting is enough");
    assert_eq!(calls(&dev, CallKind::MallocAsync), (3, 0));
    assert_eq!((calls(&dev, CallKind::FreeAsync), calls(&dev, CallKind::TrimAsync)), ((2, 0), (1, 0)));
}

#[test]
fn the_pool_waits_for_tickets_that_its_stream_waits_for() {
    let mut dev = SimDevice::new(4 * MIB).with_stream_ordered();
    let block = dev.malloc_async(MIB, StreamId(1)).unwrap();
    let ticket = dev.fence(StreamId::ticket(0)).unwrap();
    dev.order_after(StreamId(1), ticket).unwrap();
    dev.free_async(block, StreamId(1)).unwrap();
    dev.trim_async(0).unwrap();
    assert_eq!(dev.usage().reserved, MIB);
    dev.complete(0);
    dev.trim_async(0).unwrap();
    assert_eq!(dev.usage().reserved, 0);
}

#[test]
fn the_pool_refuses_what_is_not_its_own() {
    let mut dev = SimDevice::new(1 << 30).with_stream_ordered();
    let (a, ticket) = (StreamId(0), StreamId::ticket(0));
    let [of_pool, other] = [dev.malloc_async(512, a).unwrap(), dev.malloc(512).unwrap()];
    assert_eq!(dev.malloc_async(0, a), Err(DeviceError::Invalid(CallKind::MallocAsync)));
    assert_eq!(dev.malloc_async(512, ticket), Err(DeviceError::Invalid(CallKind::MallocAsync)));
    assert_eq!(dev.free_async(of_pool, ticket), Err(DeviceError::Invalid(CallKind::FreeAsync)));
    assert_eq!(dev.free_async(other, a), Err(DeviceError::Invalid(CallKind::FreeAsync)));
    assert_eq!(dev.free(of_pool), Err(DeviceError::Invalid(CallKind::Free)));
    assert_eq!(dev.free_async(of_pool, a), Ok(()));
    assert_eq!(dev.free(of_pool), Err(DeviceError::Invalid(CallKind::Free)), "freed, but not back yet");
    assert_eq!(dev.free_async(of_pool, a), Err(DeviceError::Invalid(CallKind::FreeAsync)));
    assert_eq!(dev.free(other), Ok(()));
    let mut plain = SimDevice::new(1 << 30);
    assert!(!plain.info().stream_ordered);
    assert_eq!(plain.malloc_async(512, a), Err(DeviceError::Unsupported(CallKind::MallocAsync)));
    assert_eq!(plain.free_async(512, a), Err(DeviceError::Unsupported(CallKind::FreeAsync)));
    assert_eq!(plain.trim_async(0), Err(DeviceError::Unsupported(CallKind::TrimAsync)));
}
