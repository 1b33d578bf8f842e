//! The colours of a matrix: the darker, the more overhead, in print without colours too.
//!
//! The scale is the same in every figure: it begins at 0 % and ends at 1000 %, and between them goes by the logarithm of
//! 1 + overhead, so that neither the small differences nor the large ones are lost.

use super::style::{BLACK, PAPER};
use plotters::style::RGBColor;

/// Percent at the dark end.
const END: f64 = 1000.0;
/// Overhead is counted in so many percent: below it the scale is nearly linear, above it logarithmic.
const UNIT: f64 = 10.0;
/// In equal steps of lightness (L* of 97 to 20).
const STOPS: [RGBColor; 9] = [
    RGBColor(0xfe, 0xf8, 0xd1),
    RGBColor(0xc6, 0xe4, 0xad),
    RGBColor(0x85, 0xd0, 0x9f),
    RGBColor(0x3b, 0xb9, 0x9e),
    RGBColor(0x00, 0x9d, 0x9d),
    RGBColor(0x00, 0x7f, 0x96),
    RGBColor(0x05, 0x64, 0x86),
    RGBColor(0x26, 0x48, 0x68),
    RGBColor(0x28, 0x30, 0x43),
];
/// From here on white text is easier to read than black.
const DARK: f64 = 0.615;

/// Where a percentage is on the scale: 0 is its light end and 1 its dark end.
pub fn share(percent: f64) -> f64 {
    ((percent.max(0.0) / UNIT).ln_1p() / (END / UNIT).ln_1p()).min(1.0)
}

/// The colour of a place on the scale.
pub fn shade(share: f64) -> RGBColor {
    let place = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let nth = (place as usize).min(STOPS.len() - 2);
    let (from, to, part) = (STOPS[nth], STOPS[nth + 1], place - nth as f64);
    let mix = |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * part).round() as u8;
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

/// The colour of text on it.
pub fn text_on(share: f64) -> RGBColor {
    if share < DARK { BLACK } else { PAPER }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance as in sRGB and WCAG.
    fn luminance(RGBColor(r, g, b): RGBColor) -> f64 {
        let linear = |channel: u8| match f64::from(channel) / 255.0 {
            low if low <= 0.04045 => low / 12.92,
            high => ((high + 0.055) / 1.055).powf(2.4),
        };
        0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    }

    #[test]
    fn small_and_large_numbers_have_their_places() {
        assert_eq!([-20.0, 0.0, 1000.0, 1e6].map(share), [0.0, 0.0, 1.0, 1.0]);
        let places = [0.0, 5.0, 12.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0].map(share);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] > 0.07), "{places:?}");
    }

    #[test]
    fn it_gets_darker_in_equal_steps() {
        let lightness = |place: i32| 116.0 * luminance(shade(f64::from(place) / 64.0)).cbrt() - 16.0;
        let steps: Vec<f64> = (0..64).map(|place| lightness(place) - lightness(place + 1)).collect();
        assert!(steps.iter().all(|step| (0.6..=1.8).contains(step)), "{steps:?}");
    }

    #[test]
    fn every_number_can_be_read() {
        for place in 0..=1000 {
            let place = f64::from(place) / 1000.0;
            let (a, b) = (luminance(shade(place)), luminance(text_on(place)));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= 4.5, "{place}: {contrast}");
        }
    }
}
