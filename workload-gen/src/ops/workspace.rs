//! What cuDNN takes for a convolution while it runs.
//!
//! Which of its kernels cuDNN takes is its secret. What a kernel needs is not: nearly all sizes recorded on an H200 are sums of
//! the few terms below, to the byte. When which kernel is taken is a model, with thresholds between the shapes that were seen:
//!
//! - Kernels for tensor cores want channels last, and images of PyTorch have them first. So the workspace holds copies of both images and,
//!   for windows of more than a pixel, of the weights; a window of one pixel has its weights in either order at once.
//! - Windows of single pixels without steps are products of matrices that need no copies, but for images of few pixels, and forward in
//!   16 bits for images whose pixels are no multiple of what a load takes.
//! - The gradient of weights is summed up in parts, each of them in 32 bits: where it is a product one for each image, else as many
//!   as give every multiprocessor a tile, if there are enough pixels for each.
//! - In 32 bits and for few pixels that gradient is Winograd's, of tiles of 4 × 4 pixels in a frame of 6 × 6.
//!
//! The thresholds were read off ResNet-50 in 32 bits and under autocast: all workspaces of a training together are within a hundredth of
//! what was seen, and a single one is off by 8 % of its bytes on average. ResNet-18 under autocast, which was held out, is off by
//! 0.7 % together and 3 % singly; a U-Net, of which a part was known, by 0.2 and 3 %. Not explained: kernels that write channels first
//! and save a copy of the output, shapes that take another way than their neighbours, and the few hundred bytes of arguments that
//! products take at times.

use super::conv::{Images, Shape};
use super::reduce::MULTIPROCESSORS;
use crate::tensor::Dtype;

/// What is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// The output.
    Output,
    /// The input's gradient.
    Input,
    /// The weight's gradient.
    Weight,
}

/// Bytes that tensor cores load at a time.
const LOAD: u64 = 16;

/// Pixels of an image that are too few for a product without copies.
const FEW_PIXELS: u64 = 80;

/// Bytes of parts that are too many, in 16 bits.
const MOST_PARTS: u64 = 16 << 20;

/// Sides of the tiles of weights that a multiprocessor works on.
const SMALL_TILE: u64 = 64;
const TILE: u64 = 128;

/// What `input` takes one way, where `dtype` is the type of images and weights.
pub(super) fn workspace(way: Way, shape: Shape, input: Images, dtype: Dtype) -> u64 {
    let is_product = shape.kernel == 1 && shape.stride == 1;
    let is_half = dtype.bytes() == 2;
    // Kernels for 32 bits go without padding, except for the gradient of weights.
    let multiple = if is_half || way == Way::Weight { LOAD / dtype.bytes() } else { 1 };
    let of_image = input.height * input.width;
    let copies = copies(shape, input, dtype, multiple);
    let is_free = match way {
        Way::Output if is_half => of_image.is_multiple_of(multiple),
        _ => of_image > FEW_PIXELS,
    };
    match way {
        Way::Output | Way::Input if is_product && is_free => 0,
        Way::Output | Way::Input => copies,
        Way::Weight if is_product => {
            let parts = input.count * part(shape, 1);
            let is_too_much = is_half && parts > MOST_PARTS;
            if is_free && !is_too_much { parts } else { copies }
        }
        Way::Weight if !is_half && is_winograd(shape, input) => winograd(shape, input),
        Way::Weight => copies + parts(shape, input, dtype) * part(shape, multiple),
    }
}

/// Copies of input, output and weights with channels last.
fn copies(shape: Shape, input: Images, dtype: Dtype, multiple: u64) -> u64 {
    let (inputs, outputs) = (shape.inputs.next_multiple_of(multiple), shape.outputs.next_multiple_of(multiple));
    let window = if shape.kernel == 1 { 0 } else { shape.kernel * shape.kernel };
    let images = input.pixels() * inputs + input.strided(shape.stride).pixels() * outputs;
    (images + inputs * outputs * window) * dtype.bytes() + LOAD
}

/// A gradient of the weights, or a part of it.
fn part(shape: Shape, multiple: u64) -> u64 {
    Shape { inputs: shape.inputs.next_multiple_of(multiple), ..shape }.weights() * 4
}

/// In how many parts the gradient of the weights is summed up; none where it is summed up at once.
fn parts(shape: Shape, input: Images, dtype: Dtype) -> u64 {
    let pixels_of_a_part = if dtype.bytes() == 2 { 6144 } else { 1024 };
    let side = if shape.outputs <= SMALL_TILE { SMALL_TILE } else { TILE };
    let columns = part(shape, LOAD / dtype.bytes()) / 4 / shape.outputs;
    let tiles = shape.outputs.div_ceil(side) * columns.div_ceil(side);
    let parts = (MULTIPROCESSORS / tiles).min(input.strided(shape.stride).pixels() / pixels_of_a_part);
    if parts > 1 { parts } else { 0 }
}

/// Whether the gradient of weights is Winograd's: for many channels or pixels other ways are faster.
fn is_winograd(shape: Shape, input: Images) -> bool {
    let wide = shape.inputs.max(shape.outputs);
    let work = input.pixels() * wide;
    shape.kernel == 3 && shape.stride == 1 && wide <= 256 && work <= 1 << 20 && work * wide <= 1 << 27
}

/// Everything in frames of 6 × 6, in 32 bits: images of as many as there are tiles, and weights of one.
fn winograd(shape: Shape, input: Images) -> u64 {
    let tiles = input.strided(4).pixels();
    36 * 4 * (tiles * (shape.inputs + shape.outputs) + shape.inputs * shape.outputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: Images = Images { count: 8, height: 128, width: 80 };

    fn shape(inputs: u64, outputs: u64, kernel: u64, stride: u64) -> Shape {
        Shape { inputs, outputs, kernel, stride }
    }

    /// What a U-Net's convolutions on an H200 were seen to take, to a part in ten thousand.
    #[test]
    fn workspaces_are_what_the_card_was_seen_to_take() {
        for (shape, images, seen) in [
            (shape(4, 64, 3, 1), IMAGES, 11_805_712),
            (shape(64, 128, 3, 1), IMAGES, 31_604_883),
            (shape(128, 256, 3, 1), IMAGES.strided(2), 16_318_611),
            (shape(768, 256, 3, 1), IMAGES.strided(4), 14_024_720),
            (shape(64, 4, 3, 1), IMAGES, 11_805_712),
        ] {
            let modelled = workspace(Way::Output, shape, images, Dtype::Bf16);
            assert!(modelled.abs_diff(seen) * 10_000 < seen, "{shape:?}: {modelled}, and {seen} was seen");
        }
        assert_eq!(workspace(Way::Output, shape(64, 128, 1, 1), IMAGES, Dtype::Bf16), 0);
    }

    /// The parts of weights' gradients are known roughly: to an eighth of the workspace. For the single pixels of images of 32 × 20 with
    /// 256 channels, copies were seen where parts are modelled.
    #[test]
    fn workspaces_of_weights_are_near_those_seen() {
        for (shape, images, seen) in [
            (shape(64, 64, 3, 1), IMAGES, 22_962_855),
            (shape(128, 128, 3, 1), IMAGES, 49_906_343),
            (shape(256, 256, 3, 1), IMAGES.strided(2), 29_229_663),
            (shape(768, 256, 3, 1), IMAGES.strided(4), 14_024_720),
            (shape(128, 256, 1, 1), IMAGES.strided(2), 1_048_576),
        ] {
            let modelled = workspace(Way::Weight, shape, images, Dtype::Bf16);
            assert!(modelled.abs_diff(seen) * 8 < seen, "{shape:?}: {modelled}, and {seen} was seen");
        }
    }

    /// The terms that workspaces are sums of, in 32 bits.
    #[test]
    fn terms_follow_from_shapes() {
        let images = Images { count: 4, height: 96, width: 96 };
        let (pixels, few) = (4 * 96 * 96, Images { count: 4, height: 12, width: 12 });
        let of = |way, shape, images| workspace(way, shape, images, Dtype::F32);
        // Copies of both images, and of the weights if a window has more than a pixel.
        assert_eq!(of(Way::Output, shape(3, 64, 7, 2), images), 4 * (pixels * 3 + pixels / 4 * 64 + 3 * 64 * 49) + 16);
        assert_eq!(of(Way::Input, shape(64, 128, 1, 2), images), 4 * (pixels * 64 + pixels / 4 * 128) + 16);
        // Products need nothing one way, and a part for each image the other.
        assert_eq!(of(Way::Input, shape(64, 256, 1, 1), images), 0);
        assert_eq!(of(Way::Weight, shape(64, 256, 1, 1), images), 4 * 64 * 256 * 4);
        // 1152 × 128 weights are nine tiles, which are there fourteen times for 132 multiprocessors.
        let weights = 9 * 128 * 128;
        let copied = 2 * pixels * 128 + weights;
        assert_eq!(of(Way::Weight, shape(128, 128, 3, 1), images), 4 * (copied + 14 * weights) + 16);
        // Three times three tiles of 4 × 4 pixels for each image.
        assert_eq!(of(Way::Weight, shape(128, 128, 3, 1), few), 4 * 36 * (4 * 9 * 2 * 128 + 128 * 128));
    }
}
