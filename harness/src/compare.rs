//! A table of one metric: workloads down, strategies across, the best of each row marked.

use crate::forms::{Item, Page, Style, Table};
use crate::grid::{Grid, Label};
use crate::metric::{Cell, Figure};
use workload_gen::plain;

/// The whole grid. With a `baseline`, each figure has beside it how many times that column's it is.
pub fn page(grid: &Grid, baseline: Option<usize>) -> Page {
    let reference = baseline.map_or(String::new(), |column| format!("\n×: times that of {}", grid.strategies[column]));
    let title = format!("{}{reference}", grid.metric.title());
    Page { title, table: table(grid, baseline), notes: String::new(), records: records(grid, baseline) }
}

fn table(grid: &Grid, baseline: Option<usize>) -> Table {
    let columns =
        grid.strategies.iter().map(|label| std::iter::once(&label.strategy).chain(&label.params).cloned().collect());
    let rows = grid.workloads.iter().enumerate().map(|(row, workload)| {
        let cells = &grid.cells[row];
        // One figure alone is the best of nothing.
        let best = if grid.figures(row).count() > 1 { grid.best(row) } else { None };
        let reference = baseline.and_then(|column| cells[column].figure());
        let items = cells.iter().map(|cell| item(grid, cell, best, reference));
        std::iter::once(Item::plain(workload)).chain(items).collect()
    });
    Table { head: std::iter::once(vec!["workload".to_string()]).chain(columns).collect(), rows: rows.collect() }
}

fn item(grid: &Grid, cell: &Cell, best: Option<&Figure>, reference: Option<&Figure>) -> Item {
    match cell {
        Cell::Missing => Item::plain("-"),
        Cell::Failed(outcome) => failure(&plain(outcome)),
        Cell::Value(figure) => {
            let ratio = reference.and_then(|reference| figure.ratio(reference)).map(|ratio| format!("{ratio:.2}"));
            let style = if best == Some(figure) { Style::Best } else { Style::Plain };
            Item { text: grid.metric.text(figure), ratio, style }
        }
    }
}

/// An outcome in the place of a figure.
fn failure(outcome: &str) -> Item {
    Item { style: if outcome == "oom" { Style::Warning } else { Style::Fault }, ..Item::plain(outcome) }
}

/// Exact figures, and ratios in columns of their own. An empty cell is unknown.
fn records(grid: &Grid, baseline: Option<usize>) -> Vec<Vec<String>> {
    let mut head = vec!["workload".to_string(), "metric".to_string()];
    head.extend(grid.strategies.iter().map(Label::to_string));
    if let Some(column) = baseline {
        head.extend(grid.strategies.iter().map(|label| format!("{label}/{}", grid.strategies[column])));
    }
    let rows = grid.workloads.iter().zip(&grid.cells).map(|(workload, cells)| {
        let mut row = vec![workload.clone(), grid.metric.column.to_string()];
        row.extend(cells.iter().map(|cell| match cell {
            Cell::Missing => String::new(),
            Cell::Failed(outcome) => outcome.clone(),
            Cell::Value(figure) => grid.metric.plain(figure),
        }));
        if let Some(column) = baseline {
            let ratio = |cell: &Cell| cell.figure()?.ratio(cells[column].figure()?);
            row.extend(cells.iter().map(|cell| ratio(cell).map_or(String::new(), |ratio| format!("{ratio:.6}"))));
        }
        row
    });
    std::iter::once(head).chain(rows).collect()
}
