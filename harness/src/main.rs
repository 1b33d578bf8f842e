//! The `harness` program: arguments to plain data, plain data to library calls.

mod args;
mod commands;

use args::{Cli, Command};
use clap::Parser;
use harness::exit::{DONE, Error, INTERNAL};
use harness::output::Output;
use std::panic::catch_unwind;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Rust's own code for a panic is 101; here a bug ends like any other internal error. The panic has printed itself.
    ExitCode::from(catch_unwind(|| run(cli)).unwrap_or(INTERNAL))
}

fn run(cli: Cli) -> u8 {
    let mut out = Output::default();
    let result = match cli.command {
        Command::List(args) => commands::list::list(&args, &mut out),
        Command::Run(args) => commands::run::run(&args, &mut out),
        Command::Fidelity(args) => commands::fidelity::fidelity(&args, &mut out),
        Command::Trace(command) => commands::trace::trace(&command, &mut out),
    };
    // What was written before a failure is still worth reading.
    let flushed = out.finish();
    match result.and(flushed) {
        Ok(()) => DONE,
        Err(error) => {
            if error != Error::ClosedPipe {
                anstream::eprintln!("error: {error}");
            }
            error.code()
        }
    }
}
