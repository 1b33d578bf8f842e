//! PDF and PNG, made of the SVG that was drawn. The only font they know is the program's own.
//!
//! svg2pdf writes fonts and graphics states in the order of a hash map. Drawings have one font and no transparency, so
//! there is nothing to order, and the same drawing gives the same bytes.

use super::Format;
use super::style::TEXT;
use crate::exit::Error;
use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{self, Tree, fontdb};
use std::fmt::Display;
use std::sync::{Arc, LazyLock};

/// Inter. See `assets/README.md`.
pub const FONT: &[u8] = include_bytes!("../../assets/Inter-Regular.ttf");

/// Points in an inch: the size of everything is given in points.
const POINTS: f32 = 72.0;
/// Dots in an inch of a PNG.
const DOTS: f32 = 300.0;
/// The same for a metre.
const DOTS_PER_METRE: u32 = 11_811;

static OPTIONS: LazyLock<usvg::Options<'static>> = LazyLock::new(|| {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(FONT.to_vec());
    usvg::Options { dpi: POINTS, font_size: TEXT as f32, fontdb: Arc::new(fonts), ..usvg::Options::default() }
});

/// The bytes of a figure's file.
pub fn bytes(svg: &str, format: Format) -> Result<Vec<u8>, Error> {
    match format {
        Format::Svg => Ok(svg.as_bytes().to_vec()),
        Format::Pdf => pdf(&parsed(svg)?),
        Format::Png => png(&parsed(svg)?),
    }
}

fn bug(why: impl Display) -> Error {
    Error::Internal(format!("a figure: {why}"))
}

fn parsed(svg: &str) -> Result<Tree, Error> {
    Tree::from_str(svg, &OPTIONS).map_err(bug)
}

fn pdf(tree: &Tree) -> Result<Vec<u8>, Error> {
    let page = svg2pdf::PageOptions { dpi: POINTS };
    svg2pdf::to_pdf(tree, svg2pdf::ConversionOptions::default(), page).map_err(bug)
}

fn png(tree: &Tree) -> Result<Vec<u8>, Error> {
    let scale = DOTS / POINTS;
    let pixels = |points: f32| (points * scale).round().max(1.0) as u32;
    let (width, height) = (pixels(tree.size().width()), pixels(tree.size().height()));
    let mut picture =
        Pixmap::new(width, height).ok_or_else(|| bug(format!("{width} by {height} dots are too many")))?;
    picture.fill(Color::WHITE);
    resvg::render(tree, Transform::from_scale(scale, scale), &mut picture.as_mut());
    let opaque: Vec<u8> = picture.pixels().iter().flat_map(|dot| [dot.red(), dot.green(), dot.blue()]).collect();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Best);
    // Without this, programs take a dot for a point and print four times too large.
    let (xppu, yppu, unit) = (DOTS_PER_METRE, DOTS_PER_METRE, png::Unit::Meter);
    encoder.set_pixel_dims(Some(png::PixelDimensions { xppu, yppu, unit }));
    let mut writer = encoder.write_header().map_err(bug)?;
    writer.write_image_data(&opaque).map_err(bug)?;
    writer.finish().map_err(bug)?;
    Ok(file)
}
