//! The pickle machine: a stack of small values, and nothing else of Python's objects.
//!
//! A container is turned into what it means (an entry, a block, a segment, …) by the opcode that fills it, and from
//! then on is a number on the stack. Consecutive trace entries are one value, so a history of any length takes
//! one place.

use super::Snapshot;
use super::build::Store;
use super::error::{Malformed, Problem, SnapshotError};
use super::memo::{Memo, Referent};
use super::opcode::{self as op, Refusal};
use super::source::Source;
use super::words::Word;

/// A value on the stack: 16 bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Value {
    /// The start of a group.
    Mark,
    /// Something whose content does not matter.
    Other,
    Word(Word),
    /// A string that was kept because of the key before it.
    Text(u32),
    Int(i64),
    Float(f64),
    Bool(bool),
    /// Two small numbers, as pool ids are.
    Pair(u32, u32),
    /// A dictionary without items, and its memo index.
    Dict {
        memo: u32,
    },
    /// The outermost dictionary.
    Top,
    /// The settings.
    Settings,
    /// The last so many trace entries that are in no list yet.
    Entries(u32),
    Block(u32),
    Segment(u32),
    /// A list without items, and its memo index.
    List {
        memo: u32,
    },
    /// A list of trace entries.
    History(u32),
    /// A list of lists of trace entries: a range of [`Store::lists`].
    Histories {
        start: u32,
        len: u32,
    },
    /// A list of blocks: a range of [`Store::blocks`].
    Blocks {
        start: u32,
        len: u32,
    },
    /// A list of segments: a range of [`Store::segments`].
    Segments {
        start: u32,
        len: u32,
    },
}

pub(super) struct Machine<'a> {
    pub(super) source: Source<'a>,
    pub(super) stack: Vec<Value>,
    pub(super) memo: Memo,
    pub(super) store: Store,
    /// Where the opcode that is being carried out starts.
    at: u64,
    opcode: Option<u8>,
    /// Trace entries that a reference added.
    entries_again: u32,
}

/// Why an opcode was not carried out.
pub(super) enum Failure {
    Read(SnapshotError),
    Problem(Problem),
}

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Failure {
        Failure::Read(error)
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Problem(problem)
    }
}

/// Reads a whole snapshot.
pub(super) fn read(source: Source<'_>) -> Result<Snapshot, SnapshotError> {
    let mut machine = Machine {
        source,
        stack: Vec::new(),
        memo: Memo::default(),
        store: Store::default(),
        at: 0,
        opcode: None,
        entries_again: 0,
    };
    let result = machine.run();
    result.map_err(|failure| match failure {
        Failure::Read(error) => error,
        Failure::Problem(problem) => machine.describe(problem),
    })
}

impl Machine<'_> {
    /// The most values on the stack: 64 MiB. Lists are filled in pieces of 1,000 by Python; the writer in C++ does
    /// not split them, but trace entries take one place together.
    const MAX_STACK: usize = 1 << 22;
    /// The most trace entries that stand for another one: two bytes each in the file, 32 here.
    const MAX_ENTRIES_AGAIN: u32 = 1 << 20;
    /// Memo entries that any file may have, and bytes of the file for each further one. A snapshot has 20 and more.
    const FREE_MEMO: u64 = 4096;
    const BYTES_PER_MEMO: u64 = 4;
    /// The longest text that is kept.
    const MAX_TEXT: u64 = 64 * 1024;

    fn describe(&self, problem: Problem) -> SnapshotError {
        SnapshotError::Malformed(Box::new(Malformed {
            file: self.source.file().into(),
            offset: self.at,
            compressed: self.source.compressed(),
            opcode: self.opcode.map(op::name),
            bytes: self.source.around(self.at, 16).to_vec(),
            problem: problem.what,
            hint: problem.hint,
        }))
    }

    fn run(&mut self) -> Result<Snapshot, Failure> {
        self.start()?;
        loop {
            self.source.ensure(16)?;
            self.at = self.source.offset();
            let Some(&opcode) = self.source.buffered().first() else {
                self.opcode = None;
                return Err(Problem::truncated().into());
            };
            self.opcode = Some(opcode);
            match opcode {
                op::EMPTY_DICT => self.dict()?,
                op::STOP => return self.stop(),
                _ => self.step(opcode)?,
            }
        }
    }

    /// The first two bytes of every pickle since protocol 2.
    fn start(&mut self) -> Result<(), Failure> {
        self.source.ensure(16)?;
        let problem = |what: String, hint| Err(Failure::Problem(Problem { what, hint }));
        let is_no_pickle = "a snapshot starts with 80 02 to 80 05 (pickle protocol 2 to 5)";
        match self.source.buffered() {
            [] => problem("the file is empty".into(), "dump the snapshot again"),
            [op::PROTO] => Err(Problem::truncated().into()),
            [op::PROTO, 2..=5, ..] => {
                self.source.advance(2);
                Ok(())
            }
            [op::PROTO, version, ..] => problem(
                format!("pickle protocol {version}, where 2 to 5 are known"),
                "dump the snapshot with pickle protocol 4",
            ),
            bytes if bytes.starts_with(b"gpu-alloc-trace") => problem(
                "this is a trace, which holds only what the workload asked for; a snapshot is needed here".into(),
                "give the snapshot that the trace was imported from; `harness run --trace` takes traces",
            ),
            [b'P', b'K', ..] => problem(
                format!("a zip archive, where {is_no_pickle}"),
                "if torch.save wrote it, write the dictionary with torch.cuda.memory._dump_snapshot() instead",
            ),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => {
                problem(format!("xz data, where {is_no_pickle}"), "decompress it first: `xz -d FILE`")
            }
            [b'B', b'Z', b'h', ..] => {
                problem(format!("bzip2 data, where {is_no_pickle}"), "decompress it first: `bunzip2 FILE`")
            }
            [b'<', ..] => problem(
                format!("text that looks like HTML, where {is_no_pickle}"),
                "give the .pickle file that the page was made from",
            ),
            _ => problem(
                format!("no pickle: {is_no_pickle}"),
                "give a file that torch.cuda.memory._dump_snapshot() wrote, plain or compressed with gzip or zstd",
            ),
        }
    }

    /// The operand of `len` bytes after the opcode, little-endian.
    fn operand(&mut self, len: usize) -> Result<u64, Failure> {
        let Some(bytes) = self.source.buffered().get(1..=len) else {
            return Err(Problem::truncated().into());
        };
        let mut wide = [0; 8];
        wide[..len].copy_from_slice(bytes);
        self.source.advance(1 + len);
        Ok(u64::from_le_bytes(wide))
    }

    #[inline]
    pub(super) fn push(&mut self, value: Value) -> Result<(), Failure> {
        if self.stack.len() == Self::MAX_STACK {
            return Err(
                Problem::layout(format!("more than {} values that wait for a container", Self::MAX_STACK)).into()
            );
        }
        self.stack.push(value);
        Ok(())
    }

    /// Any opcode but `EMPTY_DICT` and `STOP`.
    fn step(&mut self, opcode: u8) -> Result<(), Failure> {
        match opcode {
            op::BINGET => {
                let index = self.operand(1)?;
                self.get(index as u32)
            }
            op::LONG_BINGET => {
                let index = self.operand(4)?;
                self.get(index as u32)
            }
            op::MEMOIZE => {
                self.operand(0)?;
                self.put(u32::try_from(self.memo.len()).unwrap_or(Memo::NONE))
            }
            op::BINPUT => {
                let index = self.operand(1)?;
                self.put(index as u32)
            }
            op::LONG_BINPUT => {
                let index = self.operand(4)?;
                self.put(index as u32)
            }
            op::MARK => self.constant(Value::Mark),
            op::NONE => self.constant(Value::Other),
            op::NEWTRUE => self.constant(Value::Bool(true)),
            op::NEWFALSE => self.constant(Value::Bool(false)),
            op::EMPTY_LIST => self.constant(Value::List { memo: Memo::NONE }),
            op::EMPTY_TUPLE => self.constant(Value::Other),
            op::BININT1 => self.int::<1>(|b| i64::from(b[0])),
            op::BININT2 => self.int::<2>(|b| i64::from(u16::from_le_bytes(b))),
            op::BININT => self.int::<4>(|b| i64::from(i32::from_le_bytes(b))),
            op::BINFLOAT => {
                let bits = self.operand(8)?.swap_bytes();
                self.push(Value::Float(f64::from_bits(bits)))
            }
            op::LONG1 => self.long(),
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING => {
                let len = self.operand(1)?;
                self.string(len)
            }
            op::BINUNICODE | op::BINSTRING => {
                let len = self.operand(4)?;
                self.string(len)
            }
            op::BINUNICODE8 => {
                let len = self.operand(8)?;
                self.string(len)
            }
            op::SHORT_BINBYTES => {
                let len = self.operand(1)?;
                self.bytes(len)
            }
            op::BINBYTES => {
                let len = self.operand(4)?;
                self.bytes(len)
            }
            op::BINBYTES8 | op::BYTEARRAY8 => {
                let len = self.operand(8)?;
                self.bytes(len)
            }
            op::APPEND => {
                self.operand(0)?;
                let first = self.stack.len().saturating_sub(1);
                self.append(first, first)
            }
            op::APPENDS => {
                self.operand(0)?;
                let mark = self.mark()?;
                self.append(mark, mark + 1)
            }
            op::SETITEM => {
                self.operand(0)?;
                let first = self.stack.len().saturating_sub(2);
                self.set_items(first, first)
            }
            op::SETITEMS => {
                self.operand(0)?;
                let mark = self.mark()?;
                self.set_items(mark, mark + 1)
            }
            op::TUPLE => {
                self.operand(0)?;
                let mark = self.mark()?;
                self.tuple(mark, mark + 1)
            }
            op::TUPLE1..=op::TUPLE3 => {
                self.operand(0)?;
                let len = usize::from(opcode - op::TUPLE1) + 1;
                match self.stack.len().checked_sub(len) {
                    Some(first) => self.tuple(first, first),
                    None => Err(underflow().into()),
                }
            }
            // The number of bytes until the next frame: only of use to a reader without a buffer of its own.
            op::FRAME => self.operand(8).map(drop),
            op::PROTO => match self.operand(1)? {
                2..=5 => Ok(()),
                version => Err(Problem::layout(format!("pickle protocol {version}, where 2 to 5 are known")).into()),
            },
            _ => Err(refuse(opcode).into()),
        }
    }

    fn constant(&mut self, value: Value) -> Result<(), Failure> {
        self.source.advance(1);
        self.push(value)
    }

    fn int<const N: usize>(&mut self, value: impl Fn([u8; N]) -> i64) -> Result<(), Failure> {
        let Some(bytes) = self.source.buffered().get(1..).and_then(|rest| rest.first_chunk::<N>()) else {
            return Err(Problem::truncated().into());
        };
        let value = value(*bytes);
        self.source.advance(1 + N);
        self.push(Value::Int(value))
    }

    /// Integers of any length, little-endian in two's complement.
    fn long(&mut self) -> Result<(), Failure> {
        let len = match self.source.buffered().get(1) {
            Some(&len) => usize::from(len),
            None => return Err(Problem::truncated().into()),
        };
        if len > 8 {
            return Err(Problem::layout(format!("an integer of {len} bytes, where 8 are the most")).into());
        }
        let Some(bytes) = self.source.buffered().get(2..2 + len) else {
            return Err(Problem::truncated().into());
        };
        let negative = bytes.last().is_some_and(|&high| high >= 0x80);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        wide[..len].copy_from_slice(bytes);
        self.source.advance(2 + len);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    /// A string of `len` bytes that follow.
    fn string(&mut self, len: u64) -> Result<(), Failure> {
        let key = match self.stack.last() {
            Some(Value::Word(key @ (Word::Conf | Word::Action))) => Some(*key),
            _ => None,
        };
        let limit = if key == Some(Word::Conf) { Self::MAX_TEXT } else { Word::MAX_LEN as u64 * 4 };
        if len > limit {
            if key == Some(Word::Conf) {
                return Err(Problem::layout(format!("a settings text of {len} bytes")).into());
            }
            return if self.source.skip(len)? { self.push(Value::Other) } else { Err(Problem::truncated().into()) };
        }
        let len = len as usize;
        if !self.source.ensure(len)? {
            return Err(Problem::truncated().into());
        }
        let bytes = &self.source.buffered()[..len];
        let value = match (Word::of(bytes), key) {
            (Word::Unknown, Some(Word::Conf)) => self.store.keep_text(bytes),
            (Word::Unknown, Some(Word::Action)) => {
                self.store.unknown_action(bytes);
                Value::Other
            }
            (Word::Unknown, _) => Value::Other,
            (word, _) => Value::Word(word),
        };
        self.source.advance(len);
        self.push(value)
    }

    /// Bytes carry nothing in a snapshot.
    fn bytes(&mut self, len: u64) -> Result<(), Failure> {
        if self.source.skip(len)? { self.push(Value::Other) } else { Err(Problem::truncated().into()) }
    }

    fn get(&mut self, index: u32) -> Result<(), Failure> {
        match self.memo.get(index)? {
            Referent::Value(value) => self.push(value),
            Referent::Entry(number) => {
                let Some(entry) = self.store.entry(number) else {
                    return Err(Problem::layout("a reference to a trace entry that is not complete").into());
                };
                if self.entries_again == Self::MAX_ENTRIES_AGAIN {
                    let most = Self::MAX_ENTRIES_AGAIN;
                    return Err(Problem::layout(format!("more than {most} references to trace entries")).into());
                }
                self.entries_again += 1;
                self.memo.break_entries();
                self.store.pending.push(entry);
                self.push_entries(1)
            }
        }
    }

    fn put(&mut self, index: u32) -> Result<(), Failure> {
        let Some(top) = self.stack.last_mut() else {
            return Err(underflow().into());
        };
        let owner = self.memo.put(index, *top)?;
        // A compressed file of some kilobytes can hold any number of these opcodes.
        if self.memo.len() as u64 > Self::FREE_MEMO + self.at / Self::BYTES_PER_MEMO {
            return Err(Problem::layout("more memo entries than so many bytes of a snapshot can need").into());
        }
        if let Value::Dict { memo } | Value::List { memo } = top {
            *memo = owner;
        }
        Ok(())
    }

    /// Entries that were just added to the pending ones.
    #[inline]
    pub(super) fn push_entries(&mut self, count: u32) -> Result<(), Failure> {
        match self.stack.last_mut() {
            Some(Value::Entries(n)) if *n < u32::MAX - count => *n += count,
            _ => self.push(Value::Entries(count))?,
        }
        Ok(())
    }

    /// Position of the topmost mark.
    fn mark(&self) -> Result<usize, Problem> {
        self.stack.iter().rposition(|value| *value == Value::Mark).ok_or_else(|| Problem::layout("no MARK before it"))
    }

    /// Appends the values from `first` on to the list below `cut`.
    fn append(&mut self, cut: usize, first: usize) -> Result<(), Failure> {
        let Some(list) = cut.checked_sub(1).and_then(|at| self.stack.get(at)).copied() else {
            return Err(underflow().into());
        };
        let items = self.stack.get(first..).unwrap_or_default();
        let filled = self.store.append(list, items)?;
        if let (Value::List { memo }, false) = (list, filled == list) {
            self.memo.is_filled(memo);
        }
        self.stack.truncate(cut);
        self.stack[cut - 1] = filled;
        Ok(())
    }

    /// Puts the pairs from `first` on into the dictionary below `cut`.
    fn set_items(&mut self, cut: usize, first: usize) -> Result<(), Failure> {
        let Some(dict) = cut.checked_sub(1).and_then(|at| self.stack.get(at)).copied() else {
            return Err(underflow().into());
        };
        let items = self.stack.get(first..).unwrap_or_default();
        let filled = self.store.set_items(dict, items)?;
        self.stack.truncate(cut - 1);
        match filled {
            Value::Entries(count) => {
                if let Value::Dict { memo } = dict {
                    self.memo.is_entry(memo, self.store.last_number());
                }
                self.push_entries(count)
            }
            filled => self.push(filled),
        }
    }

    fn tuple(&mut self, cut: usize, first: usize) -> Result<(), Failure> {
        let tuple = match self.stack.get(first..).unwrap_or_default() {
            [Value::Int(a), Value::Int(b)] => match (u32::try_from(*a), u32::try_from(*b)) {
                (Ok(a), Ok(b)) => Value::Pair(a, b),
                _ => Value::Other,
            },
            items => {
                Store::must_be_plain(items)?;
                Value::Other
            }
        };
        self.stack.truncate(cut);
        self.push(tuple)
    }

    /// The end of the pickle, which has to be the end of the stream.
    fn stop(&mut self) -> Result<Snapshot, Failure> {
        self.source.advance(1);
        let &[top] = self.stack.as_slice() else {
            return Err(Problem::layout(format!(
                "{} values at the end of the pickle, where 1 is expected",
                self.stack.len()
            ))
            .into());
        };
        let mut snapshot = self.store.finish(top)?;
        if self.source.ensure(1)? {
            self.at = self.source.offset();
            self.opcode = None;
            return Err(Problem {
                what: "bytes after the end of the pickle".into(),
                hint: "the file holds more than one snapshot, or something was appended: give one snapshot a file",
            }
            .into());
        }
        snapshot.name = self.source.file().into();
        Ok(snapshot)
    }
}

fn underflow() -> Problem {
    Problem::layout("too few values on the stack")
}

#[cold]
fn refuse(opcode: u8) -> Problem {
    match op::refused(opcode).1 {
        Refusal::RunsCode => Problem {
            what: "it names or calls a Python object, which no snapshot does; nothing was executed".into(),
            hint: "do not load this file with pickle either unless you trust its origin; snapshots are written by \
                   torch.cuda.memory._dump_snapshot()",
        },
        Refusal::TextProtocol => Problem {
            what: "an opcode of the text protocols 0 and 1".into(),
            hint: "dump the snapshot with pickle protocol 2 or newer",
        },
        Refusal::NotInSnapshots => Problem::layout("an opcode that no snapshot contains"),
        Refusal::Unknown => Problem {
            what: "not an opcode".into(),
            hint: "the file is damaged, or no pickle: copy it again, or dump it again",
        },
    }
}
