//! Address tokens: 34 bits that order like 47-bit addresses.
//!
//! A key has 34 bits for the address, in granules: 8 TiB. `cudaMalloc` and virtual-memory ranges lie much further
//! apart. But an arena touches few places, so its addresses are taken in areas of 512 GiB; the areas in use are
//! numbered in ascending order, and a token is the area's number and the offset in it. Adjacent areas that one
//! segment spans get adjacent numbers, so adding to a token within a segment is adding to the address.

use crate::slab::{GRANULE_SHIFT, TOKEN_BITS, TOKEN_MASK};

/// log2 of an area's granules.
const AREA_BITS: u32 = 30;
/// log2 of an area's bytes.
const AREA_SHIFT: u32 = AREA_BITS + GRANULE_SHIFT;
/// Areas that an arena can touch.
const AREAS: usize = 1 << (TOKEN_BITS - AREA_BITS);

/// The areas of one arena.
#[derive(Clone, Default)]
pub(crate) struct AddressMap {
    /// Address of each area's first byte, ascending.
    base: [u64; AREAS],
    /// By area, what its tokens' offset from 0 in bytes must be moved by to be addresses.
    shift: [u64; AREAS],
    len: usize,
}

/// More areas would be needed than a token can name, or the end is beyond all addresses.
pub(crate) struct TooFarApart;

impl AddressMap {
    /// The address behind a token, or a key.
    #[inline(always)]
    pub(crate) fn address(&self, key: u64) -> u64 {
        let token = key & TOKEN_MASK;
        let area = (token >> AREA_BITS) as usize;
        (token << GRANULE_SHIFT).wrapping_add(self.shift[area])
    }

    /// The token of an address in a known area.
    pub(crate) fn token(&self, address: u64) -> u64 {
        let area = self.base[..self.len].partition_point(|&base| base <= address) - 1;
        (area as u64) << AREA_BITS | (address - self.base[area]) >> GRANULE_SHIFT
    }

    /// Makes the areas of a segment known. If areas that were known get other numbers, returns the map as it was, to
    /// translate tokens with.
    pub(crate) fn cover(&mut self, address: u64, bytes: u64) -> Result<Option<AddressMap>, TooFarApart> {
        let before = self.clone();
        // Tokens of a segment's end are made too, so that has to be an address.
        let end = address.checked_add(bytes).ok_or(TooFarApart)?;
        for area in address >> AREA_SHIFT..=(end - 1) >> AREA_SHIFT {
            let base = area << AREA_SHIFT;
            let at = self.base[..self.len].partition_point(|&b| b < base);
            if at < self.len && self.base[at] == base {
                continue;
            }
            if self.len == AREAS {
                *self = before;
                return Err(TooFarApart);
            }
            self.base[at..=self.len].rotate_right(1);
            self.base[at] = base;
            self.len += 1;
        }
        for (area, &base) in self.base.iter().enumerate() {
            self.shift[area] = base.wrapping_sub((area as u64) << AREA_SHIFT);
        }
        let moved = self.base[..before.len] != before.base[..before.len];
        Ok(moved.then_some(before))
    }

    /// A key with its token translated from `old` to this map.
    pub(crate) fn translate(&self, old: &AddressMap, key: u64) -> u64 {
        key & !TOKEN_MASK | self.token(old.address(key & TOKEN_MASK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_order_like_addresses_over_all_of_the_address_space() {
        let mut map = AddressMap::default();
        let segments = [0x7f00_0000_0000, 0x6000_0000_0000, 0x3_0200_0000, 0x7f7f_ffe0_0000, 0x5fff_ffe0_0000];
        for segment in segments {
            assert!(map.cover(segment, 4 << 20).is_ok());
        }
        let mut addresses: Vec<u64> = segments.iter().flat_map(|&s| [s, s + 512, s + (4 << 20) - 512]).collect();
        addresses.sort_unstable();
        let tokens: Vec<u64> = addresses.iter().map(|&a| map.token(a)).collect();
        assert!(tokens.is_sorted());
        assert!(tokens.iter().zip(&addresses).all(|(&t, &a)| map.address(t) == a));
        // The last segment crosses an area's border: arithmetic on tokens is arithmetic on addresses there.
        let start = 0x5fff_ffe0_0000;
        assert_eq!(map.token(start) + (2 << 20 >> GRANULE_SHIFT), map.token(start + (2 << 20)));
    }

    #[test]
    fn renumbering_is_reported_and_translates() {
        let mut map = AddressMap::default();
        assert!(matches!(map.cover(0x7f00_0000_0000, 512), Ok(None)));
        let token = map.token(0x7f00_0000_0000);
        let Ok(Some(old)) = map.cover(0x1000_0000_0000, 512) else { panic!("a lower area moves the others") };
        assert_eq!(map.address(map.translate(&old, token)), 0x7f00_0000_0000);
        assert!(matches!(map.cover(0x7f00_0000_0200, 512), Ok(None)));
    }

    #[test]
    fn too_many_areas_are_refused_and_change_nothing() {
        let mut map = AddressMap::default();
        for i in 0..AREAS as u64 {
            assert!(map.cover(i << 41, 512).is_ok());
        }
        for (address, bytes) in [(1 << 45, 512), (0u64.wrapping_sub(2 << 20), 2 << 20), (512, u64::MAX)] {
            assert!(map.cover(address, bytes).is_err(), "{bytes} bytes at {address:#x}");
        }
        assert_eq!(map.address(map.token(3 << 41)), 3 << 41);
    }
}
