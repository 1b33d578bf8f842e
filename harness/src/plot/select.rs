//! Which runs are drawn, and where: workloads in one direction, strategies in the other, named as `compare` names them.

use crate::exit::Error;
use crate::filter::Filter;
use crate::grid::{columns, kept, rows};
use crate::results::{self, Results};
use std::path::{Path, PathBuf};

/// The runs to draw.
#[derive(Debug)]
pub struct Selection {
    /// In the order of the files.
    pub workloads: Vec<Workload>,
    /// In the order of the files.
    pub strategies: Vec<Strategy>,
    /// By workload and strategy; a combination may not have been run.
    pub cells: Vec<Vec<Option<Run>>>,
}

/// A workload under given conditions.
#[derive(Debug)]
pub struct Workload {
    /// What it is called.
    pub label: String,
    /// Its number of events.
    pub events: u64,
}

/// A strategy with given parameters.
#[derive(Clone, Debug)]
pub struct Strategy {
    /// What it is called.
    pub label: String,
    /// Its number among all of the files, whatever is selected: its look does not depend on the filters.
    pub nth: usize,
}

/// What a row of `run.csv` says that is drawn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// The folder that it is in.
    pub folder: PathBuf,
    /// Its identity.
    pub id: String,
    /// The number of events.
    pub events: u64,
    /// How it ended.
    pub outcome: String,
    /// The event at which it went wrong.
    pub outcome_event: Option<u64>,
    /// The load bound; unknown without an audit.
    pub load_peak: Option<u64>,
    /// The reserved peak; unknown without an audit.
    pub reserved_peak: Option<u64>,
    /// The event at which it was reached.
    pub reserved_peak_event: Option<u64>,
}

impl Run {
    fn of(row: &results::Row) -> Result<Run, Error> {
        Ok(Run {
            folder: row.file().parent().unwrap_or(Path::new("")).to_path_buf(),
            id: row.text("run").unwrap_or_default().to_string(),
            events: row.known_number("events")?.unwrap_or_default(),
            outcome: row.text("outcome").unwrap_or_default().to_string(),
            outcome_event: row.known_number("outcome_event")?,
            load_peak: row.known_number("load_peak_bytes")?,
            reserved_peak: row.known_number("reserved_peak_bytes")?,
            reserved_peak_event: row.known_number("reserved_peak_event")?,
        })
    }

    /// Whether everything was served.
    pub fn is_ok(&self) -> bool {
        self.outcome == "ok"
    }
}

impl Selection {
    /// Of all results, those that the filters keep.
    pub fn new(results: &Results, workloads: &Filter, strategies: &Filter) -> Result<Selection, Error> {
        let (all_rows, row_of) = rows(&results.runs);
        let (all_columns, column_of) = columns(&results.runs);
        let (rows, row_at) = kept(&all_rows, workloads, "-w and -W leave no workload")?;
        let numbered = all_columns.iter().enumerate();
        let all_columns: Vec<Strategy> =
            numbered.map(|(nth, label)| Strategy { label: label.to_string(), nth }).collect();
        let (columns, column_at) = kept(&all_columns, strategies, "-s and -S leave no strategy")?;
        let mut selection = Selection {
            cells: vec![vec![None; columns.len()]; rows.len()],
            workloads: rows.into_iter().map(|label| Workload { label, events: 0 }).collect(),
            strategies: columns,
        };
        for (run, (row, column)) in results.runs.iter().zip(row_of.into_iter().zip(column_of)) {
            if let (Some(row), Some(column), Some(exact)) = (row_at[row], column_at[column], run.exact()) {
                let run = Run::of(exact)?;
                selection.workloads[row].events = run.events;
                selection.cells[row][column] = Some(run);
            }
        }
        Ok(selection)
    }

    /// All selected runs.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.cells.iter().flatten().flatten()
    }
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::exit::UNREADABLE;
    use crate::results::of_texts;
    use regex_lite::Regex;

    const HEADER: &str = "run,workload,strategy,params,events,outcome,outcome_event,load_peak_bytes,\
                          reserved_peak_bytes,reserved_peak_event";

    fn results<S: AsRef<str>>(rows: &[S]) -> Results {
        let rows: Vec<&str> = rows.iter().map(AsRef::as_ref).collect();
        of_texts(&[&format!("{HEADER}\n{}\n", rows.join("\n"))]).unwrap()
    }

    /// All runs of a file with these rows.
    pub fn all<S: AsRef<str>>(rows: &[S]) -> Selection {
        Selection::new(&results(rows), &Filter::default(), &Filter::default()).unwrap()
    }

    #[test]
    fn every_run_has_its_place_and_looks_do_not_depend_on_filters() {
        let rows = ["1,w,a,{},9,ok,,5,6,7", "2,v,b,{},8,ok,,5,6,7", "3,w,b,{},9,ok,,5,6,7"];
        let selection = all(&rows);
        let ids = |selection: &Selection| -> Vec<Vec<String>> {
            let id = |run: &Option<Run>| run.as_ref().map_or(String::new(), |run| run.id.clone());
            selection.cells.iter().map(|cells| cells.iter().map(id).collect()).collect()
        };
        assert_eq!(ids(&selection), [["1", "3"], ["", "2"]]);
        assert_eq!(selection.workloads.iter().map(|workload| workload.events).collect::<Vec<_>>(), [9, 8]);
        let only_b = Filter { include: vec![Regex::new("b").unwrap()], ..Filter::default() };
        let selection = Selection::new(&results(&rows), &Filter::default(), &only_b).unwrap();
        assert_eq!(ids(&selection), [["3"], ["2"]]);
        assert_eq!(selection.strategies[0].nth, 1);
    }

    #[test]
    fn an_old_file_is_refused_by_name_and_column() {
        let text = format!("{}\n1,w,a,{{}},9,ok,,5,7\n", HEADER.replace("reserved_peak_bytes,", ""));
        let error = Selection::new(&of_texts(&[&text]).unwrap(), &Filter::default(), &Filter::default()).unwrap_err();
        assert_eq!(error.code(), UNREADABLE);
        assert!(error.to_string().starts_with("cannot read test: it has no column 'reserved_peak_bytes'"), "{error}");
    }
}
