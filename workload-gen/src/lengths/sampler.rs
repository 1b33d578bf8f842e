//! Draws lengths: a distribution with all that can be computed before, its place in its lists, and its random numbers.

use super::distribution::{Lengths, Shape, scaled, whole};
use super::rng::Rng;
use super::tables::Curve;
use super::zipf::Zipf;

/// An endless sequence of lengths.
#[derive(Clone, Debug)]
pub struct Sampler {
    node: Node,
    rng: Rng,
}

#[derive(Clone, Debug)]
enum Node {
    Fixed(u64),
    Uniform {
        low: u64,
        high: u64,
    },
    LogNormal {
        mu: f64,
        sigma: f64,
    },
    Zipf(Zipf),
    /// Each part with the share of draws that it or one before it serves.
    Mix(Vec<(f64, Node)>),
    List {
        lengths: Vec<u64>,
        next: usize,
    },
    Curve(Curve),
    Clamp {
        of: Box<Node>,
        low: u64,
        high: u64,
    },
    Scale {
        of: Box<Node>,
        factor: f64,
    },
}

impl Sampler {
    pub(super) fn new(shape: &Shape, rng: Rng) -> Sampler {
        Sampler { node: Node::new(shape), rng }
    }

    /// The next length in tokens, at least 1.
    pub fn draw(&mut self) -> u64 {
        self.node.draw(&mut self.rng)
    }
}

impl Iterator for Sampler {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(self.draw())
    }
}

impl Node {
    fn new(shape: &Shape) -> Node {
        match shape {
            Shape::Fixed(length) => Node::Fixed(*length),
            Shape::Uniform { low, high } => Node::Uniform { low: *low, high: *high },
            Shape::LogNormal { mu, sigma } => Node::LogNormal { mu: *mu, sigma: *sigma },
            Shape::Zipf { s, max } => Node::Zipf(Zipf::new(*s, *max)),
            Shape::Bimodal { short, long, p } => {
                Node::Mix(vec![(1.0 - p, Node::Fixed(*short)), (1.0, Node::Fixed(*long))])
            }
            Shape::Mix(parts) => {
                let total: f64 = parts.iter().map(|(weight, _)| weight).sum();
                let mut sum = 0.0;
                let mut share = |weight: &f64| {
                    sum += weight;
                    sum / total
                };
                Node::Mix(parts.iter().map(|(weight, part)| (share(weight), Node::new(part))).collect())
            }
            Shape::List(lengths) => Node::List { lengths: lengths.clone(), next: 0 },
            Shape::Table(table) => Node::Curve(Curve::new(table)),
            Shape::Clamp { of, low, high } => Node::Clamp { of: Box::new(Node::new(of)), low: *low, high: *high },
            Shape::Scale { of, factor } => Node::Scale { of: Box::new(Node::new(of)), factor: *factor },
        }
    }

    fn draw(&mut self, rng: &mut Rng) -> u64 {
        match self {
            Node::Fixed(length) => *length,
            Node::Uniform { low, high } => rng.range(*low, *high),
            Node::LogNormal { mu, sigma } => whole(libm::exp(*mu + *sigma * rng.normal())),
            Node::Zipf(zipf) => zipf.draw(rng),
            Node::Mix(parts) => {
                let share = rng.unit();
                // The last one's share is 1, and it serves what rounding may have left.
                let last = parts.len() - 1;
                let part = parts.iter().position(|(upto, _)| share < *upto).unwrap_or(last);
                parts[part].1.draw(rng)
            }
            Node::List { lengths, next } => {
                let length = lengths[*next];
                *next = (*next + 1) % lengths.len();
                length
            }
            Node::Curve(curve) => curve.draw(rng),
            Node::Clamp { of, low, high } => of.draw(rng).clamp(*low, *high),
            Node::Scale { of, factor } => scaled(of.draw(rng), *factor),
        }
    }
}

/// The lengths of a request to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Tokens that come with it.
    pub context: u64,
    /// Tokens that are generated for it.
    pub generated: u64,
}

/// An endless sequence of requests. Context and generated length are drawn independently: the published tables do not tell
/// how they hang together.
#[derive(Clone, Debug)]
pub struct Pairs {
    context: Sampler,
    generated: Sampler,
}

impl Pairs {
    /// Requests with lengths of two distributions. Each has its own random numbers: another distribution of outputs leaves
    /// the contexts as they were.
    pub fn new(context: &Lengths, generated: &Lengths, rng: &Rng) -> Pairs {
        Pairs { context: context.sampler(rng.fork(0)), generated: generated.sampler(rng.fork(1)) }
    }
}

impl Iterator for Pairs {
    type Item = Pair;

    fn next(&mut self) -> Option<Pair> {
        Some(Pair { context: self.context.draw(), generated: self.generated.draw() })
    }
}
