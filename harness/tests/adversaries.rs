//! Generated adversaries are hard for the strategies that they are meant for, and for no others.

use allocator_core::SimDevice;
use harness::audit::audit;
use harness::interrupt::Interrupt;
use harness::registry::{STRATEGIES, configure};
use workload_gen::spec::Spec;

/// How a strategy fares.
struct Outcome {
    /// The most that was reserved, as a multiple of the most that lived.
    excess: f64,
    refused: u64,
}

fn replay(line: &str, strategy: &str) -> Outcome {
    let trace = Spec::parse(line).unwrap_or_else(|error| panic!("{line}: {error}")).trace();
    let entry = STRATEGIES.iter().find(|entry| entry.name == strategy).expect("it is in the registry");
    let configured = configure(&[entry], &[]).expect("defaults are allowed").remove(0);
    let mut device = SimDevice::new(trace.header.device_bytes.unwrap_or(80 << 30));
    let mut built = configured.strategy(&mut device).expect("it is made");
    let audit = audit(&trace, built.as_mut(), device, &Interrupt::default());
    let excess = audit.memory.reserved_peak as f64 / audit.memory.requested_peak as f64;
    Outcome { excess, refused: audit.failed_allocs }
}

fn excess(line: &str, strategy: &str) -> f64 {
    replay(line, strategy).excess
}

/// `log2(n) / 2 + 1` units for each that lives, and the more, the larger n is.
#[test]
fn robson_costs_every_cache_a_multiple_of_what_lives() {
    for strategy in ["caching", "expandable", "pool", "buddy", "tlsf"] {
        let [little, much] = [3, 9].map(|rounds| excess(&format!("robson:live=1024,rounds={rounds}"), strategy));
        assert!(much > 3.0 && much > 1.3 * little, "{strategy}: {little} and {much}");
    }
    assert_eq!(excess("robson:live=1024,rounds=9", "direct"), 1.0, "no allocator has to fragment if it gives all back");
}

#[test]
fn a_joined_comb_breaks_a_cache_and_one_apart_does_not() {
    let comb = |joined: &str| replay(&format!("comb:device=1320MiB,joined={joined}"), "caching").refused;
    assert_eq!((comb("yes"), comb("no")), (10, 0));
    assert_eq!(replay("comb:device=1320MiB", "direct").refused, 0);
}

/// A cache keeps a segment of each size that there was; one that grows in place does not.
#[test]
fn ramps_leave_old_segments_behind() {
    assert!(excess("ramp:", "caching") > 20.0);
    assert!(excess("ramp:", "expandable") < 1.1);
    // A saw comes back to sizes that there were.
    let saws = [32, 128].map(|iterations| excess(&format!("saw:iterations={iterations}"), "caching"));
    assert_eq!(saws[0], saws[1]);
}

#[test]
fn sizes_above_powers_of_two_cost_a_buddy_more_than_the_powers() {
    let [powers, above] = [0, 512]
        .map(|extra| excess(&format!("pow2:allocations=5000,least=16,most=20,live=1GiB,extra={extra}"), "buddy"));
    assert!(above > 1.7 * powers, "{powers} and {above}");
    let above_in = |strategy| excess("pow2:allocations=5000,least=16,most=20,live=1GiB", strategy);
    let others = ["caching", "expandable", "tlsf"].map(above_in);
    assert!(others.iter().all(|&other| other < 0.8 * above), "{others:?} and {above}");
}

/// The worst order of captures into one pool is the ascending one, and pools of their own cost more than either.
#[test]
fn the_order_of_captures_decides_what_their_pool_takes() {
    let line = "serve:device=20GiB,max-length=1000,max-tokens=1000,max-batch=10,steps=1,arrivals=every(10),\
                batch-sizes=32+64+96+128+160+192+224+256+320+384+448+512";
    let reserved = |order: &str, pools: &str| excess(&format!("{line},capture={order},graph-pools={pools}"), "caching");
    let (up, down, many) =
        (reserved("ascending", "one"), reserved("descending", "one"), reserved("descending", "many"));
    assert!(down < up && up < many, "{down} {up} {many}");
}
