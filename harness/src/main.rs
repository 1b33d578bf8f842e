//! The `harness` program: arguments to plain data, plain data to library calls.

mod args;
mod commands;

use args::{Cli, Command};
use clap::Parser;
use harness::exit::{DONE, Error, INTERNAL, USAGE};
use harness::interrupt::end_by;
use harness::output::{Output, complain};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(why) => return ExitCode::from(explain(&why)),
    };
    // Rust's own code for a panic is 101; here a bug ends like any other internal error. The panic has printed itself.
    // Nothing that it touched is used after it.
    ExitCode::from(catch_unwind(AssertUnwindSafe(|| run(cli))).unwrap_or(INTERNAL))
}

/// Prints what the parser has to say: a mistake, or the help that was asked for.
fn explain(why: &clap::Error) -> u8 {
    match why.print() {
        _ if why.use_stderr() => USAGE,
        Ok(()) => DONE,
        Err(why) => report(&Error::stdout(why)),
    }
}

fn report(error: &Error) -> u8 {
    match error {
        Error::ClosedPipe => {}
        Error::Interrupted { .. } => complain(format_args!("{error}")),
        error => complain(format_args!("error: {error}")),
    }
    error.code()
}

fn run(cli: Cli) -> u8 {
    let mut out = Output::default();
    let result = match cli.command {
        Command::List(args) => commands::list::list(&args, &mut out),
        Command::Run(args) => commands::run::run(&args, &mut out),
        Command::Compare(args) => commands::compare::compare(&args, &mut out),
        Command::Rank(args) => commands::compare::rank(&args, &mut out),
        Command::Plot(args) => commands::plot::plot(&args, &mut out),
        Command::Fidelity(args) => commands::fidelity::fidelity(&args, &mut out),
        Command::Calibrate(args) => commands::calibrate::calibrate(&args, &mut out),
        Command::Trace(command) => commands::trace::trace(&command, &mut out),
        Command::Completions(args) => commands::pages::completions(&args, &mut out),
        Command::Man(args) => commands::pages::man(&args, &mut out),
    };
    // What was written before a failure is still worth reading.
    let flushed = out.finish();
    match result.and(flushed) {
        Ok(()) => DONE,
        Err(error) => {
            let code = report(&error);
            if let Error::Interrupted { signal, .. } = error {
                end_by(signal);
            }
            code
        }
    }
}
