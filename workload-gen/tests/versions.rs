//! The bytes of generated traces. The same line makes the same bytes on every machine and in every release, until its generator's
//! version goes up.

mod common;

use common::hash::{EMPTY, hash};
use workload_gen::format;
use workload_gen::jobs::generators;
use workload_gen::spec::Spec;

/// Lines, the version of their generator, and a hash of the trace's text.
const PINNED: &[(&str, u32, u64)] = &[
    ("serve:steps=40", 1, 0x5b1efab57dc67550),
    (
        "serve:layers=4,kv=contiguous,step=8,attention=math,steps=20,max-length=2000,tp=2,sampling=top-p",
        1,
        0x24cb55149817196d,
    ),
    (
        "serve:layers=4,pages=demand,models=2,own-streams=yes,capture=descending,sleep-every=20,steps=90",
        1,
        0x0c55c514e4652694,
    ),
    ("generate:layers=2,hidden=256,heads=8,vocab=500,calls=3", 1, 0x2dc16856987a8eab),
    ("train:layers=2", 1, 0xba839c9676db3117),
    (
        "train:llama-2-7b,layers=4,hidden=512,pp=2,interleave=2,rank=1,accumulate=4,steps=4,recompute=full",
        1,
        0xfcaf125672e2f755,
    ),
    (
        "train:gpt2,layers=2,tp=2,sequence-parallel,recompute=selective,attention=written-out,steps=2",
        1,
        0x96e48d175ea47794,
    ),
    ("train:gpt2,layers=2,ranks=2,rank=1,steps=3", 1, 0x386dc3e33e4b14b2),
    ("train:opt-1.3b,layers=2,hidden=512,zero=2,ranks=4,accumulate=2,steps=4", 1, 0x8abfafbe5759d024),
    ("train:llama-3-8b,layers=2,hidden=512,zero=3,ranks=4,recompute=full,lora=4,steps=3", 1, 0x900e57f8be3e338c),
    ("train:gpt-neox-20b,layers=2,hidden=512,heads=8,zero=3,ranks=4,offload=all,steps=3", 1, 0xfcf352b3fe3cf28e),
    ("train:gpt2,layers=2,zero=fsdp,ranks=4,steps=3", 1, 0x9a17fc5e674387a9),
    ("train:mixtral-8x7b,layers=1,hidden=512,ep=4,steps=3", 1, 0xdcfa9d4edc3020ce),
    ("train:qwen1.5-moe-a2.7b,layers=1,hidden=512,experts=loop,skew=1,steps=2", 1, 0xe8106a7893226d9e),
    ("train:deepseek-v2-lite,layers=2,steps=2", 1, 0xb9f526c60289c0c4),
    ("churn:allocations=2000", 1, 0x61736f5335fa74c5),
    (
        "churn:size=zipf(1.1,5000),allocations=900,grain=512,lifetime=bimodal(3,400,0.1),kept=0.02,streams=3",
        1,
        0x6a7d8c79530eba04,
    ),
    ("dataframe:allocations=500", 1, 0x8a5ae173d55b6432),
    ("pipeline:items=50", 1, 0x14658df844572b14),
    ("pipeline:items=50,streams=3,shape=fan,handover=wait,seed=2", 1, 0xaae0b553d81bd15e),
    ("gnn:steps=2,layers=3", 1, 0xd62551142aba3d51),
    ("mlp:steps=2,blocks=2", 1, 0x920f78983186ae32),
    ("cnn:steps=2,stages=1+1", 1, 0xfa22c9e8cfa32ae6),
    ("diffusion:steps=2,levels=16+32", 1, 0xcdf27a07806de6cc),
    ("robson:live=256,rounds=5", 1, 0x8697f81ceab3991f),
    ("comb:iterations=2", 1, 0x120b9977b4b90634),
    ("ramp:overlap=yes", 1, 0x9a30f241610aa5e4),
    ("saw:blocks=2", 1, 0xa0b9e922597843a3),
    ("pow2:allocations=1000", 1, 0xb7dda3cd033459b5),
];

#[test]
fn traces_keep_their_bytes_as_long_as_their_version() {
    let (mut rows, mut faults) = (String::new(), Vec::new());
    for &(line, version, pinned) in PINNED {
        let spec = Spec::parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut text = Vec::new();
        format::write(&spec.trace(), &mut text).expect("memory takes it");
        let (generator, found) = (spec.generator(), hash(EMPTY, &text));
        rows += &format!("    ({line:?}, {}, {found:#018x}),\n", generator.version);
        if generator.version != version {
            faults
                .push(format!("{line}: version {version} is pinned, and {} is {}", generator.name, generator.version));
        } else if found != pinned {
            faults.push(format!(
                "{line}: other bytes than before. If that is meant, raise `version` of {} to {}; if not, undo it",
                generator.name,
                version + 1
            ));
        }
    }
    assert!(
        faults.is_empty(),
        "{}\nOnce every change is meant and its version raised, PINNED in {} is:\n{rows}",
        faults.join("\n"),
        file!()
    );
}

#[test]
fn every_generator_has_its_bytes_pinned() {
    for generator in generators() {
        let is_pinned = PINNED.iter().any(|(line, _, _)| line.split(':').next() == Some(generator.name));
        assert!(is_pinned, "no line of {} is pinned in {}", generator.name, file!());
    }
}

#[test]
fn the_hash_is_fnv() {
    assert_eq!(
        (hash(EMPTY, b""), hash(EMPTY, b"a"), hash(EMPTY, b"foobar")),
        (0xcbf29ce484222325, 0xaf63dc4c8601ec8c, 0x85944171f73967e8)
    );
}
