//! Networks that are no language models, held against recordings of the same jobs with the same shapes.

mod common;

use common::jobs::{alike, generated, numbers, recording, requests, shapes};
use common::recordings;
use serde_json::Value;
use workload_gen::likeness::sizes;
use workload_gen::{Event, Trace};

/// Each graph's edges that are no loops, from the size of the list of them that `nonzero` makes: it follows the four bytes of
/// their number and the scratch memory of the sum.
fn kept_edges(trace: &Trace, graphs: &[Vec<u64>]) -> Vec<u64> {
    let all: Vec<u64> = sizes(trace).collect();
    let mut at = 0;
    let find = |at: &mut usize, size: u64| {
        *at += all[*at..].iter().position(|&one| one == size).expect("the size is there");
        *at
    };
    let edges_of = |graph: &Vec<u64>| {
        find(&mut at, graph[1] * 16);
        let count = find(&mut at, 4);
        all[count + 2] / 8
    };
    graphs.iter().map(edges_of).collect()
}

#[test]
fn a_graph_network_allocates_as_the_recorded_one() {
    let Some(folder) = recordings() else { return };
    let recording = recording(&folder, "gnn.default");
    let graphs: Vec<Vec<u64>> = shapes(&folder, "gnn").as_array().expect("graphs").iter().map(numbers).collect();
    let line = |graphs: &[String]| format!("gnn:steps={},graphs=list({})", graphs.len(), graphs.join(","));

    let known = graphs.iter().map(|graph| format!("{}:{}", graph[0], graph[1])).collect::<Vec<_>>();
    let by_shape = alike(&recording, &generated(&line(&known)));
    assert_eq!(by_shape.allocs.recording, by_shape.allocs.generated);
    assert!(by_shape.peak_bytes.excess().abs() < 1e-4, "{by_shape:?}");
    assert!(by_shape.sizes.distance < 0.05 && by_shape.lifetimes.distance < 0.001, "{by_shape:?}");

    // How many of a random graph's edges are loops is not known from its shape. With the recording's own numbers every
    // allocation is the same.
    let kept = kept_edges(&recording, &graphs);
    let exact = graphs.iter().zip(&kept).map(|(graph, kept)| format!("{}:{}:{}", graph[0], graph[1], graph[1] - kept));
    let exact = generated(&line(&exact.collect::<Vec<_>>()));
    assert!(sizes(&recording).eq(sizes(&exact)), "{:?}", alike(&recording, &exact));
    assert_eq!(alike(&recording, &exact).peak_bytes.excess(), 0.0);
}

/// The most bytes that lived at a time, where a block lives until its free, even if other streams still use it.
fn peak(trace: &Trace) -> u64 {
    let (mut live, mut peak) = (0, 0);
    let mut at = vec![0; trace.header.slots as usize];
    for event in &trace.events {
        match *event {
            Event::Alloc { slot, size, .. } => {
                at[slot as usize] = size;
                live += size;
            }
            Event::Free { slot, .. } => live -= at[slot as usize],
            _ => {}
        }
        peak = peak.max(live);
    }
    peak
}

#[test]
fn perceptrons_with_three_streams_allocate_as_the_recorded_ones() {
    let Some(folder) = recordings() else { return };
    let recording = recording(&folder, "multistream.default");
    let rows = numbers(&shapes(&folder, "multistream"));
    let list = rows.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let generated = generated(&format!("mlp:steps={},rows=list({list})", rows.len()));
    assert!(requests(&recording).eq(requests(&generated)));
    assert_eq!(peak(&recording), peak(&generated));
    let alike = alike(&recording, &generated);
    assert!(alike.lifetimes.distance < 0.01, "{alike:?}");
    // Each input, each gradient and each norm is used on a second stream.
    let uses = generated.events.iter().filter(|event| matches!(event, Event::Use { .. })).count();
    assert_eq!(uses, rows.len() * 26);
}

#[test]
fn perceptrons_without_streams_do_the_same_on_one() {
    let line = "mlp:steps=3,blocks=2,hidden=64,ffn=96,rows=uniform(10,5000)";
    let (three, one) = (generated(line), generated(&format!("{line},streams=no")));
    assert!(sizes(&three).eq(sizes(&one)));
    assert!(requests(&one).all(|(_, stream)| stream == 0) && requests(&three).any(|(_, stream)| stream == 2));
    assert!(!one.events.iter().any(|event| matches!(event, Event::Use { .. } | Event::Wait { .. })));
}

/// Sizes of the allocations that are not freed at once, as scratch memory of a kernel is, and the bytes of those that are.
fn kept_and_scratch(trace: &Trace, most: usize) -> (Vec<u64>, u64) {
    let (mut kept, mut scratch) = (Vec::new(), 0);
    let events: Vec<&Event> =
        trace.events.iter().filter(|event| matches!(event, Event::Alloc { .. } | Event::Free { .. })).collect();
    for (number, event) in events.iter().enumerate() {
        let Event::Alloc { slot, size, .. } = **event else { continue };
        let next = events.get(number + 1);
        match matches!(next, Some(Event::Free { slot: freed, .. }) if *freed == slot) {
            true => scratch += size,
            false => kept.push(size),
        }
        if kept.len() == most {
            break;
        }
    }
    (kept, scratch)
}

/// The recording ends when its card is full. What cuDNN takes for itself is known to a hundredth in all, all else to the byte.
#[test]
fn a_unet_allocates_as_the_recorded_one_but_for_workspaces() {
    let Some(folder) = recordings() else { return };
    let recording = recording(&folder, "diffusion.oom1g");
    let shapes = shapes(&folder, "diffusion");
    let bucket = |shape: &Value| numbers(shape).iter().map(u64::to_string).collect::<Vec<_>>().join("x");
    let buckets: Vec<String> = shapes.as_array().expect("shapes").iter().map(bucket).collect();
    let line = format!("diffusion:steps={},order=listed,buckets=list({})", buckets.len(), buckets.join(","));

    let (kept, scratch) = kept_and_scratch(&recording, usize::MAX);
    let (same, modelled) = kept_and_scratch(&generated(&line), kept.len());
    let other = kept.iter().zip(&same).position(|(one, two)| one != two);
    assert_eq!((other, kept.len() > 7_000), (None, true));
    assert!(modelled.abs_diff(scratch) * 100 < scratch, "{modelled} bytes of workspaces, and {scratch} were seen");
}

/// What an image adds to a residual network's peak depends on its pixels alone, and neither on their order nor on other images.
#[test]
fn residual_networks_grow_with_their_pixels() {
    for block in ["basic", "bottleneck"] {
        let peak = |batch: u64, side: u64| {
            peak(&generated(&format!("cnn:steps=1,stages=1+1,block={block},batch={batch},sides={side}"))) as f64
        };
        let [few, more, most] = [64, 128, 192].map(|batch| peak(batch, 128));
        assert!(((most - more) / (more - few) - 1.0).abs() < 0.01, "{few} {more} {most}");
        assert!((peak(32, 256) / more - 1.0).abs() < 0.01);
    }
}

/// Recomputing nothing, a network holds its activations until the backward pass: at the start of that, nearly all that it has.
#[test]
fn residual_networks_keep_more_for_more_blocks() {
    let peak = |stages: &str| peak(&generated(&format!("cnn:steps=1,stages={stages},batch=64,sides=128"))) as f64;
    let (one, two, three) = (peak("1"), peak("2"), peak("3"));
    assert!(((three - two) / (two - one) - 1.0).abs() < 0.05, "{one} {two} {three}");
}

/// How many allocations there are in the second of two steps, apart from what libraries take while they run: that depends on kernels.
fn allocations_of_a_step(line: &str) -> usize {
    let count = |steps: usize| {
        let trace = generated(&format!("{line},steps={steps}"));
        let is_workspace = |&&label: &&u32| trace.label_texts[label as usize].starts_with("workspace");
        trace.labels.len() - trace.labels.iter().filter(is_workspace).count()
    };
    count(3) - count(2)
}

/// Recordings of torchvision's networks have so many in each step.
#[test]
fn residual_networks_allocate_for_each_layer_what_torchvision_s_do() {
    let pixels = "images=list(2x64x96)";
    // Each convolution has an output and gradients of its weight and, but for the first, its input. Each normalisation has an output, two
    // statistics, and gradients of input, factor and sum.
    let layers = |convolutions: usize| convolutions * (3 + 6) - 1;
    // Images, classes; the pool's output and places, the mean, the scores, their logarithms, the loss and its weight; the gradients of
    // loss, logarithms and scores, of the last layer's input, weight and bias, and of mean and pool.
    let others = 2 + 7 + 8;

    // 16 blocks of three, four shortcuts, and the first; active after the first and three times in a block.
    let resnet50 = layers(53) + 49 + others;
    assert_eq!(allocations_of_a_step(&format!("cnn:{pixels},optimizer=sgd,decay=no")), resnet50);
    // 53 weights of convolutions, two of each normalisation, and the last layer's two, once more for the step.
    let parameters = 3 * 53 + 2;
    assert_eq!(allocations_of_a_step(&format!("cnn:{pixels},optimizer=adamw")), resnet50 + parameters);
    assert_eq!(allocations_of_a_step(&format!("cnn:{pixels},optimizer=sgd")), resnet50 + parameters);

    // Eight blocks of two, three shortcuts, and the first. Autocast copies images, the weights of products and the logarithms; all but
    // the images have their gradients copied, too.
    let resnet18 = layers(20) + 17 + others;
    let copies = 2 * (20 + 2 + 1) + 1;
    let line = format!("cnn:{pixels},stages=2+2+2+2,block=basic,optimizer=adamw,precision=bf16");
    assert_eq!(allocations_of_a_step(&line), resnet18 + copies + 3 * 20 + 2);
}

/// What lives when the backward pass begins: the network, what its layers keep, and cuBLAS's memory.
#[test]
fn residual_networks_keep_what_their_layers_save() {
    let trace = generated("cnn:steps=1,stages=2+2+2+2,block=basic,images=list(2x64x96)");
    let is_first_gradient = |at: &usize| trace.label_texts[trace.labels[*at] as usize] == "gradient loss";
    let forward = (0..trace.labels.len()).find(is_first_gradient).expect("there is a backward pass");
    let (mut live, mut allocated) = (std::collections::HashMap::new(), 0);
    for event in &trace.events {
        match *event {
            Event::Alloc { .. } if allocated == forward => break,
            Event::Alloc { slot, size, .. } => {
                live.insert(slot, size);
                allocated += 1;
            }
            Event::Free { slot, .. } => drop(live.remove(&slot)),
            _ => {}
        }
    }

    let (mut images, mut weights, mut kept) = (2 * 64 * 96, 0, 0);
    // The input of each normalisation and, where something follows that keeps it, its output; mean and deviation of each channel.
    let mut layer = |inputs: u64, outputs: u64, window: u64, images: u64, is_kept: bool| {
        weights += 4 * (inputs * outputs * window + 4 * outputs) + 8;
        kept += 4 * (images * outputs * (1 + u64::from(is_kept)) + 2 * outputs);
    };
    images /= 4;
    layer(3, 64, 49, images, true);
    images /= 4;
    let pool = images * 64 * (4 + 8);
    let mut inputs = 64;
    for outputs in [64, 128, 256, 512] {
        let has_shortcut = inputs != outputs;
        images /= if has_shortcut { 4 } else { 1 };
        layer(inputs, outputs, 9, images, true);
        layer(outputs, outputs, 9, images, true);
        if has_shortcut {
            // Its output is added to the block's, and kept by nobody.
            layer(inputs, outputs, 1, images, false);
        }
        layer(outputs, outputs, 9, images, true);
        layer(outputs, outputs, 9, images, true);
        inputs = outputs;
    }
    let head = 4 * (512 * 1000 + 1000);
    // The images and classes, means, the logarithms of what classes were given, and the loss with its weight.
    let ends = 2 * 64 * 96 * 3 * 4 + 2 * 8 + 2 * 512 * 4 + 2 * 1000 * 4 + 2 * 4;
    let cublas = (32 << 20) + (1 << 20);
    assert_eq!(live.values().sum::<u64>(), weights + kept + pool + head + ends + cublas);
}
