//! Nanoseconds per call of the strategies, measured as `shared/oracle/bench` measures PyTorch's own allocator, so
//! that the two can stand side by side (`scripts/speed` puts them there).
//!
//! ```text
//! speed strategy NAME [KEY=VALUE…] FILE…    measures a strategy by its name, with parameters
//! speed names                     the strategies that it can measure
//! speed time FORM FILE…           measures `caching` in one of four forms
//! speed make LOAD N SEED FILE     writes one: a small, mixed, or comb load with N live blocks
//! speed convert TRACE FILE        writes one: a recording that comes with `workload-gen`, by name, or a trace file
//! ```
//!
//! A strategy is measured by handle, through `dyn`, as whoever makes it from its name calls it, and on a device that
//! costs nothing (`stub`).
//!
//! The forms are those of one known strategy, and on the simulated device: `by_handle` frees a block by the handle that
//! it was handed out with. `by_address` keeps a table of blocks by their addresses. `by_address_locked` locks a mutex
//! around that at every call, which is the service that PyTorch's functions give. `counted` is `by_handle` with the
//! calls in functions of their own, so that callgrind can count their instructions alone (`scripts/instructions`). All
//! keep full statistics.

mod load;
mod stub;

use allocator_core::adapt::{AddressIndex, Locked};
use allocator_core::{AllocError, Block, Configure, Device, FreeError, Request, SimDevice, Strategy, StreamId};
use harness::registry::{STRATEGIES, Setting, configure};
use load::{Load, calls_of};
use rand::SeedableRng;
use rand_pcg::Pcg64;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Instant;
use strategy_caching::{Caching, Params};
use stub::Stub;
use workload_gen::{Embedded, embedded, format};

const USAGE: &str = "usage: speed strategy NAME [KEY=VALUE…] FILE…
       speed names
       speed time by_handle|by_address|by_address_locked|counted FILE…
       speed make small|mixed|comb N SEED FILE
       speed convert TRACE FILE";

/// As many as the reference makes.
const PASSES: usize = 9;
/// Room for every load; the reference is started with as much.
const DEVICE_BYTES: u64 = 400 << 30;

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

/// A strategy that only its name tells.
struct Named(Box<dyn Strategy>, Stub);

impl Service for Named {
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

fn measure<S: Service>(mut service: S, name: &str, form: &str, path: &str, load: &Load) -> S {
    let mut passes = [0.0; PASSES].map(|_| pass(&mut service, load));
    let first = passes[0];
    passes.sort_by(f64::total_cmp);
    let (median, least) = (passes[PASSES / 2], passes[0]);
    let operations = load.operations.len();
    println!("{name},{form},{path},ops {operations},first {first:.2},median {median:.2},min {least:.2} ns/op");
    service
}

fn time(form: &str, path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let load = Load::read(path).map_err(|error| format!("{path}: {error}"))?;
    let dev = SimDevice::new(DEVICE_BYTES);
    let strategy = Caching::new(Params::default(), &dev.info())?;
    match form {
        "by_handle" => drop(measure(ByHandle(strategy, dev), "caching", form, path, &load)),
        "by_address" => drop(measure(ByAddress(AddressIndex::new(strategy), dev), "caching", form, path, &load)),
        "by_address_locked" => {
            let service = ByAddressLocked(Locked::new(AddressIndex::new(strategy)), dev);
            drop(measure(service, "caching", form, path, &load));
        }
        "counted" => {
            let Counted(.., calls) = measure(Counted(strategy, dev, 0), "caching", form, path, &load);
            println!("caching,{form},{path},calls {calls}");
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

fn strategy(name: &str, words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let entry = STRATEGIES.iter().find(|entry| entry.name == name).ok_or_else(|| format!("no strategy '{name}'"))?;
    let settings: Vec<Setting> = words
        .iter()
        .map_while(|word| word.split_once('='))
        .map(|(key, value)| Setting { key: key.to_string(), value: value.to_string() })
        .collect();
    let paths = &words[settings.len()..];
    if paths.is_empty() {
        return Err(USAGE.into());
    }
    for path in paths {
        let load = Load::read(path).map_err(|error| format!("{path}: {error}"))?;
        for one in configure(&[entry], &settings)? {
            let mut dev = Stub::new(SimDevice::new(DEVICE_BYTES).info());
            drop(measure(Named(one.strategy(&mut dev)?, dev), &one.title(), "by_handle", path, &load));
        }
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
        ["strategy", name, ref words @ ..] => strategy(name, words),
        ["names"] => {
            STRATEGIES.iter().filter(|entry| !entry.stream_ordered).for_each(|entry| println!("{}", entry.name));
            Ok(())
        }
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
