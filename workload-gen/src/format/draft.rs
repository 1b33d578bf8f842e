//! A file that is there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that is written under another name beside its place, compressed with zstd if its own name ends in `.zst`, and
/// gets its name when it is [committed](Draft::commit). Dropped before that, it leaves nothing.
pub struct Draft {
    path: PathBuf,
    temporary: PathBuf,
    to: Form,
    is_committed: bool,
}

enum Form {
    Plain(File),
    Packed(zstd::stream::write::Encoder<'static, File>),
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Draft {
    /// Begins a file. What is there under its name stays until the new one is whole. `level` is zstd's.
    pub fn create(path: impl AsRef<Path>, level: i32) -> io::Result<Draft> {
        let path = path.as_ref().to_path_buf();
        let mut temporary = path.clone();
        temporary.as_mut_os_string().push(format!(".tmp-{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        // From here on there is something to remove.
        let mut draft = Draft { path, temporary, to: Form::Plain(file), is_committed: false };
        if draft.path.extension().is_some_and(|suffix| suffix == "zst")
            && let Form::Plain(file) = &draft.to
        {
            let mut encoder = zstd::stream::write::Encoder::new(file.try_clone()?, level)?;
            encoder.include_checksum(true)?;
            draft.to = Form::Packed(encoder);
        }
        Ok(draft)
    }

    /// Gives the file its name.
    pub fn commit(mut self) -> io::Result<()> {
        if let Form::Packed(encoder) = &mut self.to {
            encoder.do_finish()?;
        }
        fs::rename(&self.temporary, &self.path)?;
        self.is_committed = true;
        Ok(())
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            Form::Plain(file) => file.write(bytes),
            Form::Packed(encoder) => encoder.write(bytes),
        }
    }

    /// Compressed text is handed on when a frame is full: to cut it would make the file longer.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_committed {
            // Whoever dropped it has something better to report.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
