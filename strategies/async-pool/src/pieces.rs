//! Memory in pieces: each growth of the pool is one, and stays whole. A piece lies at one address of the range, or in the
//! stock, which has none.
//!
//! ```text
//! create ─▶ stock ── map ──▶ addresses
//!             ▲└──── unmap ◀────┘             a piece goes on to other addresses without leaving the pool
//!             └─ release ─▶ the device
//! ```
//!
//! A piece is mapped only out of the stock, and comes there only when it is created or unmapped. So it never is at two
//! addresses.

use allocator_core::{Device, DeviceError, Handle};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Piece {
    handle: Handle,
    size: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    /// By address.
    mapped: BTreeMap<u64, Piece>,
    stock: Vec<Piece>,
    /// Bytes in the stock and at addresses.
    pub reserved: u64,
}

impl Pieces {
    /// A new piece for the stock. False: the device has no memory for it.
    pub(crate) fn create(&mut self, dev: &mut dyn Device, size: u64) -> Result<bool, DeviceError> {
        match dev.create(size) {
            Ok(handle) => {
                self.stock.push(Piece { handle, size });
                self.reserved += size;
                Ok(true)
            }
            Err(DeviceError::OutOfMemory) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Gives pieces of the stock back to the device until at most `keep` bytes are reserved.
    pub(crate) fn release(&mut self, dev: &mut dyn Device, keep: u64) -> Result<(), DeviceError> {
        while self.reserved > keep
            && let Some(&Piece { handle, size }) = self.stock.last()
        {
            dev.release(handle)?;
            self.stock.pop();
            self.reserved -= size;
        }
        Ok(())
    }

    /// The last pieces of the stock that together have `need` bytes, and no more than `room`: where they are, and their bytes.
    fn choose(&self, need: u64, room: u64) -> (Vec<usize>, u64) {
        let (mut chosen, mut bytes) = (Vec::new(), 0);
        for (at, piece) in self.stock.iter().enumerate().rev() {
            if bytes >= need {
                break;
            }
            if piece.size <= room - bytes {
                chosen.push(at);
                bytes += piece.size;
            }
        }
        (chosen, bytes)
    }

    /// Of `need` bytes for a hole of `room`, how many the stock can give.
    pub(crate) fn stocked(&self, need: u64, room: u64) -> u64 {
        self.choose(need, room).1
    }

    /// Puts pieces of the stock at an address: `need` bytes at least, `room` at most; how many. After an error nothing has
    /// changed.
    pub(crate) fn map(&mut self, dev: &mut dyn Device, va: u64, need: u64, room: u64) -> Result<u64, DeviceError> {
        let (chosen, bytes) = self.choose(need, room);
        let handles: Vec<Handle> = chosen.iter().map(|&at| self.stock[at].handle).collect();
        dev.map(va, &handles)?;
        let mut at = va;
        // The places in the stock fall, so that those to come stay what they are.
        for place in chosen {
            let piece = self.stock.remove(place);
            self.mapped.insert(at, piece);
            at += piece.size;
        }
        Ok(bytes)
    }

    /// Takes the piece at an address into the stock; its bytes. After an error nothing has changed.
    pub(crate) fn unmap(&mut self, dev: &mut dyn Device, va: u64) -> Result<u64, DeviceError> {
        let Some(&piece) = self.mapped.get(&va) else { return Ok(0) };
        dev.unmap(va, piece.size)?;
        self.mapped.remove(&va);
        self.stock.push(piece);
        Ok(piece.size)
    }

    /// Begin and end of the pieces that lie wholly between two addresses.
    pub(crate) fn within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let pieces = self.mapped.range(from..to).map(|(&va, piece)| (va, va + piece.size));
        pieces.filter(move |&(_, end)| end <= to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::{CallKind, FaultDevice, Machine, SimDevice};

    const PAGE: u64 = 2 << 20;

    #[test]
    fn memory_moves_without_leaving() {
        let mut dev = SimDevice::new(8 * PAGE);
        let base = dev.reserve(64 * PAGE).unwrap();
        let mut pieces = Pieces::default();
        for pages in [3, 1, 2] {
            assert_eq!(pieces.create(&mut dev, pages * PAGE), Ok(true));
        }
        assert_eq!(pieces.create(&mut dev, 3 * PAGE), Ok(false));
        assert_eq!((pieces.stocked(4 * PAGE, 64 * PAGE), pieces.stocked(4 * PAGE, 5 * PAGE)), (6 * PAGE, 3 * PAGE));
        assert_eq!(pieces.map(&mut dev, base, 3 * PAGE, 4 * PAGE), Ok(3 * PAGE), "two and one");
        let at = |page: u64| base + page * PAGE;
        assert_eq!(pieces.within(at(0), at(3)).collect::<Vec<_>>(), [(at(0), at(2)), (at(2), at(3))]);
        assert_eq!(pieces.within(at(0) + 1, at(3)).collect::<Vec<_>>(), [(at(2), at(3))]);
        assert_eq!(pieces.unmap(&mut dev, at(0)), Ok(2 * PAGE));
        assert_eq!(pieces.unmap(&mut dev, at(1)), Ok(0), "no piece begins there");
        assert_eq!(pieces.map(&mut dev, at(10), PAGE, 2 * PAGE), Ok(2 * PAGE));
        assert!(!dev.holds(at(0), 1) && dev.holds(at(2), PAGE) && dev.holds(at(10), 2 * PAGE));
        pieces.release(&mut dev, 0).unwrap();
        assert_eq!((pieces.reserved, dev.usage().reserved), (3 * PAGE, 3 * PAGE), "what is at an address stays");
    }

    #[test]
    fn a_call_that_fails_loses_nothing() {
        let failure = |call| DeviceError::Driver { call, code: 999 };
        let mut dev = FaultDevice::new(SimDevice::new(8 * PAGE));
        for kind in [CallKind::Create, CallKind::Map, CallKind::Unmap, CallKind::Release] {
            dev = dev.fail_nth(kind, 1, failure(kind));
        }
        let base = dev.reserve(64 * PAGE).unwrap();
        let mut pieces = Pieces::default();
        assert_eq!(pieces.create(&mut dev, PAGE), Err(failure(CallKind::Create)));
        assert_eq!((pieces.create(&mut dev, PAGE), pieces.create(&mut dev, PAGE)), (Ok(true), Ok(true)));
        assert_eq!(pieces.map(&mut dev, base, 2 * PAGE, 2 * PAGE), Err(failure(CallKind::Map)));
        assert_eq!(pieces.map(&mut dev, base, 2 * PAGE, 2 * PAGE), Ok(2 * PAGE));
        assert_eq!(pieces.unmap(&mut dev, base), Err(failure(CallKind::Unmap)));
        assert_eq!((pieces.unmap(&mut dev, base), pieces.unmap(&mut dev, base + PAGE)), (Ok(PAGE), Ok(PAGE)));
        assert_eq!(pieces.release(&mut dev, PAGE), Err(failure(CallKind::Release)));
        assert_eq!((pieces.reserved, dev.usage().reserved), (2 * PAGE, 2 * PAGE));
        assert_eq!(pieces.release(&mut dev, PAGE), Ok(()));
        assert_eq!((pieces.reserved, dev.usage().reserved), (PAGE, PAGE));
    }
}
