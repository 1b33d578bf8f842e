//! How long a card works on what a training step asks of it, about. It matters where memory waits for work: a block that another stream
//! uses is only free when that stream has come so far.

/// Floating-point operations in a microsecond: 400 teraflops, what a Hopper card reaches in 16 bits.
const FLOPS: u64 = 400_000_000;
/// Bytes in a microsecond between cards: 250 GB/s of NVLink.
const LINK: u64 = 250_000;
/// Bytes in a microsecond between a card and its host: 50 GB/s of PCIe.
const HOST: u64 = 50_000;
/// Weights that the host updates in a nanosecond.
const UPDATES: u64 = 1;
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

/// Nanoseconds for `bytes` to go to the host or come from it.
pub(super) fn host(bytes: u64) -> u64 {
    bytes.saturating_mul(1000) / HOST
}

/// Nanoseconds for the host to update so many weights.
pub(super) fn update(weights: u64) -> u64 {
    weights / UPDATES
}
