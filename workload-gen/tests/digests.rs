//! Recordings of training on two cards that are too many to be in the repository, by digests: a hash over every allocation's size and stream,
//! and over what was freed since the one before. The generator's line has to make the recording's hash.
//!
//! The recordings were made on two H200 with PyTorch 2.11, transformers 5.17, peft 0.21 and DeepSpeed 0.19.8. Whoever has some
//! names their folder: `RECORDINGS=DIR cargo test -p workload-gen --test digests` holds them to the digests, too.

mod common;

use common::hash::{EMPTY, hash};
use std::path::Path;
use workload_gen::import::import_file;
use workload_gen::spec::Spec;
use workload_gen::{Event, Trace};

/// A recording.
struct Recorded {
    name: &'static str,
    line: &'static str,
    /// From which batch on it is compared; from the making of the model on if from none.
    batch: Option<usize>,
    /// Allocations before that in the recording.
    before: usize,
    /// Allocations from then on, and their digest.
    allocations: usize,
    digest: u64,
}

const LENGTHS: [&str; 2] = [
    "lengths=list(391,450,282,82,224,116,319,107,481,355,1024,396)",
    "lengths=list(163,195,1024,173,89,302,273,396,189,694,378,1024)",
];

/// What each line begins with: GPT-2 or GPT-NeoX with the lengths of the rank, or a larger GPT-NeoX with sequences of 2048 tokens.
const GPT2: &str = "train:gpt2,layers=8,positions=2048,batch=4,steps=12,shaping=alike,ranks=2";
const NEOX: &str = "train:gpt-neox-20b,layers=6,hidden=1024,heads=16,vocab=50432,batch=4,steps=12,shaping=alike,ranks=2,zero=3,convert=yes";
const BIG: &str = "train:gpt-neox-20b,layers=12,hidden=4096,heads=32,vocab=50432,batch=4,steps=6,lengths=2048,ranks=2,zero=3,convert=yes";

const fn recorded(
    name: &'static str,
    line: &'static str,
    batch: Option<usize>,
    found: (usize, usize, u64),
) -> Recorded {
    Recorded { name, line, batch, before: found.0, allocations: found.1, digest: found.2 }
}

/// Adapters are compared from the second batch on: at the first, DeepSpeed finds out which weights peft looks at. Not here are recordings in
/// which a thread of NCCL decides when something is freed, so that the two ranks differ: DDP with clipping, and the larger model with its weights
/// on the host.
const RECORDED: &[Recorded] = &[
    recorded("ddp.rank0", "gpt2", None, (0, 11588, 0x04b656186f9bd8ab)),
    recorded("ddp.rank1", "gpt2", None, (0, 11538, 0xe2f4a661616ddf51)),
    recorded("ds1-gpt2.rank0", "gpt2+,zero=1", None, (0, 11508, 0x9936759b05d86148)),
    recorded("ds1-gpt2.rank1", "gpt2+,zero=1", None, (0, 24226, 0x5484ac15d209d4f6)),
    recorded("ds1-gpt2-accum.rank0", "gpt2+,zero=1,accumulate=2", None, (0, 9504, 0x04bcef7ac9f9a8ec)),
    recorded("ds1-gpt2-accum.rank1", "gpt2+,zero=1,accumulate=2", None, (0, 15838, 0xb9664ca5af96969e)),
    recorded("ds2-gpt2.rank0", "gpt2+,zero=2", None, (0, 11508, 0xa9a20395b00396b8)),
    recorded("ds2-gpt2.rank1", "gpt2+,zero=2", None, (0, 24226, 0x5be15e75f2455fce)),
    recorded("ds2-gpt2-accum.rank0", "gpt2+,zero=2,accumulate=2", None, (0, 9522, 0xfb1718a4ad5813ae)),
    recorded("ds2-gpt2-accum.rank1", "gpt2+,zero=2,accumulate=2", None, (0, 15856, 0x4a6814ccb5933850)),
    recorded("ds2-gpt2-opt.rank0", "gpt2+,zero=2,offload=optimizer", None, (0, 11108, 0x96ac70c995f31707)),
    recorded("ds2-gpt2-opt.rank1", "gpt2+,zero=2,offload=optimizer", None, (0, 24630, 0x0de4f0ded85c09ff)),
    recorded("ds3.rank0", "neox", Some(0), (335, 10207, 0x573cb58f38be399c)),
    recorded("ds3.rank1", "neox", Some(0), (335, 10173, 0x5949a6a059ab55ec)),
    recorded("ds3-noov.rank0", "neox+,overlap=no", Some(0), (335, 10207, 0x3bd4df3a2d649714)),
    recorded("ds3-noov.rank1", "neox+,overlap=no", Some(0), (335, 10173, 0x63b3b38a1fa3378c)),
    recorded("ds3-ckpt.rank0", "neox+,recompute=full", Some(0), (335, 12427, 0xc4098e3501788762)),
    recorded("ds3-ckpt.rank1", "neox+,recompute=full", Some(0), (335, 12393, 0xa1df520ebdddbc8e)),
    recorded("ds3-ckpt-lora.rank0", "neox+,recompute=full,lora=8", Some(1), (2165, 11094, 0x30837f8cb9a464cb)),
    recorded("ds3-ckpt-lora.rank1", "neox+,recompute=full,lora=8", Some(1), (2165, 11094, 0xaca05cc15e020fe9)),
    recorded("ds3-ckpt-all.rank0", "neox+,recompute=full,offload=all", Some(0), (328, 17699, 0xdefa98dcf8c8a148)),
    recorded("ds3-ckpt-all.rank1", "neox+,recompute=full,offload=all", Some(0), (328, 17665, 0x36477328dee70afe)),
    recorded(
        "ds3-ckpt-lora-all.rank0",
        "neox+,recompute=full,lora=8,offload=all",
        Some(1),
        (2466, 13151, 0x07e2079190847e62),
    ),
    recorded(
        "ds3-ckpt-lora-all.rank1",
        "neox+,recompute=full,lora=8,offload=all",
        Some(1),
        (2466, 13151, 0x040628ae58277b6c),
    ),
    recorded("ds3-gpt2.rank0", "gpt2+,zero=3,convert=yes", Some(0), (419, 12598, 0x2a65b5f02d0a6b5f)),
    recorded("ds3-gpt2.rank1", "gpt2+,zero=3,convert=yes", Some(0), (419, 12548, 0xba39b2f845e0f03f)),
    recorded("ds3-big.rank0", "big", Some(0), (625, 10420, 0x2818e1a85772cb2a)),
    recorded("ds3-big.rank1", "big", Some(0), (625, 10420, 0x2818e1a85772cb2a)),
    recorded("ds3-ckpt-big.rank0", "big+,recompute=full", Some(0), (625, 12715, 0xbdb306af81efcf80)),
    recorded("ds3-ckpt-big.rank1", "big+,recompute=full", Some(0), (625, 12715, 0xbdb306af81efcf80)),
    recorded("ds3-ckpt-lora-big.rank0", "big+,recompute=full,lora=8", Some(1), (4187, 9841, 0xa088904aee2e4258)),
    recorded("ds3-ckpt-lora-big.rank1", "big+,recompute=full,lora=8", Some(1), (4187, 9841, 0xa088904aee2e4258)),
];

/// The line of a recording's name, whose end says whose memory it is.
fn spec(recorded: &Recorded) -> String {
    let rank = usize::from(recorded.name.ends_with("rank1"));
    let (family, more) = recorded.line.split_once('+').unwrap_or((recorded.line, ""));
    match family {
        "gpt2" => format!("{GPT2},{},rank={rank}{more}", LENGTHS[rank]),
        "neox" => format!("{NEOX},{},rank={rank}{more}", LENGTHS[rank]),
        _ => format!("{BIG},rank={rank}{more}"),
    }
}

/// The place of each batch among the allocations.
fn batches(trace: &Trace) -> Vec<usize> {
    let is_batch = |label: &u32| trace.label_texts[*label as usize] == "input batch";
    trace.labels.iter().enumerate().filter(|(_, label)| is_batch(label)).map(|(place, _)| place).collect()
}

/// How many allocations there are from one on, and their digest.
fn digest(trace: &Trace, from: usize) -> (usize, u64) {
    let mut digest = EMPTY;
    let mut eat = |number: u64| digest = hash(digest, &number.to_le_bytes());
    let mut owners = vec![(0usize, 0u64); trace.header.slots as usize];
    let mut freed: Vec<(bool, u64)> = Vec::new();
    let mut allocations = 0;
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, stream, .. } => {
                owners[slot as usize] = (allocations, size);
                if allocations >= from {
                    // In which order many are freed at once differs from run to run of one program.
                    freed.sort_unstable();
                    for (is_old, which) in freed.drain(..) {
                        eat(u64::from(is_old));
                        eat(which);
                    }
                    eat(size);
                    eat(u64::from(stream.0));
                }
                allocations += 1;
            }
            Event::Free { slot, .. } if allocations > from => {
                // What was there before is known by its size.
                let (allocation, size) = owners[slot as usize];
                freed.push(allocation.checked_sub(from).map_or((true, size), |since| (false, since as u64)));
            }
            _ => {}
        }
    }
    (allocations - from, digest)
}

#[test]
fn lines_make_the_digests_of_recordings() {
    let mut other = Vec::new();
    for recorded in RECORDED {
        let line = spec(recorded);
        let trace = Spec::parse(&line).unwrap_or_else(|why| panic!("{line}: {why}")).trace();
        let found = digest(&trace, recorded.batch.map_or(0, |batch| batches(&trace)[batch]));
        if found != (recorded.allocations, recorded.digest) {
            other.push(format!("{}: {} allocations, {:#018x}: {line}", recorded.name, found.0, found.1));
        }
    }
    assert!(other.is_empty(), "other than recorded:\n{}", other.join("\n"));
}

#[test]
fn recordings_have_their_digests() {
    let Ok(folder) = std::env::var("RECORDINGS") else {
        eprintln!("skipped: RECORDINGS names no folder of recordings");
        return;
    };
    let mut other = Vec::new();
    for recorded in RECORDED {
        let path = Path::new(&folder).join(format!("{}.pickle", recorded.name));
        let trace = import_file(&path, None).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let found = digest(&trace, recorded.before);
        if found != (recorded.allocations, recorded.digest) {
            other.push(format!("{}: {} allocations, {:#018x}", recorded.name, found.0, found.1));
        }
    }
    assert!(other.is_empty(), "other recordings:\n{}", other.join("\n"));
}
