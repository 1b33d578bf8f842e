//! The entries of one device, kept in chunks.
//!
//! A history can be as large as the memory of the machine allows, so it never moves while it grows, and a consumer
//! that takes it by value gives each chunk back as soon as it is read: a snapshot and the trace made from it are
//! never both whole in memory.

use super::Entry;

/// Entries of one device, oldest first.
#[derive(Clone, Default, Debug)]
pub struct History {
    /// All chunks but the last are full.
    chunks: Vec<Vec<Entry>>,
    len: usize,
}

impl History {
    /// Entries in a chunk: 512 KiB, so that the system's allocator gives a freed chunk back at once.
    const CHUNK: usize = 16 * 1024;

    /// An empty history.
    pub fn new() -> History {
        History::default()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry with this number.
    pub fn get(&self, index: usize) -> Option<&Entry> {
        self.chunks.get(index / Self::CHUNK)?.get(index % Self::CHUNK)
    }

    /// Adds an entry at the end.
    #[inline]
    pub fn push(&mut self, entry: Entry) {
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < Self::CHUNK => chunk.push(entry),
            _ => self.push_chunk(entry),
        }
        self.len += 1;
    }

    #[cold]
    fn push_chunk(&mut self, entry: Entry) {
        // The first chunk grows by itself: most lists of entries are small.
        let mut chunk = if self.chunks.is_empty() { Vec::new() } else { Vec::with_capacity(Self::CHUNK) };
        chunk.push(entry);
        self.chunks.push(chunk);
    }

    /// Moves the last `count` entries to the end of `to`, in order.
    pub(super) fn move_tail(&mut self, count: usize, to: &mut History) {
        if count == self.len && to.is_empty() {
            std::mem::swap(self, to);
            return;
        }
        for index in self.len - count..self.len {
            to.push(self.chunks[index / Self::CHUNK][index % Self::CHUNK]);
        }
        self.truncate(self.len - count);
    }

    fn truncate(&mut self, len: usize) {
        // One chunk stays, so that a reader's scratch list does not allocate again and again.
        self.chunks.truncate(len.div_ceil(Self::CHUNK).max(1));
        if let Some(last) = self.chunks.last_mut() {
            last.truncate(if len == 0 { 0 } else { (len - 1) % Self::CHUNK + 1 });
        }
        self.len = len;
    }

    /// The entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> + Clone {
        self.chunks.iter().flatten()
    }
}

impl PartialEq for History {
    fn eq(&self, other: &History) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for History {}

impl FromIterator<Entry> for History {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> History {
        let mut history = History::new();
        for entry in entries {
            history.push(entry);
        }
        history
    }
}

impl<'a> IntoIterator for &'a History {
    type Item = &'a Entry;
    type IntoIter = std::iter::Flatten<std::slice::Iter<'a, Vec<Entry>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.chunks.iter().flatten()
    }
}

impl IntoIterator for History {
    type Item = Entry;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Vec<Entry>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.chunks.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Action;

    fn entry(n: usize) -> Entry {
        Entry { addr: n as u64, size: 1, time_us: 0, stream: 0, action: Action::Alloc }
    }

    fn history(n: usize) -> History {
        (0..n).map(entry).collect()
    }

    #[test]
    fn keeps_order_over_chunks() {
        let n = 2 * History::CHUNK + 3;
        let h = history(n);
        assert_eq!(h.len(), n);
        assert!(h.iter().enumerate().all(|(i, e)| e.addr == i as u64));
        assert_eq!(h.get(History::CHUNK).unwrap().addr, History::CHUNK as u64);
        assert_eq!(h.get(n), None);
        assert_eq!(h.into_iter().count(), n);
    }

    #[test]
    fn tails_move_whole_and_in_part() {
        for (len, count, have) in
            [(5, 5, 0), (5, 5, 2), (5, 2, 0), (5, 0, 3), (History::CHUNK + 4, 6, History::CHUNK - 1)]
        {
            let (mut from, mut to) = (history(len), history(have));
            from.move_tail(count, &mut to);
            assert_eq!((from.len(), to.len()), (len - count, have + count));
            assert!(from.iter().enumerate().all(|(i, e)| e.addr == i as u64));
            let tail: Vec<u64> = to.iter().skip(have).map(|e| e.addr).collect();
            assert_eq!(tail, (len - count..len).map(|n| n as u64).collect::<Vec<_>>());
            from.push(entry(len - count));
            assert_eq!(from.get(len - count), Some(&entry(len - count)));
        }
    }
}
