//! `harness plot`: figures of runs.

use crate::args::PlotArgs;
use harness::exit::Error;
use harness::interrupt::Interrupt;
use harness::output::{Output, complain};
use harness::plot::{self, Options};
use harness::size::counted;

/// Runs the command.
pub fn plot(args: &PlotArgs, out: &mut Output) -> Result<(), Error> {
    let options = Options {
        figures: args.only.clone(),
        strategies: args.filters.strategies(),
        workloads: args.filters.workloads(),
        formats: args.format.clone(),
        widths: args.width.clone(),
        out: args.out.clone(),
    };
    let drawn = plot::draw(&args.folders, &options, &Interrupt::awaited())?;
    for note in &drawn.notes {
        complain(format_args!("note: {note}"));
    }
    for file in &drawn.files {
        out.line(format_args!("{}", drawn.folder.join(file).display()))?;
    }
    out.line(format_args!("{} in {}", counted(drawn.files.len(), "file", "files"), drawn.folder.display()))
}
