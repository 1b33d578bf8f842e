//! An inference server: weights that stay, caches that grow with each token, and bursts when prompts come.

mod cache;
mod engine;
mod graphs;
mod model;
mod params;
mod training;

use super::{COMMON, Generator, Job};
use crate::lengths::{Arrivals, Lengths, Pairs, Rng};
use crate::spec::Values;
use crate::tensor::{self, Batch, Gpu, Sink};
use allocator_core::StreamId;
use cache::Layout;
use engine::{Config, Engine};
use graphs::Plan;
use model::Shape;
use training::Training;

pub(super) const GENERATOR: Generator = Generator {
    name: "serve",
    about: "an inference server: requests, prefill, decode, caches of keys and values, CUDA graphs, sleep for training",
    version: 1,
    params: &[params::MODEL, params::LOAD, params::CACHE, params::GRAPHS, params::SLEEP, COMMON],
    build,
};

/// The device that a server is made for if none is named.
const DEVICE: u64 = 80 << 30;

struct Serve {
    config: Config,
    steps: u64,
    models: u64,
    has_own_streams: bool,
    prompt: Lengths,
    output: Lengths,
    arrivals: Arrivals,
    training: Option<Training>,
    rng: Rng,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    let (models, has_own_streams) = (values.int("models"), values.flag("own-streams"));
    let streams = if has_own_streams { models } else { 1 };
    let config = Config {
        shape: Shape::new(values)?,
        layout: layout(values)?,
        room: 0,
        max_batch: values.int("max-batch"),
        max_tokens: values.int("max-tokens"),
        graphs: Plan::new(values, StreamId(streams as u32))?,
    };
    let mut serve = Serve {
        steps: values.int("steps"),
        models,
        has_own_streams,
        prompt: Lengths::parse(values.text("prompt"))?,
        output: Lengths::parse(values.text("output"))?,
        arrivals: Arrivals::parse(values.text("arrivals"))?,
        training: Training::new(values)?,
        rng: Rng::new(values.int("seed")),
        config,
    };
    serve.config.room = room(&serve, values)?;
    Ok(Box::new(serve))
}

fn layout(values: &Values) -> Result<Layout, String> {
    let is_paged = values.text("kv") == "paged";
    let (others, kv) = if is_paged { (&["step"][..], "paged") } else { (&["block", "pages"][..], "contiguous") };
    if let Some(key) = others.iter().find(|key| values.is_changed(key)) {
        return Err(format!("{key} has no meaning with kv={kv}"));
    }
    Ok(match (is_paged, values.text("pages")) {
        (false, _) => Layout::Contiguous(values.int("step")),
        (true, "demand") => Layout::Demand(values.int("block")),
        (true, _) => Layout::Pool(values.int("block")),
    })
}

/// Tokens that the caches of each model have room for: what all weights and the largest pass leave. Graphs come later, and
/// take what the share leaves.
fn room(serve: &Serve, values: &Values) -> Result<u64, String> {
    struct Nobody;
    impl Sink for Nobody {
        fn take(&mut self, _: &Batch) -> bool {
            true
        }
    }
    let mut taken = 0;
    let trial = |gpu: &Gpu| {
        let mut engines = serve.engines(gpu);
        engines.iter_mut().enumerate().for_each(|(number, engine)| serve.on(gpu, number, || engine.load(gpu)));
        engines.iter().enumerate().for_each(|(number, engine)| serve.on(gpu, number, || engine.profile(gpu)));
        taken = gpu.max_allocated();
        gpu.exit();
    };
    tensor::run(trial, &mut Nobody);
    let device = if values.bytes("device") == 0 { DEVICE } else { values.bytes("device") };
    let share = (device as f64 * values.real("memory-share")) as u64;
    let config = &serve.config;
    let room = share.saturating_sub(taken) / serve.models / config.shape.token_bytes();
    if room / config.layout.grain() < config.layout.grains(config.shape.max_length) {
        return Err(format!(
            "weights and the largest pass take {} MiB; of memory-share={} of a device of {} MiB that leaves caches of {room} tokens, \
             and max-length={} has to fit; the way out is a larger device or memory-share, a smaller max-length or max-tokens, or tp",
            taken >> 20,
            values.text("memory-share"),
            device >> 20,
            config.shape.max_length
        ));
    }
    Ok(room)
}

impl Serve {
    fn engines(&self, gpu: &Gpu) -> Vec<Engine<'_>> {
        let engine = |number| {
            let prefix = if self.models == 1 { String::new() } else { format!("{number}.") };
            let rng = self.rng.fork(number);
            let requests = Pairs::new(&self.prompt, &self.output, &rng.fork(0));
            Engine::new(gpu, &self.config, &prefix, requests, self.arrivals.counts(rng.fork(1)))
        };
        (0..self.models).map(engine).collect()
    }

    fn on<T>(&self, gpu: &Gpu, number: usize, body: impl FnOnce() -> T) -> T {
        let stream = if self.has_own_streams { number as u32 } else { 0 };
        gpu.on_stream(StreamId(stream), body)
    }
}

impl Job for Serve {
    fn run(&self, gpu: &Gpu) {
        let mut engines = self.engines(gpu);
        let mut pools = 0;
        for (number, engine) in engines.iter_mut().enumerate() {
            self.on(gpu, number, || {
                engine.load(gpu);
                engine.profile(gpu);
                gpu.sync();
                gpu.empty_cache();
                engine.make_room(gpu);
                engine.capture(gpu, &mut pools);
            });
        }
        let mut awake = 0;
        for step in 1..=self.steps {
            if gpu.is_stopped() {
                break;
            }
            gpu.mark(format!("iteration {step}"));
            awake += 1;
            let is_closing = self.training.as_ref().is_some_and(|training| awake > training.every);
            for (number, engine) in engines.iter_mut().enumerate() {
                self.on(gpu, number, || engine.step(gpu, is_closing));
            }
            // The host reads the tokens.
            gpu.sync();
            if let Some(training) = self.training.as_ref().filter(|_| is_closing)
                && engines.iter().all(Engine::is_idle)
            {
                self.sleep(gpu, training, &mut engines);
                awake = 0;
            }
        }
        gpu.exit();
    }
}

impl Serve {
    /// All models give the card to training, and get it back.
    fn sleep(&self, gpu: &Gpu, training: &Training, engines: &mut [Engine<'_>]) {
        gpu.mark("sleep");
        engines.iter_mut().for_each(Engine::sleep);
        gpu.empty_cache();
        gpu.mark("training");
        if let Some(first) = engines.first() {
            training.run(gpu, &self.config.shape, &first.names);
        }
        gpu.sync();
        gpu.empty_cache();
        gpu.mark("wake");
        for (number, engine) in engines.iter_mut().enumerate() {
            self.on(gpu, number, || {
                engine.load(gpu);
                engine.make_room(gpu);
            });
        }
    }
}
