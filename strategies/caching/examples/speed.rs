//! Nanoseconds per call of the caching strategy, measured as `shared/oracle/bench` measures PyTorch's own allocator, so
//! that the two can stand side by side (`scripts/speed` puts them there).
//!
//! ```text
//! speed time FORM FILE…           measures files
//! speed make LOAD N SEED FILE     writes one: a small, mixed, or comb load with N live blocks
//! speed convert TRACE FILE        writes one: a recording that comes with `workload-gen`, by name, or a trace file
//! ```
//!
//! The forms: `by_handle` frees a block by the handle that it was handed out with. `by_address` keeps a table of blocks
//! by their addresses. `by_address_locked` locks a mutex around that at every call, which is the service that PyTorch's
//! functions give. `counted` is `by_handle` with the calls in functions of their own, so that callgrind can count their
//! instructions alone (`scripts/instructions`). All keep full statistics.
//!
//! A file holds 8-byte numbers: how many operations and ids there are; the operations (above 0: allocate that id;
//! below: free it); the sizes by id.

use allocator_core::adapt::{AddressIndex, Locked};
use allocator_core::{AllocError, Block, Configure, Device, FreeError, PoolId, Request, SimDevice, Strategy, StreamId};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::io::{Error, ErrorKind, Write};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Instant;
use strategy_caching::{Caching, Params};
use workload_gen::{Embedded, Event, Trace, embedded, format};

const USAGE: &str = "usage: speed time by_handle|by_address|by_address_locked|counted FILE…
       speed make small|mixed|comb N SEED FILE
       speed convert TRACE FILE";

/// As many as the reference makes.
const PASSES: usize = 9;
/// Room for every load; the reference is started with as much.
const DEVICE_BYTES: u64 = 400 << 30;
/// Replacements per live block in the random loads.
const ROUNDS: usize = 4;

#[derive(Default)]
struct Load {
    operations: Vec<i64>,
    sizes: Vec<u64>,
}

impl Load {
    fn read(path: &str) -> std::io::Result<Load> {
        let bytes = std::fs::read(path)?;
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let mut next = || words.next().ok_or_else(|| Error::new(ErrorKind::UnexpectedEof, "the file ends early"));
        let (operations, sizes) = (next()?, next()?);
        let operations: Vec<i64> = (0..operations).map(|_| Ok(next()? as i64)).collect::<std::io::Result<_>>()?;
        let sizes: Vec<u64> = (0..sizes).map(|_| next()).collect::<std::io::Result<_>>()?;
        if operations.iter().any(|operation| !(1..=sizes.len() as u64).contains(&operation.unsigned_abs())) {
            return Err(Error::new(ErrorKind::InvalidData, "an operation names an id that has no size"));
        }
        Ok(Load { operations, sizes })
    }

    fn write(&self, path: &str) -> std::io::Result<()> {
        let mut out = std::io::BufWriter::new(std::fs::File::create(path)?);
        for count in [self.operations.len(), self.sizes.len()] {
            out.write_all(&(count as u64).to_le_bytes())?;
        }
        self.operations.iter().try_for_each(|operation| out.write_all(&operation.to_le_bytes()))?;
        self.sizes.iter().try_for_each(|size| out.write_all(&size.to_le_bytes()))?;
        out.flush()
    }

    fn allocate(&mut self, size: u64) -> i64 {
        self.sizes.push(size);
        let id = self.sizes.len() as i64;
        self.operations.push(id);
        id
    }

    /// `live` blocks, then random ones replaced by others, all of log-uniform sizes.
    fn random(live: usize, largest: u64, rng: &mut Pcg64) -> Load {
        let mut load = Load::default();
        let size = |rng: &mut Pcg64| (512.0 * (largest as f64 / 512.0).powf(rng.random_range(0.0..1.0))) as u64;
        let mut ids: Vec<i64> = (0..live).map(|_| load.allocate(size(rng))).collect();
        for _ in 0..ROUNDS * live {
            let id = &mut ids[rng.random_range(0..live)];
            load.operations.push(-*id);
            *id = load.allocate(size(rng));
        }
        load
    }

    /// `live` equal blocks, of which every second one is freed, in random order, and then allocated again.
    fn comb(live: usize, rng: &mut Pcg64) -> Load {
        let mut load = Load::default();
        let mut second: Vec<i64> = (0..live).map(|_| load.allocate(4096)).filter(|id| id % 2 == 0).collect();
        second.shuffle(rng);
        load.operations.extend(second.iter().map(|id| -id));
        load.operations.extend(&second);
        load
    }
}

/// The calls of a trace on the default stream and pool. Their blocks get ids of their own, as the reference has it.
fn calls_of(trace: &Trace) -> Result<Load, String> {
    let mut load = Load::default();
    let mut ids = vec![0; trace.header.slots as usize];
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, stream: StreamId::DEFAULT, pool: PoolId::DEFAULT } => {
                ids[slot as usize] = load.allocate(size);
            }
            Event::Free { slot, ticket: None } => load.operations.push(-ids[slot as usize]),
            Event::Work { .. } | Event::Sync { .. } | Event::Host { .. } | Event::Mark { .. } => {}
            other => return Err(format!("{other:?} is no call that the reference can make")),
        }
    }
    Ok(load)
}

/// The calls that are measured. They are part of the loop, as calls of a strategy that the compiler knows are anywhere.
trait Service {
    /// What the caller keeps of a block.
    type Block;
    fn allocate(&mut self, size: u64) -> Option<Self::Block>;
    fn free(&mut self, block: Self::Block);
}

struct ByHandle(Caching, SimDevice);

impl Service for ByHandle {
    type Block = Block;

    #[inline(always)]
    fn allocate(&mut self, size: u64) -> Option<Block> {
        Some(self.0.allocate(&mut self.1, Request::new(size, StreamId::DEFAULT)).expect("memory"))
    }

    #[inline(always)]
    fn free(&mut self, block: Block) {
        self.0.free(&mut self.1, block).expect("a live block");
    }
}

/// [`ByHandle`], with the calls of the strategy kept apart from the loop and counted.
struct Counted(Caching, SimDevice, u64);

#[inline(never)]
fn counted_allocate(strategy: &mut Caching, dev: &mut dyn Device, request: Request) -> Result<Block, AllocError> {
    strategy.allocate(dev, request)
}

#[inline(never)]
fn counted_free(strategy: &mut Caching, dev: &mut dyn Device, block: Block) -> Result<(), FreeError> {
    strategy.free(dev, block)
}

impl Service for Counted {
    type Block = Block;

    #[inline(always)]
    fn allocate(&mut self, size: u64) -> Option<Block> {
        self.2 += 1;
        Some(counted_allocate(&mut self.0, &mut self.1, Request::new(size, StreamId::DEFAULT)).expect("memory"))
    }

    #[inline(always)]
    fn free(&mut self, block: Block) {
        self.2 += 1;
        counted_free(&mut self.0, &mut self.1, block).expect("a live block");
    }
}

struct ByAddress(AddressIndex<Caching>, SimDevice);

impl Service for ByAddress {
    type Block = NonZeroU64;

    #[inline(always)]
    fn allocate(&mut self, size: u64) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.allocate(&mut self.1, Request::new(size, StreamId::DEFAULT)).expect("memory"))
    }

    #[inline(always)]
    fn free(&mut self, block: NonZeroU64) {
        self.0.free(&mut self.1, block.get()).expect("a live block");
    }
}

struct ByAddressLocked(Locked<AddressIndex<Caching>>, SimDevice);

impl Service for ByAddressLocked {
    type Block = NonZeroU64;

    #[inline(always)]
    fn allocate(&mut self, size: u64) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.allocate(&mut self.1, Request::new(size, StreamId::DEFAULT)).expect("memory"))
    }

    #[inline(always)]
    fn free(&mut self, block: NonZeroU64) {
        self.0.free(&mut self.1, block.get()).expect("a live block");
    }
}

/// One pass: nanoseconds per operation, the table of ids included. What is left at the end is freed off the clock.
fn pass<S: Service>(service: &mut S, load: &Load) -> f64 {
    let mut blocks: Vec<Option<S::Block>> = load.sizes.iter().map(|_| None).collect();
    let start = Instant::now();
    for &operation in &load.operations {
        if operation > 0 {
            let id = operation as usize - 1;
            blocks[id] = service.allocate(load.sizes[id]);
        } else if let Some(block) = blocks[(-operation) as usize - 1].take() {
            service.free(block);
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / load.operations.len() as f64;
    for block in blocks.into_iter().flatten() {
        service.free(block);
    }
    ns
}

fn measure<S: Service>(mut service: S, form: &str, path: &str, load: &Load) -> S {
    let mut passes = [0.0; PASSES].map(|_| pass(&mut service, load));
    let first = passes[0];
    passes.sort_by(f64::total_cmp);
    let (median, least) = (passes[PASSES / 2], passes[0]);
    let operations = load.operations.len();
    println!("caching,{form},{path},ops {operations},first {first:.2},median {median:.2},min {least:.2} ns/op");
    service
}

fn time(form: &str, path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let load = Load::read(path).map_err(|error| format!("{path}: {error}"))?;
    let dev = SimDevice::new(DEVICE_BYTES);
    let strategy = Caching::new(Params::default(), &dev.info())?;
    match form {
        "by_handle" => drop(measure(ByHandle(strategy, dev), form, path, &load)),
        "by_address" => drop(measure(ByAddress(AddressIndex::new(strategy), dev), form, path, &load)),
        "by_address_locked" => {
            let service = ByAddressLocked(Locked::new(AddressIndex::new(strategy)), dev);
            drop(measure(service, form, path, &load));
        }
        "counted" => {
            let Counted(.., calls) = measure(Counted(strategy, dev, 0), form, path, &load);
            println!("caching,{form},{path},calls {calls}");
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

fn make(kind: &str, live: &str, seed: &str, path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let live: usize = live.parse().map_err(|_| USAGE)?;
    let mut rng = Pcg64::seed_from_u64(seed.parse().map_err(|_| USAGE)?);
    let load = match kind {
        "small" => Load::random(live, 64 << 10, &mut rng),
        "mixed" => Load::random(live, 16 << 20, &mut rng),
        "comb" => Load::comb(live, &mut rng),
        _ => return Err(USAGE.into()),
    };
    load.write(path).map_err(|error| format!("{path}: {error}").into())
}

fn convert(trace: &str, path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let recording = embedded().iter().find(|recording| recording.name == trace);
    let read = recording.map_or_else(|| format::open(trace), Embedded::trace)?;
    let load = calls_of(&read).map_err(|error| format!("{trace}: {error}"))?;
    load.write(path).map_err(|error| format!("{path}: {error}").into())
}

fn run(words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    match *words {
        ["time", form, ref paths @ ..] if !paths.is_empty() => paths.iter().try_for_each(|path| time(form, path)),
        ["make", kind, live, seed, path] => make(kind, live, seed, path),
        ["convert", trace, path] => convert(trace, path),
        _ => Err(USAGE.into()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
