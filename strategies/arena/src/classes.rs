//! The source's size classes: four for each doubling, as jemalloc has them.

const SPACING: u64 = 256;
/// The last class. Above it the source has only one that no device can serve.
const LAST: u64 = 256 << 30;

/// The class of a size that is above 0, or `None` if it is above all of them.
pub(crate) fn class(size: u64) -> Option<u64> {
    if size <= 8 * SPACING {
        return Some(size.next_multiple_of(SPACING));
    }
    if size > LAST {
        return None;
    }
    // The source's table has 54 KiB between 48 and 64, where 56 would be the even step.
    const ODD: u64 = 54 << 10;
    let even = size.next_multiple_of(1 << ((size - 1).ilog2() - 2));
    Some(match even {
        57_344 if size <= ODD => ODD,
        57_344 => 64 << 10,
        even => even,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_four_classes_for_each_doubling() {
        let mut classes: Vec<u64> = (1..=1 << 20).filter_map(class).collect();
        classes.dedup();
        let kib: Vec<u64> = classes[classes.len() - 32..].iter().map(|class| class >> 10).collect();
        assert_eq!(classes[..12], [256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096]);
        assert_eq!(
            kib,
            [
                5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 54, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
                384, 448, 512, 640, 768, 896, 1024
            ]
        );
        assert_eq!((class(LAST), class(LAST + 1), class((192 << 30) + 1)), (Some(LAST), None, Some(224 << 30)));
    }
}
