//! A table of one metric: workloads down and strategies across, or the other way round if there are more strategies, with
//! the best of each workload marked.

use crate::forms::{Item, Page, Style, Table};
use crate::grid::{Grid, Label};
use crate::metric::{Cell, Figure};
use workload_gen::plain;

/// The whole grid. With a `baseline`, each figure has beside it how many times that column's it is.
pub fn page(grid: &Grid, baseline: Option<usize>) -> Page {
    // An overhead may be nothing, and then no other is any times that.
    let what = if grid.metric.name == "overhead" { "the reserved peak" } else { "that" };
    let reference =
        baseline.map_or(String::new(), |column| format!("\n×: times {what} of {}", grid.strategies[column]));
    let title = format!("{}{reference}", grid.metric.title());
    Page { title, table: table(grid, baseline), notes: String::new(), records: records(grid, baseline) }
}

fn table(grid: &Grid, baseline: Option<usize>) -> Table {
    let mut cells: Vec<Vec<Item>> = (0..grid.workloads.len()).map(|row| items(grid, row, baseline)).collect();
    let one_line = |name: &String| vec![name.clone()];
    let workloads: Vec<Vec<String>> = grid.workloads.iter().map(one_line).collect();
    let label = |label: &Label| std::iter::once(&label.strategy).chain(&label.params).cloned().collect();
    let strategies: Vec<Vec<String>> = grid.strategies.iter().map(label).collect();
    let (corner, down, across) = match strategies.len() > workloads.len() {
        true => {
            cells = transposed(cells, strategies.len());
            ("strategy", strategies, workloads)
        }
        false => ("workload", workloads, strategies),
    };
    let rows = down.iter().zip(cells).map(|(name, cells)| {
        let name = Item::plain(name.join(" "));
        std::iter::once(name).chain(cells).collect()
    });
    Table { rows: rows.collect(), head: std::iter::once(vec![corner.to_string()]).chain(across).collect() }
}

fn items(grid: &Grid, row: usize, baseline: Option<usize>) -> Vec<Item> {
    let cells = &grid.cells[row];
    // One figure alone is the best of nothing.
    let best = if grid.figures(row).count() > 1 { grid.best(row) } else { None };
    let reference = baseline.and_then(|column| cells[column].figure());
    cells.iter().map(|cell| item(grid, cell, best, reference)).collect()
}

fn transposed(rows: Vec<Vec<Item>>, columns: usize) -> Vec<Vec<Item>> {
    let mut transposed: Vec<Vec<Item>> = (0..columns).map(|_| Vec::with_capacity(rows.len())).collect();
    for row in rows {
        for (column, item) in transposed.iter_mut().zip(row) {
            column.push(item);
        }
    }
    transposed
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
