//! Reading what `run` wrote: the rows of `run.csv` and `times.csv`, of one folder or of several.
//!
//! Exact rows of the same run have to agree: where they do not, different versions made them, and no table may mix the
//! two. Measured rows of the same run never agree, and only the user can say which are meant. Both are errors that name
//! the files.

use crate::exit::Error;
use crate::load::STDIN;
use crate::machine::FORMAT;
use crate::record::DEFAULT_PARENT;
use crate::registry::Params;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workload_gen::{plain, plain_path};

/// What makes two runs of one workload different: the column and the word for it.
const CONDITIONS: [(&str, &str); 5] = [
    ("trace_hash", "trace"),
    ("device", "device"),
    ("profile", "profile"),
    ("capacity_bytes", "capacity"),
    ("limit_bytes", "limit"),
];

/// All runs of some folders and files, in the order of their first rows.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The runs.
    pub runs: Vec<Run>,
    columns: Vec<Arc<csv::StringRecord>>,
    by_id: BTreeMap<String, usize>,
}

/// One workload on one strategy.
#[derive(Clone, Debug)]
pub struct Run {
    /// The workload's name.
    pub workload: String,
    /// The strategy's name.
    pub strategy: String,
    /// The strategy's parameters; empty if no row tells them.
    pub params: Params,
    /// What the workload ran under, by the words for it; empty texts where no row tells.
    pub conditions: Vec<(&'static str, String)>,
    exact: Option<Row>,
    timed: Vec<Row>,
}

/// A row of a file.
#[derive(Clone, Debug)]
pub struct Row {
    file: Arc<str>,
    line: u64,
    header: Arc<csv::StringRecord>,
    cells: csv::StringRecord,
}

/// The rows of one file.
#[derive(Debug)]
struct Sheet {
    kind: Kind,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Exact,
    Timed,
}

/// Reads folders of `run`, files of theirs, or `-`; without any, the newest `runs/run-NNN`.
pub fn read(inputs: &[PathBuf]) -> Result<Results, Error> {
    let mut sheets = Vec::new();
    match inputs {
        [] => sheets.extend(in_folder(&newest(Path::new(DEFAULT_PARENT))?)?),
        inputs => {
            for input in inputs {
                if input == Path::new(STDIN) {
                    sheets.push(Sheet::read("standard input", io::stdin().lock())?);
                } else if input.is_dir() {
                    sheets.extend(in_folder(input)?);
                } else {
                    sheets.push(in_file(input)?);
                }
            }
        }
    }
    Results::new(sheets)
}

/// The `run-NNN` with the highest number.
pub(crate) fn newest(parent: &Path) -> Result<PathBuf, Error> {
    let number = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("run-")?.parse::<u32>().ok();
    let entries = fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    entries
        .filter(|path| path.is_dir())
        .filter_map(|path| Some((number(&path)?, path)))
        .max()
        .map(|(_, path)| path)
        .ok_or_else(|| {
            let parent = parent.display();
            Error::Unreadable(format!(
                "there is no {parent}/run-NNN; make one with `harness run`, or name a folder or file"
            ))
        })
}

/// Refuses files of a version that is not known here. A folder without `machine.toml` is taken as it is.
fn check_format(folder: &Path) -> Result<(), Error> {
    let path = folder.join("machine.toml");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(Error::unreadable(&path, why)),
    };
    let machine: toml::Table = text.parse().map_err(|why: toml::de::Error| Error::unreadable(&path, why.message()))?;
    match machine.get("format").and_then(toml::Value::as_integer) {
        Some(format) if format <= i64::from(FORMAT) => Ok(()),
        Some(format) => Err(Error::unreadable(
            &path,
            format!("its files have format {format}, and this harness knows {FORMAT}; take a newer harness"),
        )),
        None => Err(Error::unreadable(&path, "it has no 'format'")),
    }
}

fn in_folder(folder: &Path) -> Result<Vec<Sheet>, Error> {
    check_format(folder)?;
    let (run, times) = (folder.join("run.csv"), folder.join("times.csv"));
    // Who names the folder of all runs means one of them.
    if !run.exists()
        && let Ok(one) = newest(folder)
    {
        let why = format!("it holds several runs; name one or more of them, such as {}", plain_path(&one));
        return Err(Error::unreadable(folder, why));
    }
    let mut sheets = vec![in_file(&run)?];
    if times.exists() {
        sheets.push(in_file(&times)?);
    }
    Ok(sheets)
}

fn in_file(path: &Path) -> Result<Sheet, Error> {
    let file = File::open(path).map_err(|why| Error::unreadable(path, why))?;
    Sheet::read(&path.display().to_string(), file)
}

/// A file that its reader stumbles over.
pub(crate) fn damaged(path: &Path, why: csv::Error) -> Error {
    match why.kind() {
        csv::ErrorKind::UnequalLengths { pos: Some(place), expected_len, len } => Error::unreadable(
            path,
            format!(
                "line {} has {len} cells where the header has {expected_len}; it was cut short or edited, so mend it \
                 or take it out",
                place.line()
            ),
        ),
        csv::ErrorKind::Utf8 { pos: Some(place), .. } => {
            Error::unreadable(path, format!("line {} is no text in UTF-8", place.line()))
        }
        _ => Error::unreadable(path, why),
    }
}

/// A file of an older or another program.
pub(crate) fn no_column(path: &Path, column: &str) -> Error {
    Error::unreadable(path, format!("it has no column '{column}'; make it again with this `harness run`"))
}

impl Sheet {
    fn read(name: &str, from: impl Read) -> Result<Sheet, Error> {
        let damaged = |why: csv::Error| damaged(Path::new(name), why);
        let mut reader = csv::Reader::from_reader(from);
        let header = Arc::new(reader.headers().map_err(damaged)?.clone());
        let has = |column: &str| header.iter().any(|other| other == column);
        let (kind, needs) = match has("repeats") {
            true => (Kind::Timed, ["run", "workload", "strategy", "outcome"].as_slice()),
            false => (Kind::Exact, ["run", "workload", "strategy", "outcome", "params"].as_slice()),
        };
        if !header.is_empty()
            && let Some(column) = needs.iter().find(|column| !has(column))
        {
            let why = format!("it is no run.csv or times.csv of `harness run`: there is no column '{column}'");
            return Err(Error::unreadable(Path::new(name), why));
        }
        let file: Arc<str> = name.into();
        let mut rows = Vec::new();
        for cells in reader.records() {
            let cells = cells.map_err(damaged)?;
            let line = cells.position().map_or(0, csv::Position::line);
            rows.push(Row { file: file.clone(), line, header: header.clone(), cells });
        }
        Ok(Sheet { kind, rows })
    }
}

impl Row {
    /// The text of a cell, unless it is empty or there is no such column.
    pub fn text(&self, column: &str) -> Option<&str> {
        let at = self.header.iter().position(|other| other == column)?;
        self.cells.get(at).filter(|text| !text.is_empty())
    }

    /// Whether there is such a column.
    pub fn has(&self, column: &str) -> bool {
        self.header.iter().any(|other| other == column)
    }

    /// The file that it is in.
    pub fn file(&self) -> &Path {
        Path::new(&*self.file)
    }

    /// The number in a cell, unless it is empty. There has to be such a column.
    pub fn known_number(&self, column: &str) -> Result<Option<u64>, Error> {
        match self.has(column) {
            true => self.number(column),
            false => Err(no_column(self.file(), column)),
        }
    }

    /// The number in a cell, unless it is empty or there is no such column.
    pub fn number(&self, column: &str) -> Result<Option<u64>, Error> {
        let Some(text) = self.text(column) else { return Ok(None) };
        let number =
            text.parse().map_err(|_| self.wrong(&format!("{column} is '{}', not a whole number", plain(text))))?;
        Ok(Some(number))
    }

    /// The sum of all columns whose names begin like this; unknown if there is no value in any.
    pub fn sum(&self, prefix: &str) -> Result<Option<u64>, Error> {
        let mut sum: Option<u64> = None;
        for column in self.header.iter().filter(|column| column.starts_with(prefix)) {
            if let Some(number) = self.number(column)? {
                let total = sum.unwrap_or(0).checked_add(number);
                sum = Some(total.ok_or_else(|| self.wrong(&format!("the sum of {prefix}… is too large")))?);
            }
        }
        Ok(sum)
    }

    fn wrong(&self, why: &str) -> Error {
        Error::Unreadable(format!("{}: line {}: {why}", self.file, self.line))
    }

    fn filled(&self) -> usize {
        self.cells.iter().filter(|text| !text.is_empty()).count()
    }

    /// From a run without an audit that found nothing: such a run checks nothing either.
    fn is_unaudited(&self) -> bool {
        self.text("failed_allocs").is_none() && self.text("outcome") == Some("ok")
    }
}

impl Results {
    fn new(sheets: Vec<Sheet>) -> Result<Results, Error> {
        let mut results = Results::default();
        let (exact, timed): (Vec<Sheet>, Vec<Sheet>) = sheets.into_iter().partition(|sheet| sheet.kind == Kind::Exact);
        for row in exact.into_iter().flat_map(|sheet| sheet.rows) {
            let run = results.run_of(&row)?;
            match &mut run.exact {
                Some(other) => unify(other, row)?,
                none => *none = Some(row),
            }
        }
        for row in timed.into_iter().flat_map(|sheet| sheet.rows) {
            let run = results.run_of(&row)?;
            // The same file twice measures nothing twice.
            if run.timed.iter().all(|other| other.cells != row.cells) {
                run.timed.push(row);
            }
        }
        match results.runs.is_empty() {
            true => Err(Error::NothingSelected(
                "there is no row in what was named, so nothing was run to its end".to_string(),
            )),
            false => Ok(results),
        }
    }

    /// Whether any file has this column.
    pub fn has_column(&self, column: &str) -> bool {
        self.columns.iter().any(|header| header.iter().any(|other| other == column))
    }

    fn run_of(&mut self, row: &Row) -> Result<&mut Run, Error> {
        if !self.columns.iter().any(|header| Arc::ptr_eq(header, &row.header)) {
            self.columns.push(row.header.clone());
        }
        let text = |column| row.text(column).unwrap_or_default().to_string();
        let next = self.runs.len();
        let at = *self.by_id.entry(text("run")).or_insert(next);
        if at == next {
            let params = row.text("params").unwrap_or("{}");
            let params =
                serde_json::from_str(params).map_err(|why| row.wrong(&format!("params is '{params}': {why}")))?;
            let conditions = CONDITIONS.iter().map(|(column, word)| (*word, text(column))).collect();
            let (workload, strategy) = (text("workload"), text("strategy"));
            self.runs.push(Run { workload, strategy, params, conditions, exact: None, timed: Vec::new() });
        }
        Ok(&mut self.runs[at])
    }
}

/// Two exact rows of one run: they agree, and the one that says more stays.
fn unify(old: &mut Row, new: Row) -> Result<(), Error> {
    let is_checked = !old.is_unaudited() && !new.is_unaudited();
    for (column, value) in new.header.iter().zip(new.cells.iter()).filter(|(_, value)| !value.is_empty()) {
        let counts = match column {
            // Prose.
            "outcome_detail" => false,
            "outcome" | "outcome_event" => is_checked,
            _ => true,
        };
        if counts && let Some(other) = old.text(column).filter(|other| *other != value) {
            return Err(Error::CheckFailed(format!(
                "{} line {} and {} line {} are of the same run and differ: {column} is {other} in one and {value} in the other; \
                 different versions made them, so compare one of the two",
                old.file, old.line, new.file, new.line
            )));
        }
    }
    if new.filled() > old.filled() {
        *old = new;
    }
    Ok(())
}

impl Run {
    /// Its exact row.
    pub fn exact(&self) -> Option<&Row> {
        self.exact.as_ref()
    }

    /// Its measured row, if it was measured once.
    pub fn timed(&self) -> Result<Option<&Row>, Error> {
        match self.timed.as_slice() {
            [] => Ok(None),
            [row] => Ok(Some(row)),
            [one, other, ..] => Err(Error::Usage(format!(
                "{} on {} was measured in {} and in {}, and times of different runs are not averaged; name one of them",
                self.workload, self.strategy, one.file, other.file
            ))),
        }
    }

    /// The files that its times come from.
    pub fn timed_in(&self) -> impl Iterator<Item = &str> {
        self.timed.iter().map(|row| row.file.as_ref())
    }
}

/// The results in the texts of such files.
#[cfg(test)]
pub(crate) fn of_texts(texts: &[&str]) -> Result<Results, Error> {
    texts.iter().map(|text| Sheet::read("test", text.as_bytes())).collect::<Result<Vec<_>, _>>().and_then(Results::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::{CHECK_FAILED, NOTHING_SELECTED, UNREADABLE, USAGE};

    const EXACT: &str = "run,workload,strategy,params,outcome,outcome_detail,failed_allocs,reserved_peak_bytes";
    const TIMED: &str = "run,workload,strategy,outcome,repeats,ops";

    fn sheet(name: &str, header: &str, rows: &[&str]) -> Sheet {
        Sheet::read(name, format!("{header}\n{}\n", rows.join("\n")).as_bytes()).unwrap()
    }

    fn results(sheets: impl IntoIterator<Item = Sheet>) -> Result<Results, Error> {
        Results::new(sheets.into_iter().collect())
    }

    #[test]
    fn the_newest_run_has_the_highest_number() {
        let parent = tempfile::TempDir::new().unwrap();
        assert_eq!(newest(parent.path()).unwrap_err().code(), UNREADABLE);
        for name in ["run-999", "run-1000", "run-002", "run-x", "other-2000"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        fs::write(parent.path().join("run-3000"), "a file").unwrap();
        assert_eq!(newest(parent.path()).unwrap(), parent.path().join("run-1000"));
    }

    #[test]
    fn exact_and_measured_rows_of_a_run_meet_in_any_order() {
        let exact = || sheet("a", EXACT, &["1,w,s,{},ok,,0,5"]);
        let timed = || sheet("b", TIMED, &["1,w,s,ok,3,7"]);
        for sheets in [[exact(), timed()], [timed(), exact()]] {
            let results = results(sheets).unwrap();
            assert_eq!(results.runs.len(), 1);
            let run = &results.runs[0];
            assert_eq!(run.exact().unwrap().number("reserved_peak_bytes"), Ok(Some(5)));
            assert_eq!(run.timed().unwrap().unwrap().number("ops"), Ok(Some(7)));
            assert_eq!(run.timed_in().collect::<Vec<_>>(), ["b"]);
            assert!(results.has_column("ops") && !results.has_column("opera"));
        }
    }

    #[test]
    fn equal_exact_rows_are_one_and_different_ones_an_error_that_names_the_files() {
        let with = |name, row| sheet(name, EXACT, &[row]);
        let one = "1,w,s,{},ok,,0,5";
        assert_eq!(results([with("a", one), with("b", one)]).unwrap().runs.len(), 1);
        for other in ["1,w,s,{},ok,,0,6", "1,w,s,{},oom,full,1,5"] {
            let error = results([with("a", one), with("b", other)]).unwrap_err();
            assert_eq!(error.code(), CHECK_FAILED);
            assert!(error.to_string().starts_with("a line 2 and b line 2 are of the same run"), "{error}");
        }
    }

    #[test]
    fn a_row_without_an_audit_says_nothing_against_one_with() {
        let (audited, timed) = ("1,w,s,{},invalid,overlap,0,5", "1,w,s,{},ok,,,");
        for rows in [[audited, timed], [timed, audited]] {
            let results = results([sheet("a", EXACT, &rows)]).unwrap();
            assert_eq!(results.runs[0].exact().unwrap().text("outcome"), Some("invalid"));
        }
        // A panic leaves no figures either, but it is a finding.
        let error = results([sheet("a", EXACT, &["1,w,s,{},panic,no,,", "1,w,s,{},ok,,0,5"])]).unwrap_err();
        assert_eq!(error.code(), CHECK_FAILED);
    }

    #[test]
    fn times_of_two_measurements_are_ambiguous_and_of_one_file_twice_are_not() {
        let with = |name, row| sheet(name, TIMED, &[row]);
        let twice = results([with("a", "1,w,s,ok,3,7"), with("a", "1,w,s,ok,3,7")]).unwrap();
        assert!(twice.runs[0].timed().unwrap().is_some());
        let two = results([with("a", "1,w,s,ok,3,7"), with("b", "1,w,s,ok,3,8")]).unwrap();
        let error = two.runs[0].timed().unwrap_err();
        assert_eq!(error.code(), USAGE);
        assert!(error.to_string().starts_with("w on s was measured in a and in b"), "{error}");
    }

    #[test]
    fn what_is_no_result_is_refused_by_name_and_line() {
        let error = Sheet::read("x.csv", "run,workload\n1,w\n".as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read x.csv: it is no run.csv or times.csv of `harness run`: there is no column 'strategy'"
        );
        let damaged = |row: &[u8]| {
            let text = [EXACT.as_bytes(), b"\n1,w,s,{},ok,,0,5\n", row].concat();
            Sheet::read("x.csv", text.as_slice()).unwrap_err().to_string()
        };
        assert!(damaged(b"2,w,s").starts_with("cannot read x.csv: line 3 has 3 cells where the header has 8; "));
        assert_eq!(damaged(b"2,w,s,{},ok,\xff,0,5"), "cannot read x.csv: line 3 is no text in UTF-8");
        assert_eq!(results([Sheet::read("x.csv", "".as_bytes()).unwrap()]).unwrap_err().code(), NOTHING_SELECTED);
        let error = results([sheet("x", EXACT, &["1,w,s,no,ok,,0,5"])]).unwrap_err();
        assert!(error.to_string().starts_with("x: line 2: params is 'no'"), "{error}");
        for (value, shown) in [("many", "many"), ("NaN", "NaN"), ("-1", "-1"), ("\"a\nb\"", "a\\nb")] {
            let odd = results([sheet("x", EXACT, &[&format!("1,w,s,{{}},ok,,0,{value}")])]).unwrap();
            let error = odd.runs[0].exact().unwrap().number("reserved_peak_bytes").unwrap_err();
            assert_eq!(error.to_string(), format!("x: line 2: reserved_peak_bytes is '{shown}', not a whole number"));
        }
        let large = format!("1,w,s,{{}},ok,,0,{0}\n", u64::MAX);
        let large =
            results([sheet("x", &format!("{EXACT},reserved_more"), &[&format!("{},1", large.trim())])]).unwrap();
        assert_eq!(large.runs[0].exact().unwrap().sum("reserved_").unwrap_err().code(), UNREADABLE);
    }
}
