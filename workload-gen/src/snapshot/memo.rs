//! The pickle's memo: everything that a later opcode may refer to.
//!
//! A large snapshot has millions of memo entries, two for each trace entry, and nearly all references are to a few
//! dozen strings. So a memo entry is one byte: the number of a known string, or one of three tags; the few other
//! values that may be referred to (numbers, pool ids, kept texts) stand in a side table.

use super::error::Problem;
use super::machine::Value;
use super::words::Word;

/// A trace entry's dictionary.
const ENTRY: u8 = 255;
/// A list that is still empty.
const EMPTY_LIST: u8 = 254;
/// A value in the side table.
const SIDE: u8 = 253;

/// What a reference leads to.
pub(super) enum Referent {
    /// A value.
    Value(Value),
    /// The trace entry with this number, counted over all devices.
    Entry(u64),
}

#[derive(Default)]
pub(super) struct Memo {
    tags: Vec<u8>,
    /// Ascending in the index.
    side: Vec<(u32, Value)>,
    /// For every 256th trace entry its memo index and its number. Between two of them, entries are consecutive.
    entries: Vec<(u32, u64)>,
    /// Trace entries that were memoised since the last mark in `entries`.
    unmarked: u32,
}

impl Memo {
    /// What stands for "no memo index".
    pub(super) const NONE: u32 = u32::MAX;
    const MARK_EVERY: u32 = 256;
    /// The most values in the side table: 24 MiB. A snapshot has one for each segment, if any.
    const MAX_SIDE: usize = 1 << 20;

    pub(super) fn len(&self) -> usize {
        self.tags.len()
    }

    /// The word with this memo index, if it is one.
    #[inline]
    pub(super) fn word(&self, index: usize) -> Option<Word> {
        match *self.tags.get(index)? {
            SIDE.. => None,
            tag => Some(Word::from_number(tag)),
        }
    }

    /// Adds a string at the end.
    #[inline]
    pub(super) fn push_word(&mut self, word: Word) {
        self.tags.push(word as u8);
    }

    /// Takes strings at the end back.
    pub(super) fn truncate(&mut self, len: usize) {
        self.tags.truncate(len);
    }

    /// Stores `value` at `index`; returns the index if the value has to know it.
    pub(super) fn put(&mut self, index: u32, value: Value) -> Result<u32, Problem> {
        let at = index as usize;
        if index == Self::NONE || at > self.tags.len() {
            return Err(Problem::layout(format!("memo index {index}, where the next free one is {}", self.tags.len())));
        }
        let mut owner = Self::NONE;
        let tag = match value {
            Value::Word(word) => word as u8,
            Value::Dict { .. } => {
                owner = index;
                Word::Unknown as u8
            }
            Value::List { .. } => {
                owner = index;
                EMPTY_LIST
            }
            Value::Int(_) | Value::Float(_) | Value::Pair(..) | Value::Text(_) => SIDE,
            _ => Word::Unknown as u8,
        };
        if at < self.tags.len() {
            // No known writer stores twice. What was there may be known elsewhere by its index, so it only goes if
            // it is a word.
            if self.tags[at] >= SIDE || tag == SIDE || owner != Self::NONE {
                return Err(Problem::layout(format!("memo index {index} is stored a second time")));
            }
            self.tags[at] = tag;
        } else {
            if tag == SIDE {
                if self.side.len() == Self::MAX_SIDE {
                    let most = Self::MAX_SIDE;
                    return Err(Problem::layout(format!("more than {most} numbers, pairs and texts in the memo")));
                }
                self.side.push((index, value));
            }
            self.tags.push(tag);
        }
        Ok(owner)
    }

    /// What a reference leads to.
    pub(super) fn get(&self, index: u32) -> Result<Referent, Problem> {
        let Some(&tag) = self.tags.get(index as usize) else {
            return Err(Problem::layout(format!("a reference to memo index {index}, where nothing was stored")));
        };
        Ok(match tag {
            ENTRY => {
                let mark = self.entries.partition_point(|&(memo, _)| memo <= index);
                let Some(&(memo, number)) = mark.checked_sub(1).and_then(|m| self.entries.get(m)) else {
                    return Err(Problem::layout("a reference to an unknown trace entry"));
                };
                let between = self.tags[memo as usize..index as usize].iter().filter(|&&tag| tag == ENTRY).count();
                Referent::Entry(number + between as u64)
            }
            EMPTY_LIST => Referent::Value(Value::List { memo: Self::NONE }),
            SIDE => match self.side.binary_search_by_key(&index, |&(at, _)| at) {
                Ok(at) => Referent::Value(self.side[at].1),
                Err(_) => Referent::Value(Value::Other),
            },
            word if Word::from_number(word) == Word::Unknown => Referent::Value(Value::Other),
            word => Referent::Value(Value::Word(Word::from_number(word))),
        })
    }

    /// The dictionary with memo index `index` is trace entry `number`.
    #[inline]
    pub(super) fn is_entry(&mut self, index: u32, number: u64) {
        if index == Self::NONE {
            return;
        }
        self.tags[index as usize] = ENTRY;
        if self.unmarked == 0 {
            self.entries.push((index, number));
        }
        self.unmarked = (self.unmarked + 1) % Self::MARK_EVERY;
    }

    /// Entry numbers are not consecutive here: an entry was added that has no memo index of its own.
    pub(super) fn break_entries(&mut self) {
        self.unmarked = 0;
    }

    /// The list with memo index `index` is empty no more.
    pub(super) fn is_filled(&mut self, index: u32) {
        if index != Self::NONE {
            self.tags[index as usize] = Word::Unknown as u8;
        }
    }
}
