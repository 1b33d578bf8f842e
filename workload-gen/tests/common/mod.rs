//! A small pickle writer, so that tests can make snapshots of any layout and damage them.

// Each test file uses a part of it.
#![allow(dead_code)]

pub mod hash;
pub mod jobs;

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

/// A Python value.
#[derive(Clone, Debug)]
pub enum Py {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    List(Vec<Py>),
    Tuple(Vec<Py>),
    Dict(Vec<(Py, Py)>),
    /// An object that is written once and referred to afterwards.
    Shared(Rc<Py>),
}

impl From<i64> for Py {
    fn from(n: i64) -> Py {
        Py::Int(n)
    }
}

impl From<&str> for Py {
    fn from(text: &str) -> Py {
        Py::Str(text.into())
    }
}

impl From<bool> for Py {
    fn from(yes: bool) -> Py {
        Py::Bool(yes)
    }
}

impl From<Vec<Py>> for Py {
    fn from(items: Vec<Py>) -> Py {
        Py::List(items)
    }
}

/// A dictionary with strings for keys.
pub fn dict<const N: usize>(pairs: [(&str, Py); N]) -> Py {
    Py::Dict(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// How a pickle is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// As Python's `pickle.dump` with this protocol.
    Python(u8),
    /// As PyTorch's writer in C++: protocol 2, no batches, long integers of 8 bytes, only strings in the memo.
    Torch,
}

pub const STYLES: [Style; 5] = [Style::Python(2), Style::Python(3), Style::Python(4), Style::Python(5), Style::Torch];

/// Writes a pickle.
pub fn pickle(value: &Py, style: Style) -> Vec<u8> {
    let protocol = if let Style::Python(protocol) = style { protocol } else { 2 };
    let mut writer =
        Writer { out: vec![0x80, protocol], style, protocol, strings: HashMap::new(), shared: HashMap::new(), memo: 0 };
    writer.value(value);
    writer.out.push(b'.');
    if protocol >= 4 {
        let len = (writer.out.len() - 2) as u64;
        let frame = [&[0x95][..], &len.to_le_bytes()].concat();
        writer.out.splice(2..2, frame);
    }
    writer.out
}

struct Writer {
    out: Vec<u8>,
    style: Style,
    protocol: u8,
    strings: HashMap<String, u32>,
    shared: HashMap<*const Py, u32>,
    memo: u32,
}

impl Writer {
    fn memoize(&mut self) -> u32 {
        let index = self.memo;
        self.memo += 1;
        match (self.protocol, u8::try_from(index)) {
            (4.., _) => self.out.push(0x94),
            (_, Ok(short)) => self.out.extend([b'q', short]),
            _ => {
                self.out.push(b'r');
                self.out.extend(index.to_le_bytes());
            }
        }
        index
    }

    fn get(&mut self, index: u32) {
        match u8::try_from(index) {
            Ok(short) => self.out.extend([b'h', short]),
            Err(_) => {
                self.out.push(b'j');
                self.out.extend(index.to_le_bytes());
            }
        }
    }

    fn container(&mut self, opcode: u8) -> Option<u32> {
        self.out.push(opcode);
        (self.style != Style::Torch).then(|| self.memoize())
    }

    fn int(&mut self, n: i64) {
        if let Ok(byte) = u8::try_from(n) {
            self.out.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(n) {
            self.out.push(b'M');
            self.out.extend(short.to_le_bytes());
        } else if let Ok(word) = i32::try_from(n) {
            self.out.push(b'J');
            self.out.extend(word.to_le_bytes());
        } else {
            let bytes = n.to_le_bytes();
            let mut len = 8;
            while self.style != Style::Torch
                && len > 1
                && (bytes[len - 1] == 0 && bytes[len - 2] < 0x80 || bytes[len - 1] == 0xff && bytes[len - 2] >= 0x80)
            {
                len -= 1;
            }
            self.out.extend([0x8a, len as u8]);
            self.out.extend(&bytes[..len]);
        }
    }

    fn string(&mut self, text: &str) {
        if let Some(&index) = self.strings.get(text) {
            return self.get(index);
        }
        if self.protocol >= 4 && text.len() < 256 {
            self.out.extend([0x8c, text.len() as u8]);
        } else {
            self.out.push(b'X');
            self.out.extend((text.len() as u32).to_le_bytes());
        }
        self.out.extend(text.as_bytes());
        let index = self.memoize();
        // Python shares a string only if it is the same object; texts that are made anew for each entry are not.
        if text != "N/A" {
            self.strings.insert(text.into(), index);
        }
    }

    /// Returns the memo index of a container that has one.
    fn value(&mut self, value: &Py) -> Option<u32> {
        match value {
            Py::None => self.out.push(b'N'),
            Py::Bool(yes) => self.out.push(if *yes { 0x88 } else { 0x89 }),
            Py::Int(n) => self.int(*n),
            Py::Float(x) => {
                self.out.push(b'G');
                self.out.extend(x.to_be_bytes());
            }
            Py::Str(text) => self.string(text),
            Py::Tuple(items) => {
                if items.len() > 3 {
                    self.out.push(b'(');
                }
                for item in items {
                    self.value(item);
                }
                let opcode = [b')', 0x85, 0x86, 0x87].get(items.len()).copied().unwrap_or(b't');
                return self.container(opcode);
            }
            Py::List(items) => {
                let index = self.container(b']');
                for batch in items.chunks(if self.style == Style::Torch { usize::MAX } else { 1000 }) {
                    let single = batch.len() == 1 && self.style != Style::Torch;
                    if !single {
                        self.out.push(b'(');
                    }
                    for item in batch {
                        self.value(item);
                    }
                    self.out.push(if single { b'a' } else { b'e' });
                }
                return index;
            }
            Py::Dict(pairs) => {
                let index = self.container(b'}');
                for batch in pairs.chunks(if self.style == Style::Torch { usize::MAX } else { 1000 }) {
                    let single = batch.len() == 1 && self.style != Style::Torch;
                    if !single {
                        self.out.push(b'(');
                    }
                    for (key, value) in batch {
                        self.value(key);
                        self.value(value);
                    }
                    self.out.push(if single { b's' } else { b'u' });
                }
                return index;
            }
            Py::Shared(object) => match self.shared.get(&Rc::as_ptr(object)) {
                Some(&index) => self.get(index),
                None => {
                    if let Some(index) = self.value(object) {
                        self.shared.insert(Rc::as_ptr(object), index);
                    }
                }
            },
        }
        None
    }
}

/// A trace entry as PyTorch 2.11 writes it.
pub fn entry(action: &str, address: i64, size: i64, stream: i64) -> Py {
    let place = if action == "oom" { "device_free" } else { "addr" };
    dict([
        ("action", action.into()),
        (place, address.into()),
        ("size", size.into()),
        ("stream", stream.into()),
        ("time_us", 1_795_967_024_067_048.into()),
        ("compile_context", "N/A".into()),
        ("user_metadata", "".into()),
    ])
}

/// The three entries of a block that is allocated and freed at once.
pub fn alloc_and_free(address: i64, size: i64) -> [Py; 3] {
    ["alloc", "free_requested", "free_completed"].map(|action| entry(action, address, size, 0))
}

/// A block of a segment.
pub fn block(address: i64, size: i64, state: &str) -> Py {
    dict([
        ("address", address.into()),
        ("size", size.into()),
        ("requested_size", (size - 12).into()),
        ("state", state.into()),
        ("frames", Py::List(vec![])),
    ])
}

/// A segment of the large pool.
pub fn segment(device: i64, address: i64, pool: i64, blocks: Vec<Py>, total: i64) -> Py {
    dict([
        ("device", device.into()),
        ("address", address.into()),
        ("total_size", total.into()),
        ("allocated_size", 0.into()),
        ("active_size", 0.into()),
        ("requested_size", 0.into()),
        ("stream", 0.into()),
        ("segment_type", "large".into()),
        ("segment_pool_id", Py::Tuple(vec![pool.into(), 0.into()])),
        ("is_expandable", false.into()),
        ("frames", Py::List(vec![])),
        ("blocks", blocks.into()),
    ])
}

/// A whole snapshot as PyTorch 2.11 writes it.
pub fn snapshot(segments: Vec<Py>, traces: Vec<Py>) -> Py {
    let settings = dict([
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128".into()),
        ("max_split_size", (-1).into()),
        ("garbage_collection_threshold", Py::Float(0.5)),
        ("expandable_segments", false.into()),
        ("roundup_power2_divisions", dict([("1", 0.into()), ("2", 0.into())])),
    ]);
    dict([
        ("segments", segments.into()),
        ("device_traces", traces.into()),
        ("allocator_settings", settings),
        ("external_annotations", Py::List(vec![dict([("name", "step".into()), ("device", 0.into())])])),
    ])
}

/// The folder with the recordings, or `None` with a printed reason.
pub fn recordings() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    if folder.is_dir() {
        Some(folder)
    } else {
        println!("skipped: {} does not exist", folder.display());
        None
    }
}
