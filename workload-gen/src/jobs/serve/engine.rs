//! One model's server: its queue, its running batch, and what a step does.
//!
//! A step admits what waits and fits, runs the prompts of what was admitted, and then one decode pass over all that runs.
//! Blocks are counted as a scheduler counts them; if a decode pass needs more than there are, the youngest sequences lose theirs and wait
//! to be computed anew.

use super::cache::{Cache, Layout, pool};
use super::graphs::{Graph, Plan};
use super::model::{Model, Names, Shape};
use crate::lengths::{Counts, Pairs};
use crate::tensor::{Dtype, Gpu, Role, Tensor};
use std::collections::VecDeque;

/// What all servers of a job have in common.
pub(super) struct Config {
    pub shape: Shape,
    pub layout: Layout,
    /// Tokens that the caches of one model have room for.
    pub room: u64,
    pub max_batch: u64,
    pub max_tokens: u64,
    pub graphs: Option<Plan>,
}

/// A sequence that waits: tokens to compute before the next is generated, and tokens to generate.
#[derive(Clone, Copy)]
struct Waiting {
    prompt: u64,
    left: u64,
}

struct Running {
    /// Tokens in the cache.
    length: u64,
    left: u64,
    cache: Cache,
}

/// What is there while the server is awake.
struct Awake {
    model: Model,
    _blocks: Vec<Tensor>,
}

pub(super) struct Engine<'a> {
    config: &'a Config,
    pub names: Names,
    awake: Option<Awake>,
    requests: Pairs,
    arrivals: Counts,
    /// Requests that wait and have not been drawn yet.
    arrived: u64,
    /// What was running and lost its blocks.
    preempted: VecDeque<Waiting>,
    running: Vec<Running>,
    free_grains: u64,
    graphs: Vec<Graph>,
}

impl<'a> Engine<'a> {
    pub fn new(gpu: &Gpu, config: &'a Config, prefix: &str, requests: Pairs, arrivals: Counts) -> Engine<'a> {
        Engine {
            config,
            names: Names::new(gpu, prefix, config.shape.layers),
            awake: None,
            requests,
            arrivals,
            arrived: 0,
            preempted: VecDeque::new(),
            running: Vec::new(),
            free_grains: config.room / config.layout.grain(),
            graphs: Vec::new(),
        }
    }

    /// Loads the weights.
    pub fn load(&mut self, gpu: &Gpu) {
        let model = Model::load(gpu, &self.config.shape, &self.names);
        self.awake = Some(Awake { model, _blocks: Vec::new() });
    }

    /// Runs the largest pass there can be, to see what it takes.
    pub fn profile(&self, gpu: &Gpu) {
        let Some(awake) = &self.awake else { return };
        let (shape, tokens) = (&self.config.shape, self.config.max_tokens);
        let _inputs = self.inputs(gpu, tokens);
        let mut attend = |layer| {
            if shape.writes_scores {
                self.scores(gpu, layer, tokens.min(self.config.shape.max_length), self.config.shape.max_length);
            }
        };
        let hidden = awake.model.forward(gpu, shape, &self.names, tokens, &mut attend);
        awake.model.sample(gpu, shape, &self.names, &hidden, self.config.max_batch);
    }

    /// Allocates the blocks of the cache, if they are allocated beforehand.
    pub fn make_room(&mut self, gpu: &Gpu) {
        if let (Layout::Pool(block), Some(awake)) = (self.config.layout, &mut self.awake) {
            let tokens = self.config.room / block * block;
            awake._blocks = pool(gpu, &self.config.shape, &self.names, tokens);
        }
    }

    /// Captures decode passes. `pools` counts the private pools of the job.
    pub fn capture(&mut self, gpu: &Gpu, pools: &mut u32) {
        let (Some(plan), Some(awake)) = (&self.config.graphs, &self.awake) else { return };
        let (shape, names) = (&self.config.shape, &self.names);
        let pass = |batch| awake.model.forward(gpu, shape, names, batch, &mut |_| {});
        self.graphs = plan.capture(gpu, names.input, pools, pass);
    }

    /// Whether nothing runs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Frees weights and caches. Graphs stay.
    pub fn sleep(&mut self) {
        self.awake = None;
    }

    /// One step. While the server is to fall asleep, nothing is admitted.
    pub fn step(&mut self, gpu: &Gpu, is_closing: bool) {
        self.arrived += self.arrivals.next().unwrap_or(0);
        let Some(awake) = self.awake.take() else { return };
        if !is_closing {
            self.prefill(gpu, &awake.model);
        }
        self.decode(gpu, &awake.model);
        self.awake = Some(awake);
    }

    fn inputs(&self, gpu: &Gpu, tokens: u64) -> [Tensor; 3] {
        // Tokens, positions, and where each token's keys and values go.
        [(); 3].map(|()| gpu.tensor(tokens, Dtype::I64, Role::Input, self.names.input))
    }

    /// Attention without a fused kernel: the scores, and their softmax in 32 bits and back.
    fn scores(&self, gpu: &Gpu, layer: usize, queries: u64, keys: u64) {
        let shape = &self.config.shape;
        let scores =
            |dtype| gpu.tensor(shape.heads * queries * keys, dtype, Role::Temporary, self.names.matrix(layer, 0));
        let raw = scores(shape.dtype);
        let probabilities = scores(Dtype::F32);
        if shape.dtype != Dtype::F32 {
            let _cast = scores(shape.dtype);
            drop(probabilities);
        }
        drop(raw);
    }

    /// The next request that waits. One that lost its blocks comes first.
    fn next_waiting(&mut self) -> Option<Waiting> {
        if let Some(waiting) = self.preempted.pop_front() {
            return Some(waiting);
        }
        self.arrived = self.arrived.checked_sub(1)?;
        let pair = self.requests.next()?;
        let prompt = pair.context.min(self.config.shape.max_length - 1);
        Some(Waiting { prompt, left: pair.generated.min(self.config.shape.max_length - prompt) })
    }

    /// Admits what fits, and runs the prompts of what was admitted.
    fn prefill(&mut self, gpu: &Gpu, model: &Model) {
        let (shape, layout) = (&self.config.shape, self.config.layout);
        let (mut admitted, mut tokens) = (Vec::new(), 0);
        while ((self.running.len() + admitted.len()) as u64) < self.config.max_batch && tokens < self.config.max_tokens
        {
            let Some(waiting) = self.next_waiting() else { break };
            let grains = layout.grains(waiting.prompt);
            if grains > self.free_grains {
                self.preempted.push_front(waiting);
                break;
            }
            self.free_grains -= grains;
            tokens += waiting.prompt;
            let mut cache = Cache::new(shape);
            cache.reserve(gpu, shape, &self.names, layout, waiting.prompt);
            admitted.push((Running { length: 0, left: waiting.left, cache }, waiting.prompt));
        }
        let mut first = 0;
        while first < admitted.len() {
            first += self.prompt_pass(gpu, model, &mut admitted[first..]);
        }
        for (mut sequence, _) in admitted {
            // The prompt's pass gives the first token.
            sequence.left -= 1;
            self.put(sequence);
        }
    }

    /// Runs as many tokens of prompts as a pass may have. Returns how many prompts are done.
    fn prompt_pass(&self, gpu: &Gpu, model: &Model, waiting: &mut [(Running, u64)]) -> usize {
        let (config, names) = (self.config, &self.names);
        let (mut tokens, mut parts) = (0, Vec::new());
        for (sequence, prompt) in waiting.iter() {
            let part = (prompt - sequence.length).min(config.max_tokens - tokens);
            if part == 0 {
                break;
            }
            tokens += part;
            parts.push(part);
        }
        let _inputs = self.inputs(gpu, tokens);
        let mut attend = |layer| {
            for (&part, (sequence, _)) in parts.iter().zip(&mut *waiting) {
                let length = sequence.length + part;
                sequence.cache.append(gpu, &config.shape, names, config.layout, layer, length);
                if config.shape.writes_scores {
                    self.scores(gpu, layer, part, length);
                }
            }
        };
        let hidden = model.forward(gpu, &config.shape, names, tokens, &mut attend);
        let mut done = 0;
        for (part, (sequence, prompt)) in parts.iter().zip(waiting) {
            sequence.length += part;
            done += usize::from(sequence.length == *prompt);
        }
        if done > 0 {
            model.sample(gpu, &config.shape, names, &hidden, done as u64);
        }
        done
    }

    /// Back among those that run, or out if it has all its tokens.
    fn put(&mut self, sequence: Running) {
        if sequence.left > 0 {
            self.running.push(sequence);
        } else {
            self.free_grains += self.config.layout.grains(sequence.length);
        }
    }

    /// Takes a grain for each sequence whose last one is full, from the youngest sequences if need be.
    fn take_grains(&mut self) {
        let grain = self.config.layout.grain();
        let wanted = |running: &[Running]| running.iter().filter(|one| one.length % grain == 0).count() as u64;
        while wanted(&self.running) > self.free_grains {
            let Some(youngest) = self.running.pop() else { break };
            self.free_grains += self.config.layout.grains(youngest.length);
            self.preempted.push_front(Waiting { prompt: youngest.length, left: youngest.left });
        }
        self.free_grains -= wanted(&self.running);
    }

    /// One token more for all that runs.
    fn decode(&mut self, gpu: &Gpu, model: &Model) {
        self.take_grains();
        let batch = self.running.len() as u64;
        if batch == 0 {
            return;
        }
        let (shape, layout) = (&self.config.shape, self.config.layout);
        let mut running = std::mem::take(&mut self.running);
        for one in &mut running {
            one.length += 1;
            one.left -= 1;
            one.cache.reserve(gpu, shape, &self.names, layout, one.length);
        }
        let _inputs = self.inputs(gpu, batch);
        let sampled = match self.graphs.iter().find(|graph| graph.batch >= batch) {
            Some(graph) => model.sample(gpu, shape, &self.names, &graph.output, batch),
            None => {
                let mut attend = |layer| {
                    for one in &mut running {
                        one.cache.append(gpu, shape, &self.names, layout, layer, one.length);
                        if shape.writes_scores {
                            self.scores(gpu, layer, 1, one.length);
                        }
                    }
                };
                let hidden = model.forward(gpu, shape, &self.names, batch, &mut attend);
                model.sample(gpu, shape, &self.names, &hidden, batch)
            }
        };
        drop(sampled);
        for one in running {
            self.put(one);
        }
    }
}
