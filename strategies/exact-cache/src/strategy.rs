//! Pieces of device memory that are live or lie in a list, for one stream.

use crate::heads::{Heads, NONE};
use crate::params::Params;
use crate::rounding::Rounder;
use allocator_core::adapt::{Place, SingleStream};
use allocator_core::{AllocError, ConfigError, Device, DeviceError, DeviceInfo, PoolId, Span, SpanState, StreamId};

/// The allocator of one stream. A piece of memory keeps its key, its index in `pieces`, from its `malloc` to its return to
/// the device.
#[derive(Clone, Debug)]
pub struct Lists {
    rounder: Rounder,
    reserve_percent: u64,
    pieces: Vec<Piece>,
    /// Keys without memory.
    vacant: Vec<u32>,
    heads: Heads,
    reserved: u64,
}

/// What one `malloc` gave.
#[derive(Clone, Copy, Debug)]
struct Piece {
    ptr: u64,
    /// 0 when the device has it back.
    size: u64,
    /// The next one in its list.
    next: u32,
    is_live: bool,
}

impl Lists {
    /// A new piece from the device. The cache goes back first if the device would have too little left.
    #[cold]
    fn grow(&mut self, dev: &mut dyn Device, size: u64) -> Result<u32, AllocError> {
        if self.reserve_percent > 0 {
            let memory = dev.memory_info()?;
            let reserve = u128::from(memory.total) * u128::from(self.reserve_percent) / 100;
            if u128::from(memory.free) < u128::from(size) + reserve {
                self.trim(dev, 0)?;
            }
        }
        let ptr = dev.malloc(size).map_err(|error| match error {
            DeviceError::OutOfMemory => AllocError::OutOfMemory,
            other => other.into(),
        })?;
        self.reserved += size;
        let piece = Piece { ptr, size, next: NONE, is_live: true };
        Ok(match self.vacant.pop() {
            Some(key) => {
                self.pieces[key as usize] = piece;
                key
            }
            None => {
                self.pieces.push(piece);
                (self.pieces.len() - 1) as u32
            }
        })
    }
}

impl SingleStream for Lists {
    const NAME: &'static str = "exact-cache";
    const ABOUT: &'static str = "free lists by exact rounded size, never split (MXNet)";
    type Params = Params;

    fn new(params: Params, device: &DeviceInfo) -> Result<Self, ConfigError> {
        params.check(device)?;
        let Params { rounding, page, cutoff, reserve_percent } = params;
        Ok(Lists {
            rounder: Rounder::new(rounding, page, cutoff),
            reserve_percent,
            pieces: Vec::new(),
            vacant: Vec::new(),
            heads: Heads::default(),
            reserved: 0,
        })
    }

    #[inline]
    fn allocate(&mut self, dev: &mut dyn Device, size: u64) -> Result<Place, AllocError> {
        let size = self.rounder.round(size).ok_or(AllocError::TooLarge)?;
        let class = self.rounder.class(size);
        let key = match self.heads.get(class) {
            NONE => self.grow(dev, size)?,
            key => {
                self.heads.set(class, self.pieces[key as usize].next);
                key
            }
        };
        let piece = &mut self.pieces[key as usize];
        piece.is_live = true;
        Ok(Place { ptr: piece.ptr, key })
    }

    #[inline]
    fn free(&mut self, _: &mut dyn Device, place: Place) -> Result<(), DeviceError> {
        let piece = &mut self.pieces[place.key as usize];
        let class = self.rounder.class(piece.size);
        piece.next = self.heads.get(class);
        piece.is_live = false;
        self.heads.set(class, place.key);
        Ok(())
    }

    /// The largest pieces go first.
    fn trim(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        let mut last = u64::MAX;
        while self.reserved > keep
            && let Some(class) = self.heads.largest(last)
        {
            last = class;
            let key = self.heads.get(class);
            let piece = &mut self.pieces[key as usize];
            dev.free(piece.ptr)?;
            self.reserved -= std::mem::take(&mut piece.size);
            self.vacant.push(key);
            self.heads.set(class, piece.next);
        }
        Ok(())
    }

    fn reserved(&self) -> u64 {
        self.reserved
    }

    fn inspect(&self, visit: &mut dyn FnMut(Span)) {
        for &Piece { ptr, size, is_live, .. } in self.pieces.iter().filter(|piece| piece.size > 0) {
            let state = if is_live { SpanState::Live } else { SpanState::Cached };
            visit(Span { segment: ptr, ptr, size, state, stream: StreamId::DEFAULT, pool: PoolId::DEFAULT });
        }
    }
}
