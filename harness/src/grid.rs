//! Workloads by strategies under one metric: what `compare` shows and `rank` sums up.

use crate::exit::Error;
use crate::filter::Filter;
use crate::metric::{Cell, Figure, Metric};
use crate::registry::{Params, STRATEGIES, written};
use crate::results::{Results, Run};
use crate::size::bytes;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use workload_gen::plain;

/// See the module.
#[derive(Clone, Debug)]
pub struct Grid {
    /// What the figures are.
    pub(crate) metric: Metric,
    /// The names of the rows.
    pub(crate) workloads: Vec<String>,
    /// The names of the columns.
    pub strategies: Vec<Label>,
    /// By row, then by column.
    pub(crate) cells: Vec<Vec<Cell>>,
    /// The files that measured figures come from.
    pub measured_in: BTreeSet<String>,
}

/// A strategy with those of its parameters that are not the defaults, in the form that `-p` takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// The strategy's name.
    pub strategy: String,
    /// `key=value`.
    pub params: Vec<String>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.strategy)?;
        self.params.iter().try_for_each(|param| write!(f, " {param}"))
    }
}

impl Grid {
    /// The grid of those runs whose row and column have names that the filters keep. A row or column that is left
    /// without any figure stays: that there is nothing is worth knowing.
    pub fn new(results: &Results, metric: Metric, workloads: &Filter, strategies: &Filter) -> Result<Grid, Error> {
        metric.check(results)?;
        let (all_rows, row_of) = rows(&results.runs);
        let (all_columns, column_of) = columns(&results.runs);
        let (rows, row_at) = kept(&all_rows, workloads, "-w and -W leave no workload")?;
        let (columns, column_at) = kept(&all_columns, strategies, "-s and -S leave no strategy")?;
        let mut grid = Grid {
            metric,
            cells: vec![vec![Cell::Missing; columns.len()]; rows.len()],
            workloads: rows,
            strategies: columns,
            measured_in: BTreeSet::new(),
        };
        let mut taken = BTreeSet::new();
        let mut are_silent = false;
        for (run, (row, column)) in results.runs.iter().zip(row_of.into_iter().zip(column_of)) {
            let (Some(row), Some(column)) = (row_at[row], column_at[column]) else { continue };
            if !taken.insert((row, column)) {
                let (workload, strategy) = (&grid.workloads[row], &grid.strategies[column]);
                return Err(Error::Usage(format!(
                    "there are two runs of {workload} on {strategy}, and times.csv alone does not tell them apart; name their folders"
                )));
            }
            let cell = grid.metric.cell(run)?;
            are_silent |= cell == Cell::Missing;
            if cell.figure().is_some() && grid.metric.is_measured(run) {
                grid.measured_in.extend(run.timed_in().map(str::to_string));
            }
            grid.cells[row][column] = cell;
        }
        let has_figures = grid.cells.iter().flatten().any(|cell| cell.figure().is_some());
        match are_silent && !has_figures {
            true => Err(Error::NothingSelected(format!(
                "no run has a figure for '{}'; memory figures come from `harness run --pass audit`, times from --pass time",
                grid.metric.name
            ))),
            false => Ok(grid),
        }
    }

    /// The column that `name` means: one of that label, or the only one of that strategy.
    pub fn column(&self, name: &str) -> Result<usize, Error> {
        let by_label = self.strategies.iter().position(|label| label.to_string() == name);
        let mut by_name = self.strategies.iter().enumerate().filter(|(_, label)| label.strategy == name);
        let only = match (by_name.next(), by_name.next()) {
            (Some((at, _)), None) => Some(at),
            _ => None,
        };
        by_label.or(only).ok_or_else(|| {
            let labels: Vec<String> = self.strategies.iter().map(|label| format!("'{label}'")).collect();
            Error::Usage(format!("--baseline '{name}' is none of {}", labels.join(", ")))
        })
    }

    /// Makes this column the first.
    pub fn lead_with(&mut self, column: usize) {
        self.strategies[..=column].rotate_right(1);
        self.cells.iter_mut().for_each(|row| row[..=column].rotate_right(1));
    }

    /// The best figure of a row.
    pub(crate) fn best(&self, row: usize) -> Option<&Figure> {
        self.figures(row).min_by(|one, other| self.metric.order(one, other))
    }

    /// The figures of a row.
    pub(crate) fn figures(&self, row: usize) -> impl Iterator<Item = &Figure> {
        self.cells[row].iter().filter_map(Cell::figure)
    }
}

/// The entries that the filter keeps, and where each went.
pub(crate) fn kept<T: Clone + ToString>(
    all: &[T],
    filter: &Filter,
    none: &str,
) -> Result<(Vec<T>, Vec<Option<usize>>), Error> {
    let mut kept = Vec::new();
    let places = all.iter().map(|one| {
        filter.keeps(&one.to_string()).then(|| {
            kept.push(one.clone());
            kept.len() - 1
        })
    });
    let places = places.collect();
    if kept.is_empty() {
        let names: Vec<String> = all.iter().map(T::to_string).collect();
        return Err(Error::NothingSelected(format!("{none}; there are: {}", names.join(", "))));
    }
    Ok((kept, places))
}

/// The different keys of runs, those with equal names next to each other, and the place of each run.
fn places<'a, K: PartialEq>(
    runs: &'a [Run],
    key: impl Fn(&'a Run) -> K,
    name: impl Fn(&K) -> &str,
) -> (Vec<K>, Vec<usize>) {
    let mut keys: Vec<K> = Vec::new();
    for run in runs {
        let new = key(run);
        if !keys.contains(&new) {
            let last = keys.iter().rposition(|other| name(other) == name(&new));
            keys.insert(last.map_or(keys.len(), |last| last + 1), new);
        }
    }
    let places = runs.iter().filter_map(|run| keys.iter().position(|other| *other == key(run))).collect();
    (keys, places)
}

/// A workload's name, and what tells it from others of that name: a condition that only rows of other conditions named
/// before it have differently says nothing new.
pub(crate) fn rows(runs: &[Run]) -> (Vec<String>, Vec<usize>) {
    let (keys, places) = places(runs, |run| (&run.workload, &run.conditions), |(name, _)| name);
    let labels = keys.iter().map(|(name, conditions)| {
        let namesakes = || keys.iter().filter(|(other, _)| other == name);
        let differ = conditions.iter().enumerate().filter(|(at, one)| {
            namesakes().any(|(_, others)| others[*at] != **one && others[..*at] == conditions[..*at])
        });
        let parts = differ.map(|(_, (word, value))| format!(" {word}={}", condition(word, value)));
        std::iter::once(plain(name).into_owned()).chain(parts).collect()
    });
    (labels.collect(), places)
}

fn condition(word: &str, value: &str) -> String {
    match (word, value.parse()) {
        (_, Err(_)) if value.is_empty() => "none".to_string(),
        ("capacity" | "limit", Ok(size)) => bytes(size).replace(' ', ""),
        _ => value.to_string(),
    }
}

/// A strategy's name, and the parameters that are not its defaults. Of a strategy that this program does not have, the
/// defaults are what all its columns share.
pub(crate) fn columns(runs: &[Run]) -> (Vec<Label>, Vec<usize>) {
    let (keys, places) = places(runs, |run| (&run.strategy, &run.params), |(name, _)| name);
    let labels = keys.iter().map(|(name, params)| {
        let entry = STRATEGIES.iter().find(|entry| entry.name == *name);
        let defaults = entry.map_or_else(
            || {
                let is_shared = |(key, value): &(&String, &Value)| {
                    keys.iter().filter(|(other, _)| other == name).all(|(_, others)| others.get(*key) == Some(*value))
                };
                params.iter().filter(is_shared).map(|(key, value)| (key.clone(), value.clone())).collect::<Params>()
            },
            |entry| entry.defaults(),
        );
        let differ = params.iter().filter(|(key, value)| defaults.get(*key) != Some(*value));
        Label {
            strategy: plain(name).into_owned(),
            params: differ.map(|(key, value)| format!("{key}={}", plain(&written(key, value)))).collect(),
        }
    });
    (labels.collect(), places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::{NOTHING_SELECTED, USAGE};
    use crate::results::of_texts;
    use regex_lite::Regex;
    use serde_json::json;

    /// Runs of `(workload, limit, strategy, params)`, the first with 1 reserved byte, the next with 2 and so on.
    fn results(runs: &[(&str, &str, &str, Value)]) -> Results {
        let mut text = Vec::new();
        let mut writer = csv::Writer::from_writer(&mut text);
        let head = ["run", "workload", "limit_bytes", "strategy", "params", "outcome", "reserved_peak_bytes"];
        writer.write_record(head).unwrap();
        for (at, (workload, limit, strategy, params)) in runs.iter().enumerate() {
            let (id, params, bytes) = (at.to_string(), params.to_string(), (at + 1).to_string());
            writer.write_record([&id, *workload, limit, strategy, &params, "ok", &bytes]).unwrap();
        }
        drop(writer);
        of_texts(&[std::str::from_utf8(&text).unwrap()]).unwrap()
    }

    fn grid(runs: &[(&str, &str, &str, Value)]) -> Grid {
        Grid::new(&results(runs), Metric::named("reserved"), &Filter::default(), &Filter::default()).unwrap()
    }

    fn labels(grid: &Grid) -> Vec<String> {
        grid.strategies.iter().map(Label::to_string).collect()
    }

    fn only(pattern: &str) -> Filter {
        Filter { include: vec![Regex::new(pattern).unwrap()], ..Filter::default() }
    }

    #[test]
    fn columns_name_the_parameters_that_are_not_the_defaults() {
        let caching = |changes: &[(&str, Value)]| {
            let mut params = STRATEGIES.iter().find(|entry| entry.name == "caching").unwrap().defaults();
            params.extend(changes.iter().map(|(key, value)| (key.to_string(), value.clone())));
            ("w", "", "caching", Value::Object(params))
        };
        let conf = "garbage_collection_threshold:0.6";
        let runs = [
            caching(&[("max_split_size_mb", json!(128)), ("conf", json!(conf))]),
            ("w", "", "direct", json!({})),
            caching(&[]),
            caching(&[("large_segment_size_mb", Value::Null), ("expandable_segments", json!(true))]),
        ];
        let expected = [
            "caching conf=garbage_collection_threshold:0.6 max_split_size_mb=128",
            "caching",
            "caching expandable_segments=true large_segment_size_mb=none",
            "direct",
        ];
        assert_eq!(labels(&grid(&runs)), expected, "next to each other, and else in the order of the rows");
    }

    #[test]
    fn of_an_unknown_strategy_columns_name_what_they_do_not_share() {
        let run = |params| ("w", "", "from-elsewhere", params);
        let runs = [run(json!({"a": 1, "b": 2})), run(json!({"a": 1, "b": 3})), run(json!({"a": 1}))];
        assert_eq!(labels(&grid(&runs)), ["from-elsewhere b=2", "from-elsewhere b=3", "from-elsewhere"]);
    }

    #[test]
    fn rows_name_the_conditions_that_are_not_the_same() {
        let run = |workload, limit, strategy| (workload, limit, strategy, json!({}));
        let runs = [run("a", "", "x"), run("b", "512", "x"), run("a", "21474836480", "x"), run("b", "512", "y")];
        let grid = grid(&runs);
        assert_eq!(grid.workloads, ["a limit=none", "a limit=20.00GiB", "b"]);
        let bytes: Vec<Vec<Option<String>>> = grid
            .cells
            .iter()
            .map(|row| row.iter().map(|cell| cell.figure().map(|figure| grid.metric.plain(figure))).collect())
            .collect();
        let some = |bytes: &str| Some(bytes.to_string());
        assert_eq!(bytes, [[some("1"), None], [some("3"), None], [some("2"), some("4")]]);
    }

    #[test]
    fn a_baseline_is_a_label_or_the_only_one_of_its_strategy() {
        let run = |strategy, params| ("w", "", strategy, params);
        let mut grid = grid(&[run("x", json!({"a": 1})), run("x", json!({"a": 2})), run("y", json!({"a": 1}))]);
        assert_eq!((grid.column("x a=2"), grid.column("y")), (Ok(1), Ok(2)));
        let error = grid.column("x").unwrap_err();
        assert_eq!(error.code(), USAGE);
        assert!(error.to_string().contains("'x a=1', 'x a=2', 'y'"), "{error}");
        grid.lead_with(2);
        assert_eq!(labels(&grid), ["y", "x a=1", "x a=2"]);
        assert_eq!(grid.metric.plain(grid.cells[0][0].figure().unwrap()), "3");
    }

    #[test]
    fn filters_match_labels_and_say_what_there_was() {
        let run = |workload, params| (workload, "", "x", params);
        let results = results(&[run("v", json!({"a": 1})), run("w", json!({"a": 2}))]);
        let all = Filter::default();
        let grid = Grid::new(&results, Metric::named("reserved"), &only("^w$"), &all).unwrap();
        assert_eq!((grid.workloads.as_slice(), labels(&grid).len()), (["w".to_string()].as_slice(), 2));
        let grid = Grid::new(&results, Metric::named("reserved"), &all, &only("a=1")).unwrap();
        assert_eq!(labels(&grid), ["x a=1"]);
        let error = Grid::new(&results, Metric::named("reserved"), &all, &only("a=3")).unwrap_err();
        assert_eq!((error.code(), error.to_string().contains("x a=1, x a=2")), (NOTHING_SELECTED, true), "{error}");
    }

    #[test]
    fn a_metric_has_to_be_there() {
        let results = results(&[("w", "", "x", json!({}))]);
        let code = |name: &str| {
            let made = Grid::new(&results, Metric::named(name), &Filter::default(), &Filter::default());
            made.map_err(|error| error.code()).map(drop)
        };
        assert_eq!(code("reserved_peak_bytes"), Ok(()));
        assert_eq!(code("ns-per-op"), Err(NOTHING_SELECTED));
        assert_eq!(code("limit_bytes"), Err(NOTHING_SELECTED));
        assert_eq!(code("reservd"), Err(USAGE));
    }

    #[test]
    fn times_alone_do_not_tell_parameters_apart() {
        let times = |rows: &str| {
            let head = "run,workload,strategy,outcome,repeats,ops,total_median_ns";
            let results = of_texts(&[&format!("{head}\n{rows}")]).unwrap();
            Grid::new(&results, Metric::named("ns-per-op"), &Filter::default(), &Filter::default())
        };
        let grid = times("1,v,x,ok,5,2,10\n2,w,x,ok,5,2,10\n").unwrap();
        assert_eq!((grid.workloads.len(), labels(&grid)), (2, vec!["x".to_string()]));
        assert_eq!(grid.measured_in.iter().collect::<Vec<_>>(), ["test"]);
        assert_eq!(times("1,w,x,ok,5,2,10\n2,w,x,ok,5,2,11\n").unwrap_err().code(), USAGE);
    }
}
