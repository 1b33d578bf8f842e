//! Reading traces, line by line and with every rule checked.

use super::fields::{Fields, parse, show, unescape};
use super::write::pool_op_name;
use super::{FIRST_LINE, TraceError};
use crate::check::{Checker, Limits};
use crate::input::Input;
use crate::plain_path;
use crate::trace::{Event, PoolOp, Trace};
use allocator_core::{PoolId, StreamId};
use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;

/// Reads a trace file, plain or compressed with gzip or zstd.
pub fn open(path: impl AsRef<Path>) -> Result<Trace, TraceError> {
    let path = path.as_ref();
    match Input::open(path) {
        Ok(input) => read_input(input),
        Err(source) => Err(TraceError::Open { file: plain_path(path), source }),
    }
}

/// Reads a trace from a stream, plain or compressed with gzip or zstd; `name` is what errors call it. No buffer is
/// needed around it.
pub fn read(reader: impl Read, name: &str) -> Result<Trace, TraceError> {
    read_input(Input::new(reader, name))
}

/// Reads a trace from an input.
pub fn read_input(input: Input<'_>) -> Result<Trace, TraceError> {
    let (name, compressed) = (input.name().to_string(), input.compressed());
    Reader::new(input, &name, compressed).run()
}

/// Lines of a stream through one buffer.
struct Lines<R> {
    inner: R,
    buf: Vec<u8>,
    pos: usize,
    end: usize,
    ended: bool,
}

/// Why there is no next line.
enum NoLine {
    Unread(io::Error),
    TooLong,
}

impl<R: Read> Lines<R> {
    /// The longest line that is read, and the size of the buffer.
    const MAX_LINE: usize = 256 * 1024;

    /// The position in the buffer of the next line without its end. `None` after the last one.
    #[inline]
    fn next(&mut self) -> Result<Option<(usize, usize)>, NoLine> {
        let mut searched = self.pos;
        loop {
            if let Some(len) = self.buf[searched..self.end].iter().position(|&byte| byte == b'\n') {
                let line = (self.pos, searched + len);
                self.pos = searched + len + 1;
                return Ok(Some(line));
            }
            if self.ended {
                let line = (self.pos, self.end);
                self.pos = self.end;
                return Ok((line.0 < line.1).then_some(line));
            }
            searched = self.fill()?;
        }
    }

    /// Reads on; returns where the new bytes start.
    #[cold]
    fn fill(&mut self) -> Result<usize, NoLine> {
        self.buf.copy_within(self.pos..self.end, 0);
        self.end -= self.pos;
        self.pos = 0;
        let old_end = self.end;
        if self.end == self.buf.len() {
            return Err(NoLine::TooLong);
        }
        loop {
            match self.inner.read(&mut self.buf[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(NoLine::Unread(e)),
            }
            return Ok(old_end);
        }
    }
}

struct Reader<'a, R> {
    lines: Lines<R>,
    file: &'a str,
    compressed: bool,
    number: u64,
    trace: Trace,
    text_numbers: HashMap<String, u32>,
    checker: Checker,
}

impl<'a, R: Read> Reader<'a, R> {
    fn new(inner: R, file: &'a str, compressed: bool) -> Reader<'a, R> {
        Reader {
            lines: Lines { inner, buf: vec![0; Lines::<R>::MAX_LINE], pos: 0, end: 0, ended: false },
            file,
            compressed,
            number: 0,
            trace: Trace::default(),
            text_numbers: HashMap::new(),
            checker: Checker::new(Limits::default()),
        }
    }

    /// The next line; its position in the buffer.
    #[inline]
    fn line(&mut self) -> Result<Option<(usize, usize)>, TraceError> {
        match self.lines.next() {
            Ok(Some((start, end))) => {
                self.number += 1;
                let end = if end > start && self.lines.buf[end - 1] == b'\r' { end - 1 } else { end };
                Ok(Some((start, end)))
            }
            Ok(None) => Ok(None),
            Err(NoLine::TooLong) => {
                self.number += 1;
                let whole = (0, self.lines.end);
                Err(self.error(whole, "a line of more than 256 KiB; texts have to be shorter".into()))
            }
            Err(NoLine::Unread(source)) => {
                Err(TraceError::Read { file: self.file.into(), line: self.number, compressed: self.compressed, source })
            }
        }
    }

    #[cold]
    fn error(&self, (start, end): (usize, usize), problem: String) -> TraceError {
        let text = show(&self.lines.buf[start..end]);
        TraceError::Line { file: self.file.into(), line: self.number, text, problem }
    }

    fn run(mut self) -> Result<Trace, TraceError> {
        let at = self.line()?.unwrap_or((0, 0));
        if &self.lines.buf[at.0..at.1] != FIRST_LINE.as_bytes() {
            let problem = first_line(&self.lines.buf[at.0..at.1]);
            self.number = 1;
            return Err(self.error(at, problem));
        }
        let mut in_header = true;
        while let Some(at) = self.line()? {
            let line = &self.lines.buf[at.0..at.1];
            match line {
                [] => {}
                [b'#', rest @ ..] => {
                    if in_header && let Err(problem) = header_line(&mut self.trace, &mut self.checker.limits, rest) {
                        return Err(self.error(at, problem));
                    }
                }
                _ => {
                    in_header = false;
                    let (event, label) = match event(line, &mut self.trace.texts, &mut self.text_numbers) {
                        Ok(read) => read,
                        Err(problem) => return Err(self.error(at, problem)),
                    };
                    if let Err(problem) = self.label(&event, label) {
                        return Err(self.error(at, problem));
                    }
                    if let Err(fault) = self.checker.event(&event) {
                        return Err(self.error(at, fault.to_string()));
                    }
                    self.trace.events.push(event);
                }
            }
        }
        self.finish()
    }

    /// Keeps the label of an allocation. What the first allocation has, all have.
    #[inline]
    fn label(&mut self, event: &Event, label: Option<u32>) -> Result<(), String> {
        let Event::Alloc { .. } = event else { return Ok(()) };
        let is_first = self.checker.allocations() == 0;
        match label {
            Some(label) if is_first || !self.trace.labels.is_empty() => {
                let count = self.trace.label_texts.len();
                if label as usize >= count {
                    return Err(format!(
                        "label {label}, where the header has {count}; they are its `# label =` lines, numbered from 0"
                    ));
                }
                self.trace.labels.push(label);
                Ok(())
            }
            Some(_) => Err("a label, where allocations before have none; label all of them or none".into()),
            None if self.trace.labels.is_empty() => Ok(()),
            None => Err("no label, where allocations before have one; label all of them or none".into()),
        }
    }

    fn finish(self) -> Result<Trace, TraceError> {
        let Reader { mut trace, checker, .. } = self;
        let header = &mut trace.header;
        header.slots = checker.slots();
        header.tickets = checker.tickets();
        if checker.limits.streams.is_none() {
            header.streams = (0..u64::from(checker.streams().max(1))).collect();
        }
        if checker.limits.pools.is_none() {
            header.pools = (1..=u64::from(checker.pools())).map(|number| (0, number)).collect();
        }
        trace.events.shrink_to_fit();
        trace.labels.shrink_to_fit();
        Ok(trace)
    }
}

fn first_line(line: &[u8]) -> String {
    let found = match line {
        [] => "an empty file".to_string(),
        [0x80, ..] => {
            return "a pickle, not a trace: import it with `harness trace import`, or give it where snapshots are read"
                .into();
        }
        // Whatever was compressed once is decompressed by now.
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => return "compressed twice: decompress it once".into(),
        _ if line.starts_with(b"gpu-alloc-trace ") => {
            return format!("a version that this program does not know; it reads `{FIRST_LINE}`: use a newer one");
        }
        _ => "not a trace".to_string(),
    };
    format!("{found}: a trace starts with the line `{FIRST_LINE}`")
}

/// A line of the header, without its `#`. One without ` = ` is a comment.
fn header_line(trace: &mut Trace, limits: &mut Limits, line: &[u8]) -> Result<(), String> {
    let header = &mut trace.header;
    let Some(equals) = line.iter().position(|&byte| byte == b'=') else { return Ok(()) };
    let (key, value) = (line[..equals].trim_ascii(), line[equals + 1..].trim_ascii());
    let again = |had: bool| if had { Err(format!("`{}` a second time", show(key))) } else { Ok(()) };
    let bound = |value: &[u8], what: &str| {
        let number = parse(value, what)?;
        u32::try_from(number).map_err(|_| format!("{number} {what} are more than a trace can have"))
    };
    match key {
        b"source" => {
            again(!header.source.is_empty())?;
            header.source = unescape(value)?;
        }
        b"slots" => {
            again(limits.slots.is_some())?;
            limits.slots = Some(bound(value, "slots")?);
        }
        b"tickets" => {
            again(limits.tickets.is_some())?;
            limits.tickets = Some(bound(value, "tickets")?);
        }
        b"streams" => {
            again(limits.streams.is_some())?;
            header.streams = numbered(value, 0, |raw| {
                let digits = raw
                    .strip_prefix("0x")
                    .ok_or_else(|| format!("the stream handle `{raw}` does not start with 0x"))?;
                u64::from_str_radix(digits, 16).map_err(|_| format!("the stream handle `{raw}` is no number"))
            })?;
            if !header.streams.is_sorted() {
                return Err("stream handles that do not ascend: their numbers keep the handles' order".into());
            }
            limits.streams = Some(header.streams.len() as u32);
        }
        b"pools" => {
            again(limits.pools.is_some())?;
            header.pools = numbered(value, 1, |pair| match pair.split_once(',') {
                Some((a, b)) => Ok((parse(a.as_bytes(), "pool id")?, parse(b.as_bytes(), "pool id")?)),
                None => Err(format!("the pool id `{pair}` is no pair of numbers")),
            })?;
            limits.pools = Some(header.pools.len() as u32);
        }
        b"device_bytes" => {
            again(header.device_bytes.is_some())?;
            // Some tools write 0 for what they do not know.
            header.device_bytes = Some(parse(value, "device's size")?).filter(|&bytes| bytes > 0);
        }
        b"limit_bytes" => {
            again(header.limit_bytes.is_some())?;
            header.limit_bytes = Some(parse(value, "memory limit")?);
        }
        b"settings" => {
            again(!header.settings.is_empty())?;
            header.settings = unescape(value)?;
        }
        b"note" => header.notes.push(unescape(value)?),
        b"label" => trace.label_texts.push(unescape(value)?),
        _ => header.extra.push((unescape(key)?, unescape(value)?)),
    }
    Ok(())
}

/// A list of `number:value`, numbered from `first` on without a gap.
fn numbered<T>(list: &[u8], first: usize, value: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let list = std::str::from_utf8(list).map_err(|_| "text that is not UTF-8".to_string())?;
    let mut values = Vec::new();
    for item in list.split_ascii_whitespace() {
        let number = first + values.len();
        match item.split_once(':') {
            Some((n, rest)) if n == number.to_string() => values.push(value(rest)?),
            _ => return Err(format!("`{item}`, where `{number}:` and its value are expected")),
        }
    }
    Ok(values)
}

/// A line after the header: the event, and the label of an allocation.
#[inline]
fn event(
    line: &[u8],
    texts: &mut Vec<String>,
    numbers: &mut HashMap<String, u32>,
) -> Result<(Event, Option<u32>), String> {
    let mut fields = Fields::new(line);
    let mut label = None;
    let event = match fields.word() {
        b"a" => {
            let slot = fields.small("slot")?;
            let size = fields.number("size")?;
            let stream = StreamId(fields.small("stream")?);
            let pool = fields.prefixed_if(b'p', "pool")?;
            label = fields.prefixed_if(b'@', "label")?;
            if pool.or(label).is_none() {
                fields.end_or("`p` and the pool or `@` and the label")?;
            }
            Event::Alloc { slot, size, stream, pool: PoolId(pool.unwrap_or(0)) }
        }
        b"f" => Event::Free { slot: fields.small("slot")?, ticket: fields.prefixed(b'!', "ticket")? },
        b"c" => Event::Done { ticket: fields.small("ticket")? },
        b"u" => Event::Use { slot: fields.small("slot")?, stream: StreamId(fields.small("stream")?) },
        b"k" => Event::Work { stream: StreamId(fields.small("stream")?), ns: fields.number("time")? },
        b"w" => Event::Wait { stream: StreamId(fields.small("stream")?), on: StreamId(fields.small("stream")?) },
        b"y" => match fields.word() {
            b"*" => Event::Sync { stream: None },
            word => Event::Sync { stream: Some(StreamId(Fields::new(word).small("stream or `*`")?)) },
        },
        // Emptying the default pool is emptying everything, for the framework too.
        b"e" => Event::Empty { pool: fields.prefixed(b'p', "pool")?.filter(|&pool| pool != 0).map(PoolId) },
        b"p" => {
            let word = fields.word();
            let ops = [PoolOp::Create, PoolOp::Begin, PoolOp::End, PoolOp::Release, PoolOp::NoSplit, PoolOp::UseOnOom];
            let Some(op) = ops.into_iter().find(|op| pool_op_name(*op).as_bytes() == word) else {
                let names = ops.map(pool_op_name).join(", ");
                return Err(format!("`{}` is no pool call; these are: {names}", show(word)));
            };
            Event::Pool { op, pool: PoolId(fields.small("pool")?) }
        }
        b"l" => match fields.word() {
            b"-" => Event::Limit { bytes: None },
            word => Event::Limit { bytes: Some(parse(word, "limit in bytes or `-`")?) },
        },
        b"t" => Event::Host { ns: fields.number("time")? },
        b"s" => Event::Settings { text: text(fields.text(), texts, numbers)? },
        b"m" => Event::Mark { text: text(fields.text(), texts, numbers)? },
        word => {
            return Err(format!("`{}` is no event; events are a u f c k w y e p l s t m", show(word)));
        }
    };
    fields.end()?;
    Ok((event, label))
}

/// The number of a text, which is kept once.
fn text(bytes: &[u8], texts: &mut Vec<String>, numbers: &mut HashMap<String, u32>) -> Result<u32, String> {
    let text = unescape(bytes)?;
    if let Some(&number) = numbers.get(&text) {
        return Ok(number);
    }
    let number = u32::try_from(texts.len()).map_err(|_| "too many different texts".to_string())?;
    texts.push(text.clone());
    numbers.insert(text, number);
    Ok(number)
}
