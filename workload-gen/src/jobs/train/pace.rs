//! How long a card works on what a training step asks of it, about. It matters where memory waits for work: a block that another stream
//! uses is only free when that stream has come so far.

/// Floating-point operations in a microsecond: 400 teraflops, what a Hopper card reaches in 16 bits.
const FLOPS: u64 = 400_000_000;
/// Bytes in a microsecond between cards: 250 GB/s of NVLink.
const LINK: u64 = 250_000;
/// What starting a kernel takes, in nanoseconds.
const START: u64 = 5_000;

/// Nanoseconds for passing `tokens` through `weights` weights once.
pub(super) fn pass(weights: u64, tokens: u64) -> u64 {
    START + (2 * weights).saturating_mul(tokens) / (FLOPS / 1000)
}

/// Nanoseconds for `bytes` to come from other cards.
pub(super) fn link(bytes: u64) -> u64 {
    START + bytes.saturating_mul(1000) / LINK
}
