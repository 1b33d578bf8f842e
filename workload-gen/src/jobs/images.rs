//! Lists of batches of images.

use crate::ops::Images;

/// How a list is written.
pub(super) const LIST: &str = "list(IMAGESxHEIGHTxWIDTH,...)";

/// The largest side of an image, and the most images.
pub(super) const MOST: u64 = 1 << 14;

/// Reads `list(IMAGESxHEIGHTxWIDTH,...)`.
pub(super) fn images(text: &str) -> Result<Vec<Images>, String> {
    let inside = text.strip_prefix("list(").and_then(|rest| rest.strip_suffix(')'));
    inside.ok_or_else(|| format!("it is not {LIST}"))?.split(',').map(batch).collect()
}

fn batch(item: &str) -> Result<Images, String> {
    let item = item.trim();
    let number = |text: &str| text.trim().parse().ok().filter(|number| (1..=MOST).contains(number));
    let numbers: Option<Vec<u64>> = item.split('x').map(number).collect();
    match numbers.as_deref() {
        Some(&[count, height, width]) => Ok(Images { count, height, width }),
        _ => Err(format!("'{item}' is no shape, such as 8x64x96 (images, height and width, each 1 to {MOST})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_what_is_wrong_is_shown() {
        assert_eq!(images("list(8x64x96)"), Ok(vec![Images { count: 8, height: 64, width: 96 }]));
        for (text, part) in [("8x64x96", "not list"), ("list(8x64)", "'8x64'"), ("list(8x0x8)", "'8x0x8'")] {
            let error = images(text).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }
}
