//! Writing traces.

use super::fields::escape;
use super::{FIRST_LINE, TraceError};
use crate::plain_path;
use crate::trace::{Event, Header, PoolOp, Trace};
use allocator_core::PoolId;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The level of compression that [`save`] uses: a second for half a million events.
const LEVEL: i32 = 12;

/// Writes a trace as text.
pub fn write(trace: &Trace, to: &mut dyn Write) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(64 * 1024, to);
    writeln!(to, "{FIRST_LINE}")?;
    header(&trace.header, &mut to)?;
    for event in &trace.events {
        line(event, &trace.texts, &mut to)?;
    }
    to.flush()
}

fn header(header: &Header, to: &mut impl Write) -> io::Result<()> {
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
    Ok(())
}

fn line(event: &Event, texts: &[String], to: &mut impl Write) -> io::Result<()> {
    let text = |number: u32| {
        let missing =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("text {number} does not exist in the trace"));
        texts.get(number as usize).map(|text| escape(text)).ok_or_else(missing)
    };
    match *event {
        Event::Alloc { slot, size, stream, pool: PoolId::DEFAULT } => writeln!(to, "a {slot} {size} {}", stream.0),
        Event::Alloc { slot, size, stream, pool } => writeln!(to, "a {slot} {size} {} p{}", stream.0, pool.0),
        Event::Use { slot, stream } => writeln!(to, "u {slot} {}", stream.0),
        Event::Free { slot, ticket: None } => writeln!(to, "f {slot}"),
        Event::Free { slot, ticket: Some(ticket) } => writeln!(to, "f {slot} !{ticket}"),
        Event::Done { ticket } => writeln!(to, "c {ticket}"),
        Event::Work { stream, ns } => writeln!(to, "k {} {ns}", stream.0),
        Event::Wait { stream, on } => writeln!(to, "w {} {}", stream.0, on.0),
        Event::Sync { stream: Some(stream) } => writeln!(to, "y {}", stream.0),
        Event::Sync { stream: None } => writeln!(to, "y *"),
        Event::Empty { pool: None } => writeln!(to, "e"),
        Event::Empty { pool: Some(pool) } => writeln!(to, "e p{}", pool.0),
        Event::Pool { op, pool } => writeln!(to, "p {} {}", pool_op_name(op), pool.0),
        Event::Limit { bytes: Some(bytes) } => writeln!(to, "l {bytes}"),
        Event::Limit { bytes: None } => writeln!(to, "l -"),
        Event::Settings { text: number } => writeln!(to, "s {}", text(number)?),
        Event::Host { ns } => writeln!(to, "t {ns}"),
        Event::Mark { text: number } => writeln!(to, "m {}", text(number)?),
    }
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
    let mut temporary = path.to_path_buf();
    temporary.as_mut_os_string().push(format!(".tmp-{}", std::process::id()));
    let write_all = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        let written = fill(trace, path, level, &mut file).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
        }
        written
    };
    write_all().map_err(|source| TraceError::Write { file: plain_path(path), source })
}

fn fill(trace: &Trace, path: &Path, level: i32, file: &mut File) -> io::Result<()> {
    if path.extension().is_some_and(|suffix| suffix == "zst") {
        let mut encoder = zstd::stream::write::Encoder::new(file, level)?;
        encoder.include_checksum(true)?;
        write(trace, &mut encoder)?;
        encoder.finish().map(drop)
    } else {
        write(trace, file)
    }
}
