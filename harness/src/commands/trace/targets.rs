//! The files that `-o` means for several traces. As with the results of a run, nothing is overwritten.

use harness::exit::Error;
use std::fs;
use std::path::{Path, PathBuf};
use workload_gen::plain_path;

/// The files to write, none of which is there.
pub(super) struct Targets {
    files: Vec<PathBuf>,
    /// The folder that they go to, unless there is one file and `-o` names it.
    folder: Option<PathBuf>,
    /// Whether the folder is ours: if nothing comes into it, it goes.
    is_made: bool,
}

impl Targets {
    /// Where those of these names go. `what` is what several of them are.
    pub(super) fn new(out: &Path, stems: Vec<String>, what: &str) -> Result<Targets, Error> {
        let ends_in = |endings: &[&str]| endings.iter().any(|ending| out.to_string_lossy().ends_with(ending));
        let is_file = ends_in(&[".trace", ".trace.zst"]);
        if is_file && stems.len() > 1 {
            let out = plain_path(out);
            return Err(Error::Usage(format!("{out} is one file; name a folder for several {what}")));
        }
        if !is_file && ends_in(&[".zst", ".gz"]) {
            return Err(Error::Usage(format!(
                "{} is no name for a folder, and traces are called NAME.trace or NAME.trace.zst",
                plain_path(out)
            )));
        }
        let mut files: Vec<PathBuf> = Vec::new();
        for stem in stems {
            let file = if is_file { out.to_path_buf() } else { out.join(format!("{stem}.trace.zst")) };
            if files.contains(&file) {
                let file = plain_path(&file);
                return Err(Error::Usage(format!("two {what} would become {file}; write them apart")));
            }
            if file.symlink_metadata().is_ok() {
                return Err(Error::unwritable(
                    &file,
                    "it exists, and nothing is overwritten; give another name with -o",
                ));
            }
            files.push(file);
        }
        let folder = (!is_file).then(|| out.to_path_buf());
        Ok(Targets { files, folder, is_made: false })
    }

    /// Makes the folder if there is none, and tells the files.
    pub(super) fn begin(&mut self) -> Result<&[PathBuf], Error> {
        if let Some(folder) = &self.folder {
            self.is_made = !folder.exists();
            fs::create_dir_all(folder).map_err(|why| Error::unwritable(folder, why))?;
        }
        Ok(&self.files)
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.as_ref().filter(|_| self.is_made) {
            // Only an empty folder can be removed so.
            let _ = fs::remove_dir(folder);
        }
    }
}
