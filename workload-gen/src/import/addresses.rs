//! Which block stands at an address.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Blocks by their address. Nothing may depend on its order.
pub(crate) type AddressMap<T> = HashMap<u64, T, BuildHasherDefault<AddressHasher>>;

/// Mixes an address by one multiplication. Addresses are multiples of 512 whose low bits say nothing, and the standard
/// hash would take a third of an import's time.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, address: u64) {
        let product = u128::from(address) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
