//! Files that are there whole or not at all.

use crate::exit::Error;
use std::fs;
use std::path::Path;

/// Writes a file, or leaves what was there.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let part = path.with_added_extension("part");
    fs::write(&part, bytes).and_then(|()| fs::rename(&part, path)).map_err(|why| {
        // The first error is the one to report.
        let _ = fs::remove_file(&part);
        Error::unwritable(path, why)
    })
}
