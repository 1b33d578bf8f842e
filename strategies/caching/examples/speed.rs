//! Nanoseconds per call of the caching strategy on the traces of `shared/oracle/bench`, in the same form:
//! `speed [--by-address] TRACE.bin…`.
//!
//! TRACE.bin: u64 number of operations, u64 number of ids, i64 operations (above 0: allocate that id; below: free it),
//! u64 sizes by id. `--by-address` frees by address and locks a mutex at every call, which is the service that
//! PyTorch's own functions give; without it blocks are freed by handle.

use allocator_core::adapt::{AddressIndex, Locked};
use allocator_core::{Block, Configure, Device, Request, SimDevice, Strategy, StreamId};
use std::hint::black_box;
use std::time::Instant;
use strategy_caching::{Caching, Params};

const PASSES: usize = 9;

struct Trace {
    operations: Vec<i64>,
    sizes: Vec<u64>,
}

fn read(path: &str) -> std::io::Result<Trace> {
    let bytes = std::fs::read(path)?;
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    let mut next = || words.next().ok_or(std::io::ErrorKind::UnexpectedEof);
    let (operations, sizes) = (next()?, next()?);
    let operations = (0..operations).map(|_| next().map(|word| word as i64)).collect::<Result<_, _>>()?;
    let sizes = (0..sizes).map(|_| next()).collect::<Result<_, _>>()?;
    Ok(Trace { operations, sizes })
}

fn by_handle(trace: &Trace, dev: &mut dyn Device, strategy: &mut Caching) -> f64 {
    let mut blocks: Vec<Option<Block>> = trace.sizes.iter().map(|_| None).collect();
    let start = Instant::now();
    for &operation in &trace.operations {
        if operation > 0 {
            let id = operation as usize - 1;
            let request = Request::new(trace.sizes[id], StreamId::DEFAULT);
            blocks[id] = strategy.allocate(dev, request).ok();
        } else if let Some(block) = blocks[(-operation) as usize - 1].take() {
            black_box(strategy.free(dev, block)).expect("a live block");
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / trace.operations.len() as f64;
    for block in blocks.into_iter().flatten() {
        strategy.free(dev, block).expect("a live block");
    }
    ns
}

fn by_address(trace: &Trace, dev: &mut dyn Device, strategy: &Locked<AddressIndex<Caching>>) -> f64 {
    let mut addresses = vec![0u64; trace.sizes.len()];
    let start = Instant::now();
    for &operation in &trace.operations {
        if operation > 0 {
            let id = operation as usize - 1;
            let request = Request::new(trace.sizes[id], StreamId::DEFAULT);
            addresses[id] = strategy.allocate(dev, request).expect("memory");
        } else {
            let id = (-operation) as usize - 1;
            strategy.free(dev, addresses[id]).expect("a live block");
            addresses[id] = 0;
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / trace.operations.len() as f64;
    for address in addresses.into_iter().filter(|&address| address != 0) {
        strategy.free(dev, address).expect("a live block");
    }
    ns
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments.first().is_some_and(|first| first == "--by-address");
    if address {
        arguments.remove(0);
    }
    let form = if address { "by_address_locked" } else { "by_handle" };
    for path in &arguments {
        let trace = read(path).map_err(|error| format!("{path}: {error}"))?;
        let mut dev = SimDevice::new(80 << 30);
        let strategy = Caching::new(Params::default(), &dev.info())?;
        let mut passes: Vec<f64> = if address {
            let strategy = Locked::new(AddressIndex::new(strategy));
            (0..PASSES).map(|_| by_address(&trace, &mut dev, &strategy)).collect()
        } else {
            let mut strategy = strategy;
            (0..PASSES).map(|_| by_handle(&trace, &mut dev, &mut strategy)).collect()
        };
        passes.sort_by(f64::total_cmp);
        let (median, least) = (passes[PASSES / 2], passes[0]);
        println!("caching,{form},{path},ops {},median {median:.2},min {least:.2} ns/op", trace.operations.len());
    }
    Ok(())
}
