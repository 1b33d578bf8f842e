//! Bytes in order through one buffer.

use super::error::SnapshotError;
use crate::input::Input;
use std::io::{self, Read};

/// A buffered stream that counts its bytes.
pub(super) struct Source<'a> {
    inner: Input<'a>,
    buf: Box<[u8]>,
    pos: usize,
    end: usize,
    /// Bytes of the stream before `buf[0]`.
    before: u64,
    ended: bool,
}

impl<'a> Source<'a> {
    /// Size of the buffer, and so the most that [`Source::ensure`] can promise.
    pub(super) const CAPACITY: usize = 128 * 1024;

    pub(super) fn new(inner: Input<'a>) -> Source<'a> {
        Source { inner, buf: vec![0; Self::CAPACITY].into_boxed_slice(), pos: 0, end: 0, before: 0, ended: false }
    }

    pub(super) fn file(&self) -> &str {
        self.inner.name()
    }

    pub(super) fn compressed(&self) -> bool {
        self.inner.compressed()
    }

    /// Offset of the next byte in the stream.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        self.before + self.pos as u64
    }

    /// The bytes that are in the buffer.
    #[inline]
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buf[self.pos..self.end]
    }

    /// Bytes at an offset that was read a short while ago or will be read next, as far as they are in the buffer.
    pub(super) fn around(&self, offset: u64, len: usize) -> &[u8] {
        let start = usize::try_from(offset.saturating_sub(self.before)).unwrap_or(usize::MAX).min(self.end);
        if offset < self.before { &[] } else { &self.buf[start..self.end.min(start.saturating_add(len))] }
    }

    /// Goes on by bytes that are in the buffer.
    #[inline]
    pub(super) fn advance(&mut self, len: usize) {
        self.pos = (self.pos + len).min(self.end);
    }

    /// Has at least `len` bytes in the buffer, or all that are left; says which. `len` is at most the capacity.
    #[inline]
    pub(super) fn ensure(&mut self, len: usize) -> Result<bool, SnapshotError> {
        if self.end - self.pos >= len { Ok(true) } else { self.fill(len) }
    }

    #[cold]
    fn fill(&mut self, len: usize) -> Result<bool, SnapshotError> {
        // Whatever was read of the current opcode stays for error texts only if it is still ahead; that is enough,
        // because an opcode is consumed after its operands were ensured.
        self.buf.copy_within(self.pos..self.end, 0);
        self.before += self.pos as u64;
        self.end -= self.pos;
        self.pos = 0;
        while self.end < len && !self.ended {
            match self.inner.read(&mut self.buf[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(SnapshotError::Read {
                        file: self.file().into(),
                        offset: self.before + self.end as u64,
                        compressed: self.compressed(),
                        source,
                    });
                }
            }
        }
        Ok(self.end >= len)
    }

    /// Skips `len` bytes of any number; says whether there were so many.
    pub(super) fn skip(&mut self, mut len: u64) -> Result<bool, SnapshotError> {
        loop {
            let here = (self.end - self.pos).min(usize::try_from(len).unwrap_or(usize::MAX));
            self.pos += here;
            len -= here as u64;
            if len == 0 {
                return Ok(true);
            }
            if !self.fill(1)? {
                return Ok(false);
            }
        }
    }
}
