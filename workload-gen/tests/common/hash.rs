//! FNV-1a with 64 bits: the bytes of traces, and of what recordings did, are held by it.

/// The hash of nothing.
pub const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash of what `before` is the hash of, and then `bytes`.
pub fn hash(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
