//! Training a graph convolutional network, with a new graph in every step.
//!
//! The layers are `GCNConv` of torch-geometric with its defaults: self loops are put in and the symmetric normalisation is
//! computed anew by each layer, messages are made for every edge, and sums are scattered into the nodes.

use super::{Generator, Job};
use crate::lengths::{Lengths, Rng};
use crate::models::TRAINED;
use crate::ops::{
    AdamW, Cx, Linear, add, backward_from, cross_entropy, index_select, masked_columns, mul_rows, relu, scatter_add,
    zero_grad,
};
use crate::spec::{Kind, Param, Values};
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};

const LIST: &str = "list(NODES:EDGES,...), or with NODES:EDGES:LOOPS";

const PARAMS: &[Param] = &[
    Param {
        key: "layers",
        about: "graph convolutions",
        kind: Kind::Int { min: 1, max: 1000 },
        default: "6",
        unit: "layers",
    },
    Param {
        key: "features",
        about: "width of a node's input",
        kind: Kind::Int { min: 1, max: 1 << 20 },
        default: "256",
        unit: "elements",
    },
    Param {
        key: "hidden",
        about: "width of a node inside of the network",
        kind: Kind::Int { min: 1, max: 1 << 20 },
        default: "256",
        unit: "elements",
    },
    Param {
        key: "classes",
        about: "what a node is classified as",
        kind: Kind::Int { min: 2, max: 1 << 20 },
        default: "16",
        unit: "classes",
    },
    Param {
        key: "nodes",
        about: "nodes of a graph: a distribution, written as lengths are",
        kind: Kind::Text("a distribution of lengths", check_lengths),
        default: "lognormal(9.6,0.9,1000,100000)",
        unit: "nodes",
    },
    Param {
        key: "degree",
        about: "edges of a graph for each of its nodes, a distribution, written as lengths are; 4294967296 edges in all at most",
        kind: Kind::Text("a distribution of lengths", check_lengths),
        default: "uniform(3,12)",
        unit: "edges",
    },
    Param {
        key: "graphs",
        about: "these graphs in this order, then again from the start, instead of nodes and degree; of a graph's edges so many are \
            loops, or else as many as chance makes of random edges",
        kind: Kind::Text(LIST, check_graphs),
        default: "",
        unit: "",
    },
    Param {
        key: "steps",
        about: "training steps",
        kind: Kind::Int { min: 1, max: 1_000_000_000 },
        default: "40",
        unit: "steps",
    },
];

pub(super) const GENERATOR: Generator = Generator {
    name: "gnn",
    about: "training a graph convolutional network in fp32, a graph of another size in each step",
    version: 1,
    params: &[super::COMMON, PARAMS],
    build: |values| Ok(Box::new(Gnn::new(values)?)),
};

/// The most nodes or edges of a graph.
const MOST: u64 = 1 << 32;

/// A graph's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Size {
    nodes: u64,
    edges: u64,
    /// Edges from a node to itself.
    loops: u64,
}

impl Size {
    /// A graph of edges that are drawn at random: each is a loop with a chance of one in the number of nodes.
    fn random(nodes: u64, edges: u64) -> Size {
        Size { nodes, edges, loops: edges / nodes }
    }
}

enum Graphs {
    List(Vec<Size>),
    Random { nodes: Lengths, degree: Lengths },
}

struct Gnn {
    layers: u64,
    features: u64,
    hidden: u64,
    classes: u64,
    graphs: Graphs,
    steps: u64,
    seed: u64,
}

fn check_lengths(text: &str) -> Result<(), String> {
    Lengths::parse(text).map(drop)
}

fn check_graphs(text: &str) -> Result<(), String> {
    graphs(text).map(drop)
}

/// Reads `list(NODES:EDGES,...)`.
fn graphs(text: &str) -> Result<Vec<Size>, String> {
    let inside = text.strip_prefix("list(").and_then(|rest| rest.strip_suffix(')'));
    let inside = inside.ok_or_else(|| format!("it is not {LIST}"))?;
    inside.split(',').map(graph).collect()
}

fn graph(item: &str) -> Result<Size, String> {
    let item = item.trim();
    let wrong = || {
        format!("'{item}' is no graph, such as 10242:71694 (nodes and edges, 1 to {MOST}, and loops among the edges)")
    };
    let number = |text: &str| text.trim().parse().ok().filter(|number| *number <= MOST);
    let numbers: Option<Vec<u64>> = item.split(':').map(number).collect();
    match numbers.as_deref() {
        Some(&[nodes, edges]) if nodes > 0 && edges > 0 => Ok(Size::random(nodes, edges)),
        Some(&[nodes, edges, loops]) if nodes > 0 && edges > 0 && loops <= edges => Ok(Size { nodes, edges, loops }),
        _ => Err(wrong()),
    }
}

impl Gnn {
    fn new(values: &Values) -> Result<Gnn, String> {
        let graphs = match values.is_given("graphs") {
            true if values.is_changed("nodes") || values.is_changed("degree") => {
                return Err("graphs says what nodes and degree would; give the one or the others".to_string());
            }
            true => Graphs::List(graphs(values.text("graphs"))?),
            false => Graphs::Random {
                nodes: Lengths::parse(values.text("nodes"))?,
                degree: Lengths::parse(values.text("degree"))?,
            },
        };
        Ok(Gnn {
            layers: values.int("layers"),
            features: values.int("features"),
            hidden: values.int("hidden"),
            classes: values.int("classes"),
            graphs,
            steps: values.int("steps"),
            seed: values.int("seed"),
        })
    }
}

impl Graphs {
    /// The sizes of graphs, without end.
    fn draw(&self, seed: u64) -> Box<dyn Iterator<Item = Size> + '_> {
        match self {
            Graphs::List(sizes) => Box::new(sizes.iter().copied().cycle()),
            Graphs::Random { nodes, degree } => {
                let rng = Rng::new(seed);
                let pairs = nodes.sampler(rng.fork(0)).zip(degree.sampler(rng.fork(1)));
                Box::new(pairs.map(|(nodes, degree)| Size::random(nodes, (nodes * degree).min(MOST))))
            }
        }
    }
}

/// A graph in the device's memory. Python's tuples let go of their items from the last to the first.
struct Batch {
    size: Size,
    classes: Tensor,
    _edges: Tensor,
    features: Tensor,
}

/// A graph convolution.
struct Conv {
    linear: Linear,
    bias: Parameter,
    width: u64,
    norm: Name,
    gather: Name,
    message: Name,
    scatter: Name,
    output: Name,
}

impl Conv {
    fn new(gpu: &Gpu, inputs: u64, width: u64, path: &str) -> Conv {
        let name = |part: &str| gpu.name(&format!("{path}.{part}"));
        let linear = TRAINED.linear(gpu, inputs, width, false, &format!("{path}.lin"));
        let bias = TRAINED.make(gpu, width, &format!("{path}.bias"));
        let [norm, gather, message, scatter, output] = ["norm", "gather", "message", "aggregate", "bias"].map(name);
        Conv { linear, bias, width, norm, gather, message, scatter, output }
    }

    fn forward(&self, cx: &Cx, x: &Tensor, batch: &Batch) -> Tensor {
        let gpu = &cx.gpu;
        let (edges, weights) = self.normalised(gpu, batch);
        let ends = edges.view(weights.elements());
        let x = self.linear.forward(cx, x);
        let sources = index_select(gpu, &x, &ends, self.width, self.gather);
        let messages = mul_rows(gpu, &sources, &weights, self.message);
        let sums = scatter_add(gpu, &messages, &ends, batch.size.nodes, self.width, self.scatter);
        drop(messages);
        drop(sources);
        let result = add(gpu, &sums, &self.bias.tensor(), self.output);
        drop(sums);
        drop(x);
        result
    }

    /// `gcn_norm`: the edges with one self loop for each node, and for each edge one over the root of its ends' degrees.
    fn normalised(&self, gpu: &Gpu, batch: &Batch) -> (Tensor, Tensor) {
        let Size { nodes, edges, loops } = batch.size;
        let tensor = |elements, dtype| gpu.tensor(elements, dtype, Role::Temporary, self.norm);

        let is_no_loop = tensor(edges, Dtype::U8);
        let added = {
            let _range = tensor(nodes, Dtype::I64);
            tensor(2 * nodes, Dtype::I64)
        };
        let kept = edges - loops;
        let others = masked_columns(gpu, &is_no_loop, 2, kept, self.norm);
        let all = gpu.tensor(2 * (kept + nodes), Dtype::I64, Role::Activation, self.norm);
        drop(others);
        drop(is_no_loop);
        drop(added);

        let ones = tensor(kept + nodes, Dtype::F32);
        let degrees = tensor(nodes, Dtype::F32);
        // Where the degree is zero its root is infinite, and is set to zero.
        drop(tensor(nodes, Dtype::U8));
        let of_source = tensor(kept + nodes, Dtype::F32);
        let weighted = tensor(kept + nodes, Dtype::F32);
        drop(of_source);
        let of_target = tensor(kept + nodes, Dtype::F32);
        let weights = gpu.tensor(kept + nodes, Dtype::F32, Role::Activation, self.norm);
        drop(weighted);
        drop(of_target);
        drop(ones);
        drop(degrees);
        (all, weights)
    }
}

impl Gnn {
    fn batch(&self, gpu: &Gpu, size: Size, name: Name) -> Batch {
        let edges = gpu.tensor(2 * size.edges, Dtype::I64, Role::Input, name);
        let features = gpu.tensor(size.nodes * self.features, Dtype::F32, Role::Input, name);
        let classes = gpu.tensor(size.nodes, Dtype::I64, Role::Input, name);
        Batch { size, classes, _edges: edges, features }
    }
}

impl Job for Gnn {
    fn run(&self, gpu: &Gpu) {
        let cx = Cx::plain(gpu);
        let (batch_name, loss_name) = (gpu.name("batch"), gpu.name("loss"));
        let width = |layer| if layer == 0 { self.features } else { self.hidden };
        let convs: Vec<Conv> =
            (0..self.layers).map(|i| Conv::new(gpu, width(i), self.hidden, &format!("convs.{i}"))).collect();
        let activations: Vec<Name> = (0..self.layers).map(|i| gpu.name(&format!("convs.{i}.relu"))).collect();
        let head = TRAINED.linear(gpu, self.hidden, self.classes, true, "head");

        let mut parameters = Vec::new();
        for conv in &convs {
            parameters.push(conv.bias.clone());
            parameters.extend(conv.linear.parameters().cloned());
        }
        parameters.extend(head.parameters().cloned());
        let mut optimizer = AdamW::new(gpu, parameters.len());

        let mut batch = None;
        let mut last_loss = None;
        for (step, size) in (0..self.steps).zip(self.graphs.draw(self.seed)) {
            if gpu.is_stopped() {
                break;
            }
            gpu.mark(format!("iteration {step}"));
            let next = self.batch(gpu, size, batch_name);
            let batch = batch.insert(next);

            let mut x = batch.features.clone();
            for (conv, &name) in convs.iter().zip(&activations) {
                x = relu(gpu, &conv.forward(&cx, &x, batch), name);
            }
            let logits = head.forward(&cx, &x);
            drop(x);
            let loss = cross_entropy(&cx, &logits, &batch.classes, loss_name);
            drop(logits);
            let loss = last_loss.insert(loss);
            backward_from(gpu, loss, loss_name);
            optimizer.step(gpu, &parameters);
            zero_grad(&parameters);
            gpu.sync();
        }
        gpu.exit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_read_and_what_is_wrong_is_shown() {
        let sizes = vec![Size { nodes: 5, edges: 11, loops: 2 }, Size { nodes: 1, edges: 2, loops: 0 }];
        assert_eq!(graphs("list(5:11, 1:2:0)"), Ok(sizes));
        for (text, part) in [
            ("5:7", "not list"),
            ("list(5:7,5)", "'5'"),
            ("list(0:1)", "'0:1'"),
            ("list()", "''"),
            ("list(3:4:5)", "'3:4:5'"),
        ] {
            let error = graphs(text).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }
}
