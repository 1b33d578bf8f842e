//! `harness completions` and `harness man`: the command line as shells and `man` read it. Packagers call these once, so
//! they are not in the list of verbs.

use crate::args::{Cli, CompletionsArgs, ManArgs};
use clap::CommandFactory;
use harness::exit::Error;
use harness::output::Output;
use std::io::Write;

/// Runs `completions`.
pub fn completions(args: &CompletionsArgs, out: &mut Output) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "harness", &mut script);
    out.writer().write_all(&script).map_err(Error::stdout)
}

/// Runs `man`.
pub fn man(args: &ManArgs, out: &mut Output) -> Result<(), Error> {
    // `help` is no verb with a page of its own.
    let command = Cli::command().disable_help_subcommand(true);
    let Some(folder) = &args.out else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(command).render(&mut page);
        rendered.map_err(|why| Error::Internal(format!("man page: {why}")))?;
        return out.writer().write_all(&page).map_err(Error::stdout);
    };
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    written.map_err(|why| Error::unwritable(folder, why))
}
