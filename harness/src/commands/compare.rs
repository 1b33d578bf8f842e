//! `harness compare` and `harness rank`: what was recorded, as tables.

use crate::args::CompareArgs;
use harness::compare;
use harness::exit::Error;
use harness::grid::Grid;
use harness::output::{Output, complain, width};
use harness::rank;
use harness::results;

/// Runs `compare`.
pub fn compare(args: &CompareArgs, out: &mut Output) -> Result<(), Error> {
    let (mut grid, mut baseline) = grid(args)?;
    if let Some(column) = baseline {
        grid.lead_with(column);
        baseline = Some(0);
    }
    out.text(&compare::page(&grid, baseline).form(args.format, width())?)
}

/// Runs `rank`.
pub fn rank(args: &CompareArgs, out: &mut Output) -> Result<(), Error> {
    let (grid, baseline) = grid(args)?;
    out.text(&rank::page(&grid, baseline).form(args.format, width())?)
}

fn grid(args: &CompareArgs) -> Result<(Grid, Option<usize>), Error> {
    let results = results::read(&args.inputs)?;
    let grid = Grid::new(&results, args.metric.clone(), &args.filters.workloads(), &args.filters.strategies())?;
    if grid.measured_in.len() > 1 {
        let files: Vec<&str> = grid.measured_in.iter().map(String::as_str).collect();
        let files = files.join(" and ");
        complain(format_args!(
            "warning: the times come from {files}; they compare only if machine and load were the same"
        ));
    }
    let baseline = args.baseline.as_ref().map(|name| grid.column(name)).transpose()?;
    Ok((grid, baseline))
}
