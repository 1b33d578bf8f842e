//! Which addresses are backed by device memory, and which of them share it.

use allocator_core::Handle;
use std::collections::BTreeMap;

/// See the module. It is told of every call that succeeded.
#[derive(Debug, Default)]
pub(crate) struct Backing {
    pieces: BTreeMap<u64, Piece>,
    handles: BTreeMap<Handle, Physical>,
    removed: Vec<(u64, u64)>,
}

/// Addresses that are backed by one allocation or one handle.
#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    handle: Option<Handle>,
}

/// What is known of a handle. The memory lives on while it is mapped, and handles are not reused, so this stays after
/// a release.
#[derive(Clone, Debug, Default)]
struct Physical {
    size: u64,
    mapped_at: Vec<u64>,
}

impl Backing {
    /// `size` bytes were allocated at `ptr`.
    pub(crate) fn allocated(&mut self, ptr: u64, size: u64) {
        self.pieces.insert(ptr, Piece { end: ptr + size, handle: None });
    }

    /// `size` bytes were created.
    pub(crate) fn created(&mut self, handle: Handle, size: u64) {
        self.handles.insert(handle, Physical { size, mapped_at: Vec::new() });
    }

    /// Handles were mapped one after another from `va` on.
    pub(crate) fn mapped(&mut self, va: u64, handles: &[Handle]) {
        let mut at = va;
        for handle in handles {
            let physical = self.handles.entry(*handle).or_default();
            physical.mapped_at.push(at);
            let end = at + physical.size;
            self.pieces.insert(at, Piece { end, handle: Some(*handle) });
            at = end;
        }
    }

    /// What begins in `[va, end)` was freed or unmapped.
    pub(crate) fn remove(&mut self, va: u64, end: u64) {
        let gone: Vec<(u64, Piece)> = self.pieces.range(va..end).map(|(&va, &piece)| (va, piece)).collect();
        for (va, piece) in gone {
            self.pieces.remove(&va);
            self.removed.push((va, piece.end));
            if let Some(handle) = piece.handle
                && let Some(physical) = self.handles.get_mut(&handle)
            {
                physical.mapped_at.retain(|&at| at != va);
            }
        }
    }

    /// Address ranges that lost their memory since the last call.
    pub(crate) fn take_removed(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.removed)
    }

    /// Whether all of `[start, end)` is backed by memory.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        let mut reached = start;
        while reached < end {
            match self.pieces.range(..=reached).next_back() {
                Some((_, piece)) if piece.end > reached => reached = piece.end,
                _ => return false,
            }
        }
        true
    }

    /// Other address ranges that share memory with `[start, end)`.
    pub(crate) fn aliases(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.pieces.range(..=start).next_back().map_or(start, |(&va, _)| va);
        let mut found = Vec::new();
        for (&va, piece) in self.pieces.range(first..end).filter(|(_, piece)| piece.end > start) {
            let Some(physical) = piece.handle.and_then(|handle| self.handles.get(&handle)) else { continue };
            let (from, to) = (start.max(va) - va, end.min(piece.end) - va);
            found.extend(physical.mapped_at.iter().filter(|&&other| other != va).map(|at| (at + from, at + to)));
        }
        found
    }
}
