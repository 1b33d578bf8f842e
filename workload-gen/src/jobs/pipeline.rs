//! Producers and consumers on streams of their own: memory that is allocated on one and last used on another.
//!
//! It is what a prefetching loader, or stages of preprocessing, do. The host runs ahead of the device: it frees a block as
//! soon as it has queued the work that reads it. So either the allocator is told who else reads it (`record_stream`) and has
//! to wait before the block is used anew, or the stream that owns the block waits for the reader first.

use super::churn::is_lengths;
use super::{COMMON, Generator, Job};
use crate::lengths::{Lengths, Rng};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Dtype, Gpu, Role, Tensor};
use allocator_core::StreamId;
use std::collections::VecDeque;

pub(super) const GENERATOR: Generator = Generator {
    name: "pipeline",
    about: "producers and consumers over several streams, with work, waits and record_stream",
    version: 1,
    params: &[PARAMS, COMMON],
    build,
};

const PARAMS: &[Param] = &[
    Param {
        key: "items",
        about: "items that pass through",
        kind: Kind::Int { min: 1, max: 1_000_000_000 },
        default: "1000",
        unit: "items",
    },
    Param {
        key: "streams",
        about: "streams: the first produces",
        kind: Kind::Int { min: 2, max: 8 },
        default: "4",
        unit: "streams",
    },
    Param {
        key: "shape",
        about: "chain: each stream passes on to the next; fan: the others consume in turn what the first produces",
        kind: Kind::Choice(&["chain", "fan"]),
        default: "chain",
        unit: "",
    },
    Param {
        key: "size",
        about: "distribution of the sizes of items, as lengths are written; a stage's output has a size of its own",
        kind: Kind::Text("a distribution such as uniform(1048576,33554432)", is_lengths),
        default: "uniform(1048576,33554432)",
        unit: "bytes",
    },
    Param {
        key: "depth",
        about: "items that wait before each consumer",
        kind: Kind::Int { min: 0, max: 1000 },
        default: "2",
        unit: "items",
    },
    Param {
        key: "temporaries",
        about: "blocks that a stage needs while it runs, as large as its output",
        kind: Kind::Int { min: 0, max: 100 },
        default: "2",
        unit: "blocks",
    },
    Param {
        key: "handover",
        about: "record: the allocator is told of the reader, by record_stream; wait: the owner's stream waits for the reader",
        kind: Kind::Choice(&["record", "wait"]),
        default: "record",
        unit: "",
    },
    Param {
        key: "work",
        about: "length of the kernel that makes an item; each stage is half as long again as the one before",
        kind: Kind::Int { min: 0, max: 1_000_000_000 },
        default: "100000",
        unit: "nanoseconds",
    },
    Param {
        key: "host",
        about: "what the host does otherwise for each item",
        kind: Kind::Int { min: 0, max: 1_000_000_000 },
        default: "50000",
        unit: "nanoseconds",
    },
    Param {
        key: "sync",
        about: "items after which the host waits for the device; 0 for never",
        kind: Kind::Int { min: 0, max: 1_000_000_000 },
        default: "16",
        unit: "items",
    },
];

struct Pipeline {
    items: u64,
    streams: usize,
    is_fan: bool,
    sizes: Lengths,
    depth: usize,
    temporaries: u64,
    records: bool,
    work: u64,
    host: u64,
    sync: u64,
    rng: Rng,
}

fn build(values: &Values) -> Result<Box<dyn Job>, String> {
    Ok(Box::new(Pipeline {
        items: values.int("items"),
        streams: values.int("streams") as usize,
        is_fan: values.text("shape") == "fan",
        sizes: Lengths::parse(values.text("size"))?,
        depth: values.int("depth") as usize,
        temporaries: values.int("temporaries"),
        records: values.text("handover") == "record",
        work: values.int("work"),
        host: values.int("host"),
        sync: values.int("sync"),
        rng: Rng::new(values.int("seed")),
    }))
}

/// An item, and the stream that made it.
struct Item {
    tensor: Tensor,
    owner: StreamId,
}

impl Job for Pipeline {
    fn run(&self, gpu: &Gpu) {
        let names: Vec<_> = (0..self.streams).map(|stage| gpu.name(&format!("stage.{stage}"))).collect();
        let mut sizes = self.sizes.sampler(self.rng.clone());
        // One stage's output, with what it needs meanwhile.
        let mut produce = |stage: usize| {
            let bytes = sizes.draw();
            let temporary = |_| gpu.tensor(bytes, Dtype::U8, Role::Temporary, names[stage]);
            let temporaries: Vec<_> = (0..self.temporaries).map(temporary).collect();
            let output = gpu.tensor(bytes, Dtype::U8, Role::Activation, names[stage]);
            gpu.work(self.work + self.work / 2 * stage as u64);
            drop(temporaries);
            output
        };
        // What waits before each stage; nothing does before the first.
        let mut queues: Vec<VecDeque<Item>> = (0..self.streams).map(|_| VecDeque::new()).collect();
        let mut item = 0;
        while item < self.items || queues.iter().any(|queue| !queue.is_empty()) {
            if gpu.is_stopped() {
                return;
            }
            let consumer = if self.is_fan { 1 + (item % (self.streams as u64 - 1)) as usize } else { 1 };
            let is_draining = item >= self.items;
            item += 1;
            gpu.host(self.host);
            if !is_draining {
                queues[consumer].push_back(Item { tensor: produce(0), owner: StreamId(0) });
            }
            for stage in 1..self.streams {
                if queues[stage].len() <= self.depth && !is_draining {
                    continue;
                }
                let Some(input) = queues[stage].pop_front() else { continue };
                let stream = StreamId(stage as u32);
                let output = gpu.on_stream(stream, || {
                    gpu.wait_for(input.owner);
                    if self.records {
                        gpu.record_stream(&input.tensor, stream);
                    }
                    produce(stage)
                });
                if !self.records {
                    gpu.on_stream(input.owner, || gpu.wait_for(stream));
                }
                drop(input);
                if !self.is_fan && stage + 1 < self.streams {
                    queues[stage + 1].push_back(Item { tensor: output, owner: stream });
                }
            }
            if self.sync > 0 && item % self.sync == 0 {
                gpu.sync();
            }
        }
    }
}
