//! What stands in for the figures in a program that was built without them.

use super::{Drawn, Options};
use crate::exit::Error;
use crate::interrupt::Interrupt;
use std::path::{Path, PathBuf};

/// Says how to get figures.
pub fn draw(_folders: &[PathBuf], _options: &Options, _interrupt: &Interrupt) -> Result<Drawn, Error> {
    Err(Error::Usage(
        "this harness was built without figures; build it with its default features: cargo build --release -p harness"
            .to_string(),
    ))
}

/// Draws nothing: a run is complete without figures.
pub fn draw_after_run(_folder: &Path, _interrupt: &Interrupt) -> Result<Option<Drawn>, Error> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_figures_is_named() {
        let error = draw(&[], &Options::default(), &Interrupt::default()).unwrap_err();
        assert!(error.to_string().contains("build it with its default features"), "{error}");
        assert!(draw_after_run(Path::new("nowhere"), &Interrupt::default()).unwrap().is_none());
    }
}
