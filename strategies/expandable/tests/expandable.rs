//! What the preset is for: growing requests do not strand what came before them.

use allocator_core::{Configure, Device, LogDevice, Machine, Request, ScriptDevice, SimDevice, Strategy, StreamId};
use strategy_caching::{Caching, Params as CachingParams};
use strategy_expandable::{Expandable, Params};

const MIB: u64 = 1 << 20;

/// Reserved bytes after requests that grow by 2 MiB a time, each freed before the next.
fn ramp(strategy: &mut dyn Strategy, dev: &mut dyn Machine) -> u64 {
    for mib in (20..120).step_by(2) {
        let block = strategy.allocate(dev, Request::new(mib * MIB, StreamId::DEFAULT)).unwrap();
        strategy.free(dev, block).unwrap();
    }
    dev.usage().reserved
}

#[test]
fn a_ramp_of_sizes_stays_flat() {
    let mut dev = SimDevice::new(80 << 30);
    let mut expandable = Expandable::new(Params::default(), &dev.info()).unwrap();
    assert_eq!(ramp(&mut expandable, &mut dev), 120 * MIB);
    let mut dev = SimDevice::new(80 << 30);
    let mut caching = Caching::new(CachingParams::default(), &dev.info()).unwrap();
    assert_eq!(ramp(&mut caching, &mut dev), (20..120).step_by(2).sum::<u64>() * MIB);
}

/// Decisions depend on calls and on the device's answers alone: the log of one device is enough to make them again.
#[test]
fn a_run_repeats_from_its_log() {
    let mut log = LogDevice::new(SimDevice::new(80 << 30));
    let mut expandable = Expandable::new(Params::default(), &log.info()).unwrap();
    let reserved = ramp(&mut expandable, &mut log);
    let mut script = ScriptDevice::play(log.info(), log.steps().to_vec());
    let mut again = Expandable::new(Params::default(), &script.info()).unwrap();
    assert_eq!(ramp(&mut again, &mut script), reserved);
    assert_eq!(script.finish(), Ok(()));
}

#[test]
fn addresses_do_not_run_out_where_each_range_gets_new_ones() {
    // The simulated device gives no address twice before it has to: these are ranges of 22 TiB in all.
    let mut dev = SimDevice::new(80 << 30);
    let mut strategy = Expandable::new(Params::default(), &dev.info()).unwrap();
    let small = strategy.allocate(&mut dev, Request::new(512, StreamId(0))).unwrap();
    for round in 0..250 {
        let large = strategy
            .allocate(&mut dev, Request::new(4 << 20, StreamId(0)))
            .unwrap_or_else(|error| panic!("{error} in round {round}"));
        strategy.free(&mut dev, large).unwrap();
        assert!(strategy.trim(&mut dev, 0).unwrap() > 0);
    }
    strategy.free(&mut dev, small).unwrap();
    strategy.trim(&mut dev, 0).unwrap();
    assert_eq!(dev.usage().reserved, 0);
}
