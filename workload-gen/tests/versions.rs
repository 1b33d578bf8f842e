//! The bytes of generated traces. The same line makes the same bytes on every machine and in every release, until its generator's
//! version goes up.

use workload_gen::format;
use workload_gen::jobs::generators;
use workload_gen::spec::Spec;

/// Lines, the version of their generator, and a hash of the trace's text.
const PINNED: &[(&str, u32, u64)] = &[
    ("churn:allocations=2000", 1, 0xcb61cc69759a5ec4),
    (
        "churn:size=zipf(1.1,5000),allocations=900,grain=512,lifetime=bimodal(3,400,0.1),kept=0.02,streams=3",
        1,
        0x475049da133e9d08,
    ),
    ("dataframe:allocations=500", 1, 0x2408ec583bbe1928),
    ("pipeline:items=50", 1, 0x5f7873ab2bc8bb32),
    ("pipeline:items=50,streams=3,shape=fan,handover=wait,seed=2", 1, 0xc55ecb445d9d67bd),
    ("gnn:steps=2,layers=3", 1, 0xe5a5677bcc153b80),
    ("mlp:steps=2,blocks=2", 1, 0),
    ("robson:live=256,rounds=5", 1, 0x0681b0ab68e22c64),
    ("comb:iterations=2", 1, 0x63a6550a371005ba),
    ("ramp:overlap=yes", 1, 0x07ea37a8e7386f7a),
    ("saw:blocks=2", 1, 0x7c1d61c7c15dde2d),
    ("pow2:allocations=1000", 1, 0xf20f2bf5f5f53482),
];

/// FNV-1a with 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn traces_keep_their_bytes_as_long_as_their_version() {
    let (mut rows, mut faults) = (String::new(), Vec::new());
    for &(line, version, pinned) in PINNED {
        let spec = Spec::parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut text = Vec::new();
        format::write(&spec.trace(), &mut text).expect("memory takes it");
        let (generator, found) = (spec.generator(), hash(&text));
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
    assert_eq!((hash(b""), hash(b"a"), hash(b"foobar")), (0xcbf29ce484222325, 0xaf63dc4c8601ec8c, 0x85944171f73967e8));
}
