//! The short way through trace entries.
//!
//! Nearly all of a snapshot are dictionaries of one shape: keys that were seen before, small integers, and a string or
//! two. Here they are read straight from the buffer, without the stack. Whatever does not fit (a new key, stack frames,
//! a protocol frame in between, the end of the buffer) is left untouched for the general machine, so this path decides
//! nothing: it must only be right about what it takes.

use super::Action;
use super::build::EntryFields;
use super::machine::{Failure, Machine, Value};
use super::memo::Memo;
use super::opcode as op;
use super::words::Word;

impl Machine<'_> {
    /// `EMPTY_DICT`: as many whole trace entries as follow in the buffer, or an empty dictionary.
    pub(super) fn dict(&mut self) -> Result<(), Failure> {
        let mut taken = 0;
        let mut count = 0;
        let buffer = self.source.buffered();
        while let Some(rest) = buffer.get(taken..) {
            let memo_before = self.memo.len();
            let mut cursor = Cursor { rest, memo: &mut self.memo };
            let Some(fields) = cursor.entry() else {
                self.memo.truncate(memo_before);
                break;
            };
            // An entry that lacks something is described by the general machine.
            let left = cursor.rest.len();
            let Ok(entry) = fields.entry(&mut self.store.streams) else {
                self.memo.truncate(memo_before);
                break;
            };
            self.store.pending.push(entry);
            self.memo.is_entry(memo_before as u32, self.store.last_number());
            taken = buffer.len() - left;
            count += 1;
        }
        if count > 0 {
            self.source.advance(taken);
            return self.push_entries(count);
        }
        self.source.advance(1);
        self.push(Value::Dict { memo: Memo::NONE })
    }
}

struct Cursor<'b, 'm> {
    rest: &'b [u8],
    memo: &'m mut Memo,
}

impl Cursor<'_, '_> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    /// A whole entry, or nothing.
    #[inline]
    fn entry(&mut self) -> Option<EntryFields> {
        if self.take()? != [op::EMPTY_DICT, op::MEMOIZE, op::MARK] {
            return None;
        }
        self.memo.push_word(Word::Unknown);
        let mut fields = EntryFields::default();
        loop {
            let key = match self.take::<1>()? {
                [op::BINGET] => {
                    let [index] = self.take()?;
                    self.memo.word(usize::from(index))?
                }
                [op::LONG_BINGET] => {
                    let index = u32::from_le_bytes(self.take()?);
                    self.memo.word(index as usize)?
                }
                [op::SETITEMS] if fields.action.is_some() => return Some(fields),
                _ => return None,
            };
            match key {
                Word::Action => match self.word()?.action() {
                    // The general machine keeps its name.
                    Action::Unknown => return None,
                    action => fields.action = Some(action),
                },
                Word::Addr => fields.addr = Some(self.int()?),
                Word::Size => fields.size = Some(self.int()?),
                Word::Stream => fields.stream = Some(self.int()?),
                Word::TimeUs => fields.time_us = self.int()?,
                Word::DeviceFree => fields.device_free = Some(self.int()?),
                // Keys without a meaning have strings, if they are taken here.
                Word::Unknown => {
                    self.word()?;
                }
                _ => return None,
            }
        }
    }

    /// A string, new or referred to.
    #[inline]
    fn word(&mut self) -> Option<Word> {
        match self.take::<1>()? {
            [op::BINGET] => {
                let [index] = self.take()?;
                self.memo.word(usize::from(index))
            }
            [op::LONG_BINGET] => {
                let index = u32::from_le_bytes(self.take()?);
                self.memo.word(index as usize)
            }
            [op::SHORT_BINUNICODE] => {
                let [len] = self.take()?;
                let (text, rest) = self.rest.split_at_checked(usize::from(len))?;
                self.rest = rest;
                if self.take()? != [op::MEMOIZE] {
                    return None;
                }
                let word = Word::of(text);
                self.memo.push_word(word);
                Some(word)
            }
            _ => None,
        }
    }

    #[inline]
    fn int(&mut self) -> Option<i64> {
        match self.take::<1>()? {
            [op::BININT1] => self.take().map(|[byte]| i64::from(byte)),
            [op::BININT2] => self.take().map(|bytes| i64::from(u16::from_le_bytes(bytes))),
            [op::BININT] => self.take().map(|bytes| i64::from(i32::from_le_bytes(bytes))),
            [op::LONG1] => {
                let [len @ 1..=8] = self.take()? else { return None };
                // Eight bytes are looked at, of which the last ones may be those of the next opcode.
                let wide = u64::from_le_bytes(*self.rest.first_chunk()?);
                self.rest = &self.rest[usize::from(len)..];
                let unused = 64 - 8 * u32::from(len);
                Some(((wide << unused) as i64) >> unused)
            }
            _ => None,
        }
    }
}
