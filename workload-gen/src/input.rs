//! A stream of bytes that is decompressed on the way, and what its first bytes say it holds.
//!
//! Everything is found out from the bytes and nothing from the name, and a stream is read only once: it may be a pipe.

use crate::format::FIRST_LINE;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

/// What the first bytes of an [`Input`] look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A trace.
    Trace,
    /// A pickle, as snapshots are.
    Pickle,
    /// Neither, or nothing could be read.
    Other,
}

/// See the module. An error that is met while it is made is that of the first read.
pub struct Input<'a> {
    name: String,
    compressed: bool,
    start: Cursor<Vec<u8>>,
    failed: Option<io::Error>,
    rest: Box<dyn Read + 'a>,
}

impl std::fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").field("name", &self.name).field("compressed", &self.compressed).finish_non_exhaustive()
    }
}

impl Input<'static> {
    /// Opens a file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Input<'static>> {
        let path = path.as_ref();
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder; name a file in it"));
        }
        Ok(Input::new(file, &crate::plain_path(path)))
    }
}

impl<'a> Input<'a> {
    /// Looks at the first bytes of `reader` and decompresses gzip (all members) and zstd (all frames). `name` is what
    /// errors call it. No buffer is needed around it.
    pub fn new(mut reader: impl Read + 'a, name: &str) -> Input<'a> {
        let (magic, failed) = first_bytes(&mut reader, 4);
        let whole = Cursor::new(magic.clone()).chain(reader);
        let (rest, compressed): (io::Result<Box<dyn Read + 'a>>, bool) = match magic.as_slice() {
            [0x1f, 0x8b, ..] => (Ok(Box::new(flate2::read::MultiGzDecoder::new(whole))), true),
            // A zstd frame, or a skippable frame, which some writers put in front.
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
                (zstd::stream::read::Decoder::new(whole).map(|decoder| Box::new(decoder) as _), true)
            }
            _ => (Ok(Box::new(whole)), false),
        };
        let (mut rest, failed) = match (rest, failed) {
            (Ok(rest), None) => (rest, None),
            (Ok(_), Some(why)) | (Err(why), _) => (Box::new(io::empty()) as _, Some(why)),
        };
        let (start, failed) = match failed {
            None => first_bytes(&mut rest, FIRST_LINE.len() as u64),
            failed => (Vec::new(), failed),
        };
        Input { name: name.into(), compressed, start: Cursor::new(start), failed, rest }
    }

    /// What errors call it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is decompressed.
    pub(crate) fn compressed(&self) -> bool {
        self.compressed
    }

    /// What it seems to hold. Of a stream of which something was read already, nothing is known.
    pub fn content(&self) -> Content {
        match self.start.get_ref().as_slice() {
            _ if self.start.position() > 0 => Content::Other,
            start if start.starts_with(b"gpu-alloc-trace") => Content::Trace,
            [0x80, ..] => Content::Pickle,
            _ => Content::Other,
        }
    }
}

impl Read for Input<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.start.read(buf)? {
            0 => match self.failed.take() {
                Some(why) => Err(why),
                None => self.rest.read(buf),
            },
            n => Ok(n),
        }
    }
}

/// Up to so many bytes, and why there are no more if that is an error.
fn first_bytes(reader: &mut impl Read, count: u64) -> (Vec<u8>, Option<io::Error>) {
    let mut bytes = Vec::new();
    let failed = reader.take(count).read_to_end(&mut bytes).err();
    (bytes, failed)
}

/// What to do about a stream that cannot be read on.
pub(crate) fn read_hint(compressed: bool, why: &io::Error) -> &'static str {
    if compressed && why.to_string().contains("too much memory") {
        "it was compressed with a window of more than 128 MiB: decompress it, or compress it again without `--long`"
    } else if compressed {
        "the compressed file is damaged or cut short: copy it again, or test it with `zstd -t` or `gzip -t`"
    } else {
        "check the file and the disk"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const TRACE: &[u8] = b"gpu-alloc-trace 1\na 0 1 0\n";

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn bytes_decide_whatever_wraps_them() {
        for (bytes, content) in
            [(TRACE, Content::Trace), (b"\x80\x04}.", Content::Pickle), (b"P", Content::Other), (b"", Content::Other)]
        {
            for (whole, compressed) in
                [(bytes.to_vec(), false), (gzip(bytes), true), (zstd::encode_all(bytes, 1).unwrap(), true)]
            {
                let mut input = Input::new(whole.as_slice(), "x");
                assert_eq!((input.content(), input.compressed()), (content, compressed), "{bytes:?}");
                let mut again = Vec::new();
                input.read_to_end(&mut again).unwrap();
                assert_eq!(again, bytes, "nothing is lost by looking");
                assert_eq!(input.content(), Content::Other, "looked at after reading");
            }
        }
    }

    #[test]
    fn an_early_error_is_that_of_the_first_read() {
        let whole = zstd::encode_all(TRACE, 1).unwrap();
        for cut in [5, 9] {
            let mut input = Input::new(&whole[..cut], "x");
            assert_eq!(input.content(), Content::Other);
            assert!(input.read(&mut [0; 8]).is_err());
        }
    }

    #[test]
    fn a_folder_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let why = Input::open(folder.path()).unwrap_err().to_string();
        assert!(why.contains("it is a folder"), "{why}");
    }

    #[test]
    fn a_window_that_is_too_large_is_told_apart() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(28).unwrap();
        encoder.include_contentsize(false).unwrap();
        encoder.write_all(TRACE).unwrap();
        let whole = encoder.finish().unwrap();
        let why = Input::new(whole.as_slice(), "x").read(&mut [0; 8]).unwrap_err();
        assert!(read_hint(true, &why).contains("--long"), "{why}");
    }
}
