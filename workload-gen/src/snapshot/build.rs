//! From dictionaries and lists to entries, blocks, segments and settings.

use super::error::Problem;
use super::machine::Value;
use super::words::Word;
use super::{Action, AllocatorSettings, BlockState, Entry, History, Segment, Snapshot, SnapshotBlock};

/// Everything of a snapshot that is already known.
#[derive(Default)]
pub(super) struct Store {
    /// Trace entries that are in no list yet: those that [`Value::Entries`] on the stack count.
    pub(super) pending: History,
    histories: Vec<History>,
    /// Number of entries in all histories.
    settled: u64,
    /// Items of lists of lists: history numbers, or [`Store::EMPTY`].
    lists: Vec<u32>,
    blocks: Vec<SnapshotBlock>,
    segments: Vec<Segment>,
    texts: Vec<String>,
    unknown_actions: Vec<String>,
    pub(super) streams: Streams,
    /// The streams that segments name; only counted.
    segment_streams: Streams,
    settings: AllocatorSettings,
    /// Values of the outermost dictionary.
    top_segments: Option<Value>,
    top_traces: Option<Value>,
}

/// Streams, each with its number.
#[derive(Default)]
pub(super) struct Streams {
    raw: Vec<u64>,
    last: u32,
}

impl Streams {
    /// PyTorch makes at most some hundred.
    const MAX: usize = 4_000;

    /// The number of a stream.
    #[inline]
    pub(super) fn number(&mut self, raw: u64) -> Result<u32, Problem> {
        if self.raw.get(self.last as usize) == Some(&raw) { Ok(self.last) } else { self.find(raw) }
    }

    #[cold]
    fn find(&mut self, raw: u64) -> Result<u32, Problem> {
        let number = match self.raw.iter().position(|&known| known == raw) {
            Some(number) => number,
            None if self.raw.len() == Self::MAX => {
                return Err(Problem::layout(format!("more than {} streams", Self::MAX)));
            }
            None => {
                self.raw.push(raw);
                self.raw.len() - 1
            }
        };
        self.last = number as u32;
        Ok(self.last)
    }
}

/// The fields of a trace entry's dictionary as they come in.
#[derive(Clone, Copy, Default)]
pub(super) struct EntryFields {
    pub(super) action: Option<Action>,
    pub(super) addr: Option<i64>,
    pub(super) device_free: Option<i64>,
    pub(super) size: Option<i64>,
    pub(super) stream: Option<i64>,
    pub(super) time_us: i64,
}

impl EntryFields {
    /// The entry, if all is there that every version writes.
    #[inline]
    pub(super) fn entry(&self, streams: &mut Streams) -> Result<Entry, Problem> {
        let action = self.action.unwrap_or(Action::Unknown);
        let addr = if action == Action::Oom { self.device_free.or(self.addr) } else { self.addr.or(self.device_free) };
        let (Some(addr), Some(size), Some(stream)) = (addr, self.size, self.stream) else {
            return if action == Action::Unknown {
                Ok(Entry { addr: 0, size: 0, time_us: self.time_us as u64, stream: streams.number(0)?, action })
            } else {
                Err(self.missing(action))
            };
        };
        if size < 0 {
            return Err(Problem::layout(format!("a trace entry with the size {size}")));
        }
        // Addresses and stream handles are pointers that PyTorch writes as signed numbers.
        let stream = streams.number(stream as u64)?;
        Ok(Entry { addr: addr as u64, size: size as u64, time_us: self.time_us as u64, stream, action })
    }

    #[cold]
    fn missing(&self, action: Action) -> Problem {
        let key = match (self.size, self.stream) {
            (None, _) => "size",
            (_, None) => "stream",
            _ if action == Action::Oom => "device_free",
            _ => "addr",
        };
        Problem::layout(format!("a trace entry `{}` without an integer under `{key}`", action.name()))
    }
}

impl Store {
    const EMPTY: u32 = u32::MAX;
    const MAX_TEXTS: usize = 16;

    /// Keeps a text for later.
    pub(super) fn keep_text(&mut self, bytes: &[u8]) -> Value {
        if self.texts.len() == Self::MAX_TEXTS {
            return Value::Other;
        }
        self.texts.push(String::from_utf8_lossy(bytes).into_owned());
        Value::Text(self.texts.len() as u32 - 1)
    }

    /// Notes an action that has no number.
    pub(super) fn unknown_action(&mut self, bytes: &[u8]) {
        let name = String::from_utf8_lossy(bytes);
        if self.unknown_actions.len() < Self::MAX_TEXTS && !self.unknown_actions.iter().any(|known| *known == name) {
            self.unknown_actions.push(name.into_owned());
        }
    }

    /// The number of the entry that came last.
    #[inline]
    pub(super) fn last_number(&self) -> u64 {
        self.settled + self.pending.len() as u64 - 1
    }

    /// The entry with a number that counts over all devices.
    pub(super) fn entry(&self, mut number: u64) -> Option<Entry> {
        for history in self.histories.iter().chain([&self.pending]) {
            match usize::try_from(number).ok().and_then(|index| history.get(index)) {
                Some(entry) => return Some(*entry),
                None => number -= history.len() as u64,
            }
        }
        None
    }

    /// Values whose content may be dropped: entries, blocks and segments belong into their lists.
    pub(super) fn must_be_plain(items: &[Value]) -> Result<(), Problem> {
        for item in items {
            let what = match item {
                Value::Mark => "a MARK without an end",
                Value::Entries(_) => "a trace entry",
                Value::Segment(_) => "a segment",
                Value::Top => "a whole snapshot",
                _ => continue,
            };
            return Err(Problem::layout(format!("{what} where none belongs")));
        }
        Ok(())
    }

    /// Appends `items` to `list`; returns what the list is then.
    pub(super) fn append(&mut self, list: Value, items: &[Value]) -> Result<Value, Problem> {
        match (list, items) {
            (_, []) => match list {
                Value::List { .. } | Value::History(_) | Value::Histories { .. } | Value::Blocks { .. } => Ok(list),
                Value::Segments { .. } | Value::Other => Ok(list),
                _ => Err(no_list()),
            },
            (Value::List { .. } | Value::History(_), [Value::Entries(count)]) => self.append_entries(list, *count),
            (Value::List { .. } | Value::Blocks { .. }, [Value::Block(first), ..]) => {
                let (start, had) = if let Value::Blocks { start, len } = list { (start, len) } else { (*first, 0) };
                let len = run(items, start + had, |item| if let Value::Block(n) = item { Some(*n) } else { None })?;
                Ok(Value::Blocks { start, len: had + len })
            }
            (Value::List { .. } | Value::Segments { .. }, [Value::Segment(first), ..]) => {
                let (start, had) = if let Value::Segments { start, len } = list { (start, len) } else { (*first, 0) };
                let len = run(items, start + had, |item| if let Value::Segment(n) = item { Some(*n) } else { None })?;
                Ok(Value::Segments { start, len: had + len })
            }
            (Value::List { .. } | Value::Histories { .. }, items)
                if items.iter().all(|item| matches!(item, Value::History(_) | Value::List { .. })) =>
            {
                let (start, had) = match list {
                    Value::Histories { start, len } if (start + len) as usize == self.lists.len() => (start, len),
                    Value::Histories { .. } => return Err(Problem::layout("two lists of lists in one another")),
                    _ => (self.lists.len() as u32, 0),
                };
                self.lists.extend(items.iter().map(|item| match item {
                    Value::History(number) => *number,
                    _ => Self::EMPTY,
                }));
                if self.lists.len() >= Self::EMPTY as usize {
                    return Err(Problem::layout("too many lists of lists"));
                }
                Ok(Value::Histories { start, len: had + items.len() as u32 })
            }
            // A list of lists that were all empty, which turns out to be something else, was never a history.
            (Value::List { .. } | Value::Other | Value::Histories { .. }, items) => {
                Store::must_be_plain(items)?;
                match list {
                    Value::Histories { start, len } if self.has_history(start, len) => Err(mixed()),
                    _ if items.iter().any(|item| matches!(item, Value::History(_))) => Err(mixed()),
                    _ => Ok(Value::Other),
                }
            }
            (Value::History(_) | Value::Blocks { .. } | Value::Segments { .. }, _) => Err(mixed()),
            _ => Err(no_list()),
        }
    }

    fn has_history(&self, start: u32, len: u32) -> bool {
        self.lists[start as usize..(start + len) as usize].iter().any(|&number| number != Self::EMPTY)
    }

    fn append_entries(&mut self, list: Value, count: u32) -> Result<Value, Problem> {
        let number = match list {
            Value::History(number) => number,
            _ => {
                self.histories.push(History::new());
                self.histories.len() as u32 - 1
            }
        };
        if number as usize + 1 != self.histories.len() {
            return Err(Problem::layout("the lists of two devices in one another"));
        }
        let history = &mut self.histories[number as usize];
        self.pending.move_tail(count as usize, history);
        self.settled += u64::from(count);
        Ok(Value::History(number))
    }

    /// Puts pairs into a dictionary; returns what it is then.
    pub(super) fn set_items(&mut self, dict: Value, items: &[Value]) -> Result<Value, Problem> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Problem::layout("a key without a value"));
        }
        match dict {
            Value::Dict { .. } => {
                for [key, _] in pairs {
                    match key {
                        Value::Word(Word::Action) => return self.entry_dict(pairs),
                        Value::Word(Word::State) => return self.block_dict(pairs),
                        Value::Word(Word::Blocks | Word::TotalSize) => return self.segment_dict(pairs),
                        Value::Word(Word::Segments | Word::DeviceTraces) => return self.top_dict(pairs),
                        Value::Word(Word::Conf | Word::MaxSplitSize | Word::GcThreshold) => {
                            return self.settings_dict(pairs);
                        }
                        _ => {}
                    }
                }
                self.plain_dict(dict, pairs)
            }
            Value::Top => self.top_dict(pairs),
            Value::Settings => self.settings_dict(pairs),
            Value::Other => self.plain_dict(dict, pairs),
            Value::Entries(_) | Value::Block(_) | Value::Segment(_) => {
                Err(Problem::layout("a dictionary that is filled in two steps"))
            }
            _ => Err(Problem::layout("items for something that is no dictionary")),
        }
    }

    fn plain_dict(&mut self, dict: Value, pairs: &[[Value; 2]]) -> Result<Value, Problem> {
        Store::must_be_plain(pairs.as_flattened())?;
        Ok(if pairs.is_empty() { dict } else { Value::Other })
    }

    fn entry_dict(&mut self, pairs: &[[Value; 2]]) -> Result<Value, Problem> {
        let mut fields = EntryFields::default();
        Store::must_be_plain(pairs.as_flattened())?;
        for [key, value] in pairs {
            let Value::Word(key) = key else { continue };
            let int = if let Value::Int(n) = value { Some(*n) } else { None };
            match key {
                Word::Action => {
                    fields.action = Some(if let Value::Word(word) = value { word.action() } else { Action::Unknown });
                }
                Word::Addr => fields.addr = int,
                Word::DeviceFree => fields.device_free = int,
                Word::Size => fields.size = int,
                Word::Stream => fields.stream = int,
                Word::TimeUs => fields.time_us = int.unwrap_or(0),
                _ => {}
            }
        }
        let entry = fields.entry(&mut self.streams)?;
        self.pending.push(entry);
        Ok(Value::Entries(1))
    }

    fn block_dict(&mut self, pairs: &[[Value; 2]]) -> Result<Value, Problem> {
        Store::must_be_plain(pairs.as_flattened())?;
        // Old versions write no address: blocks tile their segment, which fills it in.
        let mut block = SnapshotBlock { address: 0, size: 0, requested_size: u64::MAX, state: BlockState::Inactive };
        let mut sized = false;
        for [key, value] in pairs {
            match (key, value) {
                (Value::Word(Word::Address), value) => block.address = size("a block's address", value)?,
                (Value::Word(Word::Size), value) => {
                    block.size = size("a block's size", value)?;
                    sized = true;
                }
                (Value::Word(Word::RequestedSize), value) => block.requested_size = size("a requested size", value)?,
                (Value::Word(Word::State), Value::Word(Word::ActiveAllocated)) => block.state = BlockState::Allocated,
                (Value::Word(Word::State), Value::Word(Word::ActivePendingFree)) => {
                    block.state = BlockState::PendingFree;
                }
                (Value::Word(Word::State), Value::Word(Word::Inactive)) => block.state = BlockState::Inactive,
                (Value::Word(Word::State), _) => return Err(Problem::layout("a block in an unknown state")),
                _ => {}
            }
        }
        if !sized {
            return Err(Problem::layout("a block without a size"));
        }
        if block.requested_size == u64::MAX {
            block.requested_size = block.size;
        }
        self.blocks.push(block);
        Ok(Value::Block(self.blocks.len() as u32 - 1))
    }

    fn segment_dict(&mut self, pairs: &[[Value; 2]]) -> Result<Value, Problem> {
        let mut segment = Segment {
            device: 0,
            address: 0,
            total_size: 0,
            stream: 0,
            large: false,
            pool: (0, 0),
            expandable: false,
            blocks: Vec::new(),
        };
        let (mut address, mut total) = (None, None);
        for [key, value] in pairs {
            match (key, value) {
                (Value::Word(Word::Blocks), Value::Blocks { start, len }) => {
                    let (start, end) = (*start as usize, (*start + *len) as usize);
                    segment.blocks = self.blocks[start..end].to_vec();
                    if end == self.blocks.len() {
                        self.blocks.truncate(start);
                    }
                }
                (Value::Word(Word::Blocks), Value::List { .. }) => {}
                (Value::Word(Word::Blocks), _) => return Err(Problem::layout("`blocks` that is no list of blocks")),
                (Value::Word(Word::Device), value) => {
                    segment.device = u32::try_from(size("a segment's device", value)?)
                        .map_err(|_| Problem::layout("a device number beyond 4,294,967,295"))?;
                }
                (Value::Word(Word::Address), value) => address = Some(size("a segment's address", value)?),
                (Value::Word(Word::TotalSize), value) => total = Some(size("a segment's size", value)?),
                (Value::Word(Word::Stream), Value::Int(raw)) => segment.stream = *raw as u64,
                (Value::Word(Word::SegmentType), Value::Word(word)) => segment.large = *word == Word::Large,
                (Value::Word(Word::SegmentPoolId), Value::Pair(a, b)) => segment.pool = (u64::from(*a), u64::from(*b)),
                (Value::Word(Word::IsExpandable), Value::Bool(yes)) => segment.expandable = *yes,
                (Value::Word(Word::Stream | Word::SegmentType | Word::SegmentPoolId | Word::IsExpandable), _) => {
                    return Err(Problem::layout("a segment with a stream, type, pool or flag of a wrong kind"));
                }
                (key, value) => Store::must_be_plain(&[*key, *value])?,
            }
        }
        let (Some(address), Some(total)) = (address, total) else {
            return Err(Problem::layout("a segment without an address or a total size"));
        };
        (segment.address, segment.total_size) = (address, total);
        self.segment_streams.number(segment.stream)?;
        let mut next = address;
        for block in &mut segment.blocks {
            if block.address == 0 {
                block.address = next;
            }
            next = block.address.saturating_add(block.size);
        }
        self.segments.push(segment);
        Ok(Value::Segment(self.segments.len() as u32 - 1))
    }

    fn settings_dict(&mut self, pairs: &[[Value; 2]]) -> Result<Value, Problem> {
        Store::must_be_plain(pairs.as_flattened())?;
        for [key, value] in pairs {
            match (key, value) {
                (Value::Word(Word::Conf), Value::Text(text)) => {
                    self.settings.conf.clone_from(&self.texts[*text as usize]);
                }
                (Value::Word(Word::MaxSplitSize), Value::Int(n)) => self.settings.max_split_size = Some(*n),
                (Value::Word(Word::GcThreshold), Value::Float(x)) => {
                    self.settings.garbage_collection_threshold = Some(*x);
                }
                (Value::Word(Word::ExpandableSegments), Value::Bool(yes)) => {
                    self.settings.expandable_segments = Some(*yes);
                }
                _ => {}
            }
        }
        Ok(Value::Settings)
    }

    fn top_dict(&mut self, pairs: &[[Value; 2]]) -> Result<Value, Problem> {
        for [key, value] in pairs {
            match (key, value) {
                (Value::Word(Word::Segments), Value::Segments { .. } | Value::List { .. }) => {
                    self.top_segments = Some(*value);
                }
                (Value::Word(Word::Segments), _) => {
                    return Err(Problem::layout("`segments` that is no list of segments"));
                }
                (Value::Word(Word::DeviceTraces), Value::Histories { .. } | Value::List { .. }) => {
                    self.top_traces = Some(*value);
                }
                (Value::Word(Word::DeviceTraces), _) => {
                    return Err(Problem::layout("`device_traces` that is no list of lists of trace entries"));
                }
                (key, value) => Store::must_be_plain(&[*key, *value])?,
            }
        }
        Ok(Value::Top)
    }

    /// The snapshot that the whole pickle is.
    pub(super) fn finish(&mut self, top: Value) -> Result<Snapshot, Problem> {
        let (segments, traces) = match top {
            Value::Top => (self.top_segments, self.top_traces),
            Value::Segments { .. } => (Some(top), None),
            _ => {
                return Err(Problem {
                    what: "a pickle that is neither a dictionary with `segments` and `device_traces` nor a list of \
                           segments"
                        .into(),
                    hint: "give a file that torch.cuda.memory._dump_snapshot() wrote",
                });
            }
        };
        let mut devices = Vec::new();
        if let Some(Value::Histories { start, len }) = traces {
            for &number in &self.lists[start as usize..(start + len) as usize] {
                devices.push(match self.histories.get_mut(number as usize) {
                    Some(history) => std::mem::take(history),
                    None => History::new(),
                });
            }
        }
        let segments = match segments {
            Some(Value::Segments { start, len }) => {
                self.segments.truncate((start + len) as usize);
                self.segments.split_off(start as usize)
            }
            _ => Vec::new(),
        };
        Ok(Snapshot {
            name: String::new(),
            streams: std::mem::take(&mut self.streams.raw),
            devices,
            segments,
            settings: std::mem::take(&mut self.settings),
            unknown_actions: std::mem::take(&mut self.unknown_actions),
        })
    }
}

/// How many consecutive numbers from `next` on the items are.
fn run(items: &[Value], next: u32, number: impl Fn(&Value) -> Option<u32>) -> Result<u32, Problem> {
    for (item, expected) in items.iter().zip(next..) {
        if number(item) != Some(expected) {
            return Err(mixed());
        }
    }
    Ok(items.len() as u32)
}

fn mixed() -> Problem {
    Problem::layout("a list of different things")
}

fn no_list() -> Problem {
    Problem::layout("items for something that is no list")
}

fn size(what: &str, value: &Value) -> Result<u64, Problem> {
    match value {
        Value::Int(n) if *n >= 0 => Ok(*n as u64),
        Value::Int(n) => Err(Problem::layout(format!("{what} of {n}"))),
        _ => Err(Problem::layout(format!("{what} that is no integer"))),
    }
}
