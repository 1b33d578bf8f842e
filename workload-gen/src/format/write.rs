//! Writing traces: whole ones, and ones that come in pieces and are never held.

use super::fields::escape;
use super::{Draft, FIRST_LINE, TraceError, line};
use crate::plain_path;
use crate::trace::{Event, Header, PoolOp, Trace};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

/// The level of compression that [`save`] uses: a second for half a million events.
const LEVEL: i32 = 12;

/// Writes a trace as text.
pub fn write(trace: &Trace, to: &mut dyn Write) -> io::Result<()> {
    let mut writer = Writer::new(&trace.header, &trace.label_texts, to)?;
    writer.events(&trace.events, &trace.labels, |number| trace.texts.get(number as usize).map(String::as_str))?;
    writer.finish().map(drop)
}

/// Writes a trace as text, the header first and then its events as they come. What is written is the same as what
/// [`write`](write()) makes of the whole.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    buffer: Vec<u8>,
    labels: usize,
    events: u64,
}

impl<W: Write> Writer<W> {
    /// Text is handed on in pieces of this size.
    const PIECE: usize = 128 * 1024;

    /// Writes the header. It has to hold for all events that come.
    pub fn new(header: &Header, label_texts: &[String], to: W) -> io::Result<Writer<W>> {
        let mut text = format!("{FIRST_LINE}\n");
        header_lines(header, label_texts, &mut text).map_err(io::Error::other)?;
        let mut writer = Writer { to, buffer: text.into_bytes(), labels: label_texts.len(), events: 0 };
        writer.hand_on()?;
        Ok(writer)
    }

    /// Writes events. `labels` has one for each allocation among them, or none if the trace has no labels; `text` has
    /// the texts that they refer to.
    pub fn events<'t>(
        &mut self,
        events: &[Event],
        labels: &[u32],
        text: impl Fn(u32) -> Option<&'t str>,
    ) -> io::Result<()> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let is_labelled = !labels.is_empty();
        let mut labels = labels.iter();
        for event in events {
            let label = match event {
                Event::Alloc { .. } if is_labelled => match labels.next() {
                    Some(&label) if (label as usize) < self.labels => Some(label),
                    Some(label) => return Err(invalid(format!("label {label} does not exist in the trace"))),
                    None => return Err(invalid(format!("event {} has no label, and others have", self.events))),
                },
                _ => None,
            };
            line::push(event, label, &text, &mut self.buffer).map_err(invalid)?;
            self.events += 1;
            if self.buffer.len() >= Self::PIECE {
                self.hand_on()?;
            }
        }
        Ok(())
    }

    fn hand_on(&mut self) -> io::Result<()> {
        self.to.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes what is left, and gives back what was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.hand_on()?;
        self.to.flush()?;
        Ok(self.to)
    }
}

fn header_lines(header: &Header, label_texts: &[String], to: &mut String) -> std::fmt::Result {
    writeln!(to, "# source = {}", escape(&header.source))?;
    writeln!(to, "# slots = {}", header.slots)?;
    writeln!(to, "# tickets = {}", header.tickets)?;
    write!(to, "# streams =")?;
    for (number, raw) in header.streams.iter().enumerate() {
        write!(to, " {number}:{raw:#x}")?;
    }
    writeln!(to)?;
    if !header.pools.is_empty() {
        write!(to, "# pools =")?;
        for (number, (a, b)) in (1..).zip(&header.pools) {
            write!(to, " {number}:{a},{b}")?;
        }
        writeln!(to)?;
    }
    if let Some(bytes) = header.device_bytes {
        writeln!(to, "# device_bytes = {bytes}")?;
    }
    if let Some(bytes) = header.limit_bytes {
        writeln!(to, "# limit_bytes = {bytes}")?;
    }
    if !header.settings.is_empty() {
        writeln!(to, "# settings = {}", escape(&header.settings))?;
    }
    for note in &header.notes {
        writeln!(to, "# note = {}", escape(note))?;
    }
    for (key, value) in &header.extra {
        writeln!(to, "# {} = {}", escape(key), escape(value))?;
    }
    label_texts.iter().try_for_each(|label| writeln!(to, "# label = {}", escape(label)))
}

/// A pool call as the format names it.
pub(super) const fn pool_op_name(op: PoolOp) -> &'static str {
    match op {
        PoolOp::Create => "create",
        PoolOp::Begin => "begin",
        PoolOp::End => "end",
        PoolOp::Release => "release",
        PoolOp::NoSplit => "no-split",
        PoolOp::UseOnOom => "use-on-oom",
    }
}

/// Writes a trace to a file; compressed if its name ends in `.zst`. The file is there whole or not at all.
pub fn save(trace: &Trace, path: impl AsRef<Path>) -> Result<(), TraceError> {
    save_with_level(trace, path, LEVEL)
}

/// [`save`] with a zstd level of the caller's choice.
pub fn save_with_level(trace: &Trace, path: impl AsRef<Path>, level: i32) -> Result<(), TraceError> {
    let path = path.as_ref();
    let write_all = || -> io::Result<()> {
        let mut draft = Draft::create(path, level)?;
        write(trace, &mut draft)?;
        draft.commit()
    };
    write_all().map_err(|source| TraceError::Write { file: plain_path(path), source })
}
