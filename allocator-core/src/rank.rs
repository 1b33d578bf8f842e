//! What plays the part of chance in the search trees of strategies.

/// The rank of a slot in a treap, whose higher node has the higher rank: the last step of MurmurHash3. Different slots have
/// different ranks that follow no pattern, so a tree of n pieces is about log n deep, and the same in every run.
#[inline]
pub const fn rank(slot: u32) -> u32 {
    let mut hash = slot;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}
