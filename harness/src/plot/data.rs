//! `timeline.csv` and `peak.csv`, read back: the columns that figures need, of the runs that are drawn.

use crate::exit::Error;
use crate::results::{damaged, no_column};
use allocator_core::SpanState;
use csv::StringRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where timelines are.
pub const TIMELINE: &str = "timeline.csv";
/// Where maps are.
pub const PEAK: &str = "peak.csv";

/// A row of `timeline.csv`: a bucket of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// The first event.
    pub event: u64,
    /// How many.
    pub events: u64,
    /// The most bytes reserved.
    pub reserved: u64,
    /// The lowest load.
    pub load_min: u64,
    /// The highest load.
    pub load_max: u64,
}

/// A row of `peak.csv`: neighbouring bytes in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The address of its segment.
    pub segment: u64,
    /// Bytes.
    pub size: u64,
    /// What they are.
    pub state: SpanState,
    /// How many spans were put together.
    pub spans: u64,
}

/// The points of `timeline.csv` in `folder`, by run. Only those of `wanted` are kept.
pub fn timelines(folder: &Path, wanted: &BTreeSet<&str>) -> Result<BTreeMap<String, Vec<Point>>, Error> {
    let mut table = Table::open(folder.join(TIMELINE))?;
    let mut timelines: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    let [run, event, events] = table.columns(["run", "event", "events"])?;
    let [reserved, load_min, load_max] = table.columns(["reserved_max_bytes", "load_min_bytes", "load_max_bytes"])?;
    while let Some(row) = table.next()? {
        let id = row.text(run);
        if wanted.contains(id) {
            let point = Point {
                event: row.number(event)?,
                events: row.number(events)?,
                reserved: row.number(reserved)?,
                load_min: row.number(load_min)?,
                load_max: row.number(load_max)?,
            };
            timelines.entry(id.to_string()).or_default().push(point);
        }
    }
    Ok(timelines)
}

/// The maps of `peak.csv` in `folder`, by run. Only those of `wanted` are kept.
pub fn maps(folder: &Path, wanted: &BTreeSet<&str>) -> Result<BTreeMap<String, Vec<Piece>>, Error> {
    let mut table = Table::open(folder.join(PEAK))?;
    let mut maps: BTreeMap<String, Vec<Piece>> = BTreeMap::new();
    let [run, segment, size, state, spans] = table.columns(["run", "segment", "size_bytes", "state", "spans"])?;
    while let Some(row) = table.next()? {
        let id = row.text(run);
        if wanted.contains(id) {
            let is_named = |known: &SpanState| known.name() == row.text(state);
            let known = SpanState::ALL.into_iter().find(is_named);
            let piece = Piece {
                segment: row.number(segment)?,
                size: row.number(size)?,
                state: known.ok_or_else(|| row.error(state, "no state of memory"))?,
                spans: row.number(spans)?,
            };
            maps.entry(id.to_string()).or_default().push(piece);
        }
    }
    Ok(maps)
}

/// A CSV file.
struct Table {
    path: PathBuf,
    reader: csv::Reader<File>,
    header: StringRecord,
    record: StringRecord,
}

/// A column of a [`Table`].
#[derive(Clone, Copy)]
struct Column(usize);

impl Table {
    fn open(path: PathBuf) -> Result<Table, Error> {
        let file = File::open(&path).map_err(|why| match why.kind() {
            ErrorKind::NotFound => Error::unreadable(&path, "it is not there; --pass time leaves it out"),
            _ => Error::unreadable(&path, why),
        })?;
        let mut reader = csv::Reader::from_reader(file);
        let header = reader.headers().map_err(|why| damaged(&path, why))?.clone();
        Ok(Table { path, reader, header, record: StringRecord::new() })
    }

    fn columns<const N: usize>(&self, names: [&str; N]) -> Result<[Column; N], Error> {
        let mut columns = [Column(0); N];
        for (column, name) in columns.iter_mut().zip(names) {
            let at = self.header.iter().position(|known| known == name);
            let at = at.ok_or_else(|| no_column(&self.path, name))?;
            *column = Column(at);
        }
        Ok(columns)
    }

    fn next(&mut self) -> Result<Option<Line<'_>>, Error> {
        match self.reader.read_record(&mut self.record) {
            Ok(true) => Ok(Some(Line(self))),
            Ok(false) => Ok(None),
            Err(why) => Err(damaged(&self.path, why)),
        }
    }
}

/// A row of a [`Table`].
struct Line<'t>(&'t Table);

impl<'t> Line<'t> {
    /// All rows have as many cells as the header: the reader sees to it.
    fn text(&self, column: Column) -> &'t str {
        &self.0.record[column.0]
    }

    fn number(&self, column: Column) -> Result<u64, Error> {
        self.text(column).parse().map_err(|_| self.error(column, "no whole number"))
    }

    fn error(&self, column: Column, why: &str) -> Error {
        let line = self.0.record.position().map_or(0, csv::Position::line);
        let (name, value) = (&self.0.header[column.0], self.text(column));
        Error::unreadable(&self.0.path, format!("line {line}: '{value}' in column '{name}' is {why}"))
    }
}
