//! Strategies in order: the geometric mean of their ratios, over workloads that all of them completed.
//!
//! A mean over different workloads for each strategy would reward failing at the hard ones, so a workload counts for all
//! or for none, and failures stand beside the mean.

use crate::forms::{Item, Page, Style, Table};
use crate::grid::Grid;
use crate::metric::{Cell, Figure};
use crate::size::counted;
use std::cmp::Ordering;

/// See the module.
#[derive(Clone, Debug)]
struct Ranking {
    /// The strategies, the best first.
    places: Vec<Place>,
    /// On how many workloads the means stand.
    counted: usize,
    /// How many workloads there are.
    workloads: usize,
    /// How many all completed, and yet do not count, because a figure is 0 and has no ratio.
    without_ratio: usize,
    /// What the ratios are to: a strategy, or the best of each workload.
    reference: Option<String>,
}

/// How a strategy did.
#[derive(Clone, Debug)]
struct Place {
    /// Its label.
    strategy: String,
    /// The geometric mean of its ratios; unknown without any.
    mean: Option<f64>,
    /// Workloads on which it failed.
    failed: usize,
    /// Workloads on which it was not run, or for which it has no figure.
    missing: usize,
}

/// The columns of a grid in order, by their ratios to `baseline`, or to the best of each row.
pub fn page(grid: &Grid, baseline: Option<usize>) -> Page {
    rank(grid, baseline).page(grid)
}

fn rank(grid: &Grid, baseline: Option<usize>) -> Ranking {
    let complete = |row: &usize| grid.figures(*row).count() == grid.strategies.len();
    let complete: Vec<usize> = (0..grid.workloads.len()).filter(complete).collect();
    let has_ratios = |row: &usize| !grid.figures(*row).any(Figure::is_zero);
    let counted: Vec<usize> = complete.iter().copied().filter(has_ratios).collect();
    let place = |column: usize| {
        let ratios = counted.iter().filter_map(|row| {
            let reference = baseline.map_or_else(|| grid.best(*row), |column| grid.cells[*row][column].figure())?;
            grid.cells[*row][column].figure()?.ratio(reference)
        });
        let logs: f64 = ratios.map(f64::ln).sum();
        let count = |is_so: fn(&Cell) -> bool| grid.cells.iter().filter(|row| is_so(&row[column])).count();
        Place {
            strategy: grid.strategies[column].to_string(),
            mean: (!counted.is_empty()).then(|| (logs / counted.len() as f64).exp()),
            failed: count(|cell| matches!(cell, Cell::Failed(_))),
            missing: count(|cell| matches!(cell, Cell::Missing)),
        }
    };
    let mut places: Vec<Place> = (0..grid.strategies.len()).map(place).collect();
    places.sort_by(|one, other| {
        let order = one.mean.partial_cmp(&other.mean).unwrap_or(Ordering::Equal);
        if grid.metric.more_is_better() { order.reverse() } else { order }
    });
    Ranking {
        places,
        without_ratio: complete.len() - counted.len(),
        counted: counted.len(),
        workloads: grid.workloads.len(),
        reference: baseline.map(|column| grid.strategies[column].to_string()),
    }
}

impl Ranking {
    fn page(&self, grid: &Grid) -> Page {
        let reference = self.reference.as_deref().unwrap_or("the best of each workload");
        let title = format!("{}\ngeometric mean of the ratios to {reference}", grid.metric.title());
        Page { title, table: self.table(), notes: self.notes(), records: self.records(grid) }
    }

    fn table(&self) -> Table {
        let head = ["strategy", "mean ratio", "workloads", "failed", "missing"];
        let rows = self.places.iter().map(|place| {
            let mean = place.mean.map_or("-".to_string(), |mean| format!("{mean:.3}"));
            let style = if place.failed > 0 { Style::Warning } else { Style::Plain };
            vec![
                Item::plain(&place.strategy),
                Item::plain(mean),
                Item::plain(format!("{} of {}", self.counted, self.workloads)),
                Item { style, ..Item::plain(place.failed.to_string()) },
                Item::plain(place.missing.to_string()),
            ]
        });
        Table { head: head.map(|name| vec![name.to_string()]).to_vec(), rows: rows.collect() }
    }

    /// What is missing in the means, a line each; nothing if they stand on all workloads.
    fn notes(&self) -> String {
        let mut notes = String::new();
        let left_out = self.workloads - self.counted - self.without_ratio;
        if left_out > 0 {
            let left_out = counted(left_out, "workload", "workloads");
            notes.push_str(&format!("left out of the means: {left_out} that not every strategy completed\n"));
        }
        if self.without_ratio > 0 {
            let left_out = counted(self.without_ratio, "workload", "workloads");
            notes.push_str(&format!("left out of the means: {left_out} with a figure of 0\n"));
        }
        if self.counted == 0 {
            notes.push_str("no workload is left; leave out strategies with -S\n");
        }
        notes
    }

    fn records(&self, grid: &Grid) -> Vec<Vec<String>> {
        let head = [
            "strategy",
            "metric",
            "reference",
            "ratio_geometric_mean",
            "workloads",
            "workloads_all",
            "failed",
            "missing",
        ];
        let rows = self.places.iter().map(|place| {
            vec![
                place.strategy.clone(),
                grid.metric.column.to_string(),
                self.reference.clone().unwrap_or_else(|| "best".to_string()),
                place.mean.map_or(String::new(), |mean| format!("{mean:.6}")),
                self.counted.to_string(),
                self.workloads.to_string(),
                place.failed.to_string(),
                place.missing.to_string(),
            ]
        });
        std::iter::once(head.map(str::to_string).to_vec()).chain(rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;
    use crate::metric::Metric;
    use crate::results::of_texts;

    /// `rows` of `workload,strategy,outcome,reserved,load`.
    fn ranking(metric: &str, rows: &[&str], baseline: Option<&str>) -> Ranking {
        let mut text = "run,workload,strategy,outcome,reserved_peak_bytes,load_peak_bytes,params\n".to_string();
        rows.iter().enumerate().for_each(|(id, row)| text.push_str(&format!("{id},{row},{{}}\n")));
        let all = Filter::default();
        let grid = Grid::new(&of_texts(&[&text]).unwrap(), Metric::named(metric), &all, &all).unwrap();
        rank(&grid, baseline.map(|name| grid.column(name).unwrap()))
    }

    fn means(ranking: &Ranking) -> Vec<(&str, Option<f64>)> {
        let rounded = |mean: f64| (mean * 1e9).round() / 1e9;
        ranking.places.iter().map(|place| (place.strategy.as_str(), place.mean.map(rounded))).collect()
    }

    const TWO: [&str; 4] = ["v,x,ok,16,1", "v,y,ok,1,1", "w,x,ok,1,1", "w,y,ok,4,1"];

    #[test]
    fn the_mean_is_geometric() {
        let ranking = ranking("reserved", &TWO, None);
        assert_eq!(means(&ranking), [("y", Some(2.0)), ("x", Some(4.0))]);
        assert_eq!(ranking.notes(), "");
    }

    #[test]
    fn a_baseline_has_ratio_one_and_more_may_be_better() {
        assert_eq!(means(&ranking("reserved", &TWO, Some("y"))), [("y", Some(1.0)), ("x", Some(2.0))]);
        assert_eq!(means(&ranking("utilisation", &TWO, Some("y"))), [("y", Some(1.0)), ("x", Some(0.5))]);
        assert_eq!(means(&ranking("overhead", &TWO, Some("y"))), [("y", Some(1.0)), ("x", Some(2.0))]);
    }

    #[test]
    fn a_failure_takes_its_workload_from_all_and_stands_beside() {
        let rows = [&TWO[..], &["u,x,oom,1,1", "u,y,ok,9,1", "t,y,ok,9,1"]].concat();
        let ranking = ranking("reserved", &rows, Some("y"));
        assert_eq!(means(&ranking), [("y", Some(1.0)), ("x", Some(2.0))]);
        assert_eq!((ranking.counted, ranking.workloads), (2, 4));
        let beside: Vec<(usize, usize)> = ranking.places.iter().map(|place| (place.failed, place.missing)).collect();
        assert_eq!(beside, [(0, 0), (1, 1)]);
        assert_eq!(ranking.notes(), "left out of the means: 2 workloads that not every strategy completed\n");
    }

    #[test]
    fn zero_has_no_ratio_and_without_any_there_is_no_mean() {
        let ranking = ranking("reserved", &["v,x,ok,0,1", "v,y,ok,2,1", "w,x,panic,,"], None);
        assert_eq!(means(&ranking), [("x", None), ("y", None)]);
        assert_eq!((ranking.counted, ranking.without_ratio), (0, 1));
        let notes = ranking.notes();
        assert!(
            notes.contains("1 workload with a figure of 0") && notes.contains("leave out strategies with -S"),
            "{notes}"
        );
    }
}
