//! What is measured: calls on one stream, from a file that the reference reads, too.
//!
//! A file holds 8-byte numbers: how many operations and ids there are; the operations (above 0: allocate that id;
//! below: free it); the sizes by id.

use allocator_core::{PoolId, StreamId};
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use std::io::{Error, ErrorKind, Write};
use workload_gen::{Event, Trace};

/// Replacements per live block in the random loads.
const ROUNDS: usize = 4;

/// See the module.
#[derive(Default)]
pub struct Load {
    pub operations: Vec<i64>,
    pub sizes: Vec<u64>,
}

impl Load {
    pub fn read(path: &str) -> std::io::Result<Load> {
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

    pub fn write(&self, path: &str) -> std::io::Result<()> {
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
    pub fn random(live: usize, largest: u64, rng: &mut Pcg64) -> Load {
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
    pub fn comb(live: usize, rng: &mut Pcg64) -> Load {
        let mut load = Load::default();
        let mut second: Vec<i64> = (0..live).map(|_| load.allocate(4096)).filter(|id| id % 2 == 0).collect();
        second.shuffle(rng);
        load.operations.extend(second.iter().map(|id| -id));
        load.operations.extend(&second);
        load
    }
}

/// The calls of a trace on the default stream and pool. Their blocks get ids of their own, as the reference has it.
pub fn calls_of(trace: &Trace) -> Result<Load, String> {
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
