//! One pass over a history, entry by entry, that writes the events of the trace.

use super::addresses::AddressMap;
use super::pools::PoolHints;
use super::slots::LowestFree;
use super::start::{Before, blocks_before};
use super::{ImportError, Sidecar};
use crate::snapshot::{Action, BlockState, Entry, History, Snapshot};
use crate::trace::{Event, Header, PoolOp, Trace};
use allocator_core::{PoolId, StreamId};

/// What a first look at a history tells.
#[derive(Default)]
struct Survey {
    counts: [u64; Action::ALL.len()],
    /// Frees whose completion directly follows.
    prompt: u64,
    /// By stream index: whether an entry of this device uses it.
    streams: Vec<bool>,
}

impl Survey {
    fn new(history: &History, streams: usize) -> Survey {
        let mut survey = Survey { streams: vec![false; streams], ..Survey::default() };
        let mut requested = None;
        for entry in history {
            survey.counts[entry.action as usize] += 1;
            if entry.action == Action::FreeCompleted && requested == Some(entry.addr) {
                survey.prompt += 1;
            }
            requested = (entry.action == Action::FreeRequested).then_some(entry.addr);
            if !matches!(entry.action, Action::Snapshot | Action::Unknown)
                && let Some(used) = survey.streams.get_mut(entry.stream as usize)
            {
                *used = true;
            }
        }
        survey
    }

    fn count(&self, action: Action) -> u64 {
        self.counts[action as usize]
    }
}

/// A block that the history has handed out.
#[derive(Clone, Copy)]
enum Live {
    /// It is in use and in this slot.
    Slot(u32),
    /// It was freed and waits for this ticket.
    Ticket(u32),
}

/// How the history writes frees down. `skip_actions` can leave one half of them out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frees {
    Both,
    OnlyRequested,
    OnlyCompleted,
}

struct Converter {
    file: String,
    device: u32,
    events: Vec<Event>,
    live: AddressMap<Live>,
    slots: LowestFree,
    tickets: LowestFree,
    frees: Frees,
    /// A free whose next entry decides whether it waits.
    requested: Option<(u64, u32)>,
    /// Segments were released, and nothing but late completions came since.
    releasing: bool,
    /// Whether a failed allocation can be what released them.
    capped: bool,
    /// Stream numbers by stream index.
    streams: Vec<StreamId>,
    hints: PoolHints,
    /// By pool number less one.
    pool_created: Vec<bool>,
    flushes: u64,
    in_pools: u64,
    late: u64,
    /// Frees that the history does not contain, but shows by handing the address out again.
    unrecorded: u64,
}

pub(super) fn convert(mut snapshot: Snapshot, device: u32, sidecar: Option<&Sidecar>) -> Result<Trace, ImportError> {
    let history = std::mem::take(&mut snapshot.devices[device as usize]);
    snapshot.devices = Vec::new();
    let survey = Survey::new(&history, snapshot.streams.len());
    let segments = || snapshot.segments.iter().filter(|segment| segment.device == device);

    let frees = match (survey.count(Action::FreeRequested), survey.count(Action::FreeCompleted)) {
        (1.., 0) => Frees::OnlyRequested,
        (0, 1..) => Frees::OnlyCompleted,
        _ => Frees::Both,
    };
    let freed = survey.count(if frees == Frees::OnlyRequested { Action::FreeRequested } else { Action::FreeCompleted });
    let active_at_end =
        segments().flat_map(|segment| &segment.blocks).filter(|block| block.state != BlockState::Inactive).count()
            as u64;
    // What was allocated must have been freed or be there at the end, unless the beginning is lost.
    let before = if survey.count(Action::Alloc) == freed + active_at_end {
        Vec::new()
    } else {
        let raw = |entry: &Entry| snapshot.stream(entry);
        blocks_before(&history, segments(), raw, frees == Frees::OnlyCompleted)
    };

    let (stream_handles, streams) = number_streams(&snapshot.streams, &survey.streams, &before);
    let hints = PoolHints::new(segments(), &history);
    let limit_bytes = sidecar.and_then(Sidecar::limit_bytes);
    let retries = sidecar.and_then(|known| known.stats.get("num_alloc_retries")).is_some_and(|&n| n > 0);
    let late = survey.count(Action::FreeRequested) - survey.prompt.min(survey.count(Action::FreeRequested));
    let expected = survey.count(Action::Alloc) + freed + 2 * late + 3 * before.len() as u64;
    let mut converter = Converter {
        file: snapshot.name.clone(),
        device,
        events: Vec::with_capacity(expected as usize),
        live: AddressMap::default(),
        slots: LowestFree::default(),
        tickets: LowestFree::default(),
        frees,
        requested: None,
        releasing: false,
        capped: limit_bytes.is_some() || retries || survey.count(Action::Oom) > 0,
        streams,
        pool_created: vec![false; hints.pairs.len()],
        hints,
        flushes: 0,
        in_pools: 0,
        late: 0,
        unrecorded: 0,
    };
    for block in &before {
        let stream = stream_handles.partition_point(|&raw| raw < block.stream);
        converter.allocate_before(block, StreamId(stream as u32));
    }
    for (index, entry) in history.into_iter().enumerate() {
        converter.entry(index, &entry)?;
    }
    converter.finish();

    let notes = converter.notes(&before, &survey, &snapshot);
    let name = trace_name(&snapshot.name);
    let several = snapshot.segments.iter().any(|segment| segment.device != device) || device != 0;
    let header = Header {
        source: if several {
            format!("PyTorch snapshot {name}, device {device}")
        } else {
            format!("PyTorch snapshot {name}")
        },
        slots: converter.slots.count(),
        tickets: converter.tickets.count(),
        streams: stream_handles,
        pools: converter.hints.pairs,
        device_bytes: sidecar.and_then(|known| known.total),
        limit_bytes,
        settings: match sidecar {
            Some(known) if !known.conf.is_empty() => known.conf.clone(),
            _ => snapshot.settings.conf,
        },
        notes,
        extra: Vec::new(),
    };
    let texts = if survey.count(Action::Oom) > 0 { vec![OOM_MARK.to_string()] } else { Vec::new() };
    Ok(Trace { header, events: converter.events, texts, ..Trace::default() })
}

/// The marker before an allocation that failed in the recording.
const OOM_MARK: &str = "oom in the recording";

/// A snapshot's name without folders and without what only says how it is stored.
fn trace_name(file: &str) -> &str {
    let mut name = file.rsplit(['/', '\\']).next().unwrap_or(file);
    for suffix in [".zst", ".gz", ".pickle", ".pkl"] {
        name = name.strip_suffix(suffix).unwrap_or(name);
    }
    name
}

/// The raw handles of the streams in use, ascending and with the default stream first, and for every stream of the
/// snapshot its number among them.
fn number_streams(raw: &[u64], used: &[bool], before: &[Before]) -> (Vec<u64>, Vec<StreamId>) {
    let mut handles: Vec<u64> = raw.iter().zip(used).filter(|(_, used)| **used).map(|(raw, _)| *raw).collect();
    handles.extend(before.iter().map(|block| block.stream));
    handles.push(0);
    handles.sort_unstable();
    handles.dedup();
    let numbers = raw.iter().map(|raw| StreamId(handles.partition_point(|handle| handle < raw) as u32)).collect();
    (handles, numbers)
}

impl Converter {
    fn entry(&mut self, index: usize, entry: &Entry) -> Result<(), ImportError> {
        if let Some((address, slot)) = self.requested.take() {
            if entry.action == Action::FreeCompleted && entry.addr == address {
                self.live.remove(&address);
                self.free(slot, None);
                return Ok(());
            }
            self.free_late(address, slot);
        }
        match entry.action {
            Action::Alloc => {
                self.end_release(true);
                let slot = self.slots.take();
                if let Some(old) = self.live.insert(entry.addr, Live::Slot(slot)) {
                    self.reused(old);
                }
                let pool = self.hints.pool(entry.addr, index);
                self.alloc(slot, entry.size, self.stream(entry), pool);
            }
            Action::FreeRequested => {
                self.end_release(false);
                let Some(&Live::Slot(slot)) = self.live.get(&entry.addr) else {
                    return Err(self.inconsistent(index, entry, "no block is live at this address"));
                };
                if self.frees == Frees::OnlyRequested {
                    self.live.remove(&entry.addr);
                    self.free(slot, None);
                } else {
                    self.requested = Some((entry.addr, slot));
                }
            }
            Action::FreeCompleted => match self.live.remove(&entry.addr) {
                Some(Live::Ticket(ticket)) => self.done(ticket),
                Some(Live::Slot(slot)) => {
                    self.end_release(false);
                    self.free(slot, None);
                }
                None => return Err(self.inconsistent(index, entry, "no free was requested for this address")),
            },
            Action::SegmentFree | Action::SegmentUnmap => self.releasing = true,
            Action::SegmentAlloc | Action::SegmentMap => self.end_release(true),
            Action::Oom => {
                self.end_release(true);
                self.events.push(Event::Mark { text: 0 });
                let slot = self.slots.take();
                self.alloc(slot, entry.size, self.stream(entry), PoolId::DEFAULT);
            }
            Action::Snapshot => self.end_release(false),
            Action::Unknown => {}
        }
        Ok(())
    }

    /// An address that is handed out again shows that its last block is gone, although the history does not say so.
    #[cold]
    fn reused(&mut self, old: Live) {
        self.unrecorded += 1;
        match old {
            Live::Slot(slot) => self.free(slot, None),
            Live::Ticket(ticket) => self.done(ticket),
        }
    }

    fn done(&mut self, ticket: u32) {
        self.tickets.give_back(ticket);
        self.events.push(Event::Done { ticket });
    }

    /// What comes after the last entry.
    fn finish(&mut self) {
        if let Some((address, slot)) = self.requested.take() {
            self.free_late(address, slot);
        }
        self.end_release(false);
    }

    /// Segments that were released before this entry were released by a flush, unless they belong to the allocation
    /// that this entry is part of. Only an allocation that met a limit releases segments.
    fn end_release(&mut self, allocating: bool) {
        if std::mem::take(&mut self.releasing) && !(allocating && self.capped) {
            self.flushes += 1;
            self.events.push(Event::Empty { pool: None });
        }
    }

    fn alloc(&mut self, slot: u32, size: u64, stream: StreamId, pool: PoolId) {
        if let Some(created) = (pool.0 as usize).checked_sub(1).map(|at| &mut self.pool_created[at]) {
            self.in_pools += 1;
            if !std::mem::replace(created, true) {
                self.events.push(Event::Pool { op: PoolOp::Create, pool });
            }
        }
        self.events.push(Event::Alloc { slot, size, stream, pool });
    }

    fn free(&mut self, slot: u32, ticket: Option<u32>) {
        self.slots.give_back(slot);
        self.events.push(Event::Free { slot, ticket });
    }

    fn free_late(&mut self, address: u64, slot: u32) {
        let ticket = self.tickets.take();
        self.live.insert(address, Live::Ticket(ticket));
        self.late += 1;
        self.free(slot, Some(ticket));
    }

    fn allocate_before(&mut self, block: &Before, stream: StreamId) {
        let slot = self.slots.take();
        let pool = self.hints.pool(block.address, 0);
        self.alloc(slot, block.size, stream, pool);
        if block.pending {
            self.free_late(block.address, slot);
        } else {
            self.live.insert(block.address, Live::Slot(slot));
        }
    }

    fn stream(&self, entry: &Entry) -> StreamId {
        self.streams.get(entry.stream as usize).copied().unwrap_or(StreamId::DEFAULT)
    }

    #[cold]
    fn inconsistent(&self, index: usize, entry: &Entry, why: &'static str) -> ImportError {
        ImportError::Inconsistent {
            file: self.file.clone(),
            device: self.device,
            entry: index,
            action: entry.action.name(),
            address: entry.addr,
            size: entry.size,
            why,
        }
    }

    /// What was supposed or made up, in words.
    fn notes(&self, before: &[Before], survey: &Survey, snapshot: &Snapshot) -> Vec<String> {
        let mut notes = Vec::new();
        if !before.is_empty() {
            let bytes: u64 = before.iter().map(|block| block.size).fold(0, u64::saturating_add);
            notes.push(format!(
                "the history lost its beginning: {} that were live before its first entry ({bytes} bytes) are allocated first",
                count(before.len() as u64, "block")
            ));
        }
        match self.frees {
            Frees::Both => {}
            Frees::OnlyRequested => {
                notes.push("the history has no free_completed: every free is taken as complete".into())
            }
            Frees::OnlyCompleted => {
                notes.push("the history has no free_requested: blocks count as live until complete".into())
            }
        }
        if self.late > 0 {
            let open = self.live.values().filter(|live| matches!(live, Live::Ticket(_))).count() as u64;
            notes.push(format!(
                "{} completed late and wait for tickets; {open} never completed",
                count(self.late, "free")
            ));
        }
        if self.unrecorded > 0 {
            notes.push(format!(
                "{} not recorded, but certain because the address was handed out again",
                count(self.unrecorded, "free")
            ));
        }
        if self.flushes > 0 {
            notes.push(format!("{} inferred from the segments that were released", count(self.flushes, "empty_cache")));
        }
        if self.in_pools > 0 {
            notes.push(format!(
                "{} put into private pools after the segments left at the end",
                count(self.in_pools, "allocation")
            ));
        }
        if survey.count(Action::Oom) > 0 {
            notes.push(format!(
                "{} without a block: the size is the rounded one, the block is never freed",
                count(survey.count(Action::Oom), "allocation that failed")
            ));
        }
        if survey.count(Action::Unknown) > 0 {
            notes.push(format!(
                "{} with an unknown action ignored ({})",
                count(survey.count(Action::Unknown), "entry"),
                snapshot.unknown_actions.join(", ")
            ));
        }
        notes
    }
}

/// A number with a noun.
fn count(n: u64, noun: &str) -> String {
    match (n, noun) {
        (1, _) => format!("1 {noun}"),
        (_, "entry") => format!("{n} entries"),
        (_, "empty_cache") => format!("{n} calls of empty_cache"),
        (_, "allocation that failed") => format!("{n} allocations that failed"),
        _ => format!("{n} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_folders_and_storage() {
        assert_eq!(trace_name("a/b/gnn.default.pickle.zst"), "gnn.default");
        assert_eq!(trace_name("gnn.default"), "gnn.default");
    }

    #[test]
    fn streams_ascend_and_the_default_comes_first() {
        let before = [Before { address: 1, size: 1, stream: 40, pending: false }];
        let (handles, numbers) = number_streams(&[700, 30, 5], &[true, true, false], &before);
        assert_eq!(handles, [0, 30, 40, 700]);
        assert_eq!(numbers[0], StreamId(3));
        assert_eq!(numbers[1], StreamId(1));
    }
}
