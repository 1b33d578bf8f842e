//! `harness completions` and `harness man`: the command line as shells and `man` read it. Packagers call these once, so
//! they are not in the list of verbs.

use crate::args::{Cli, CompletionsArgs, ManArgs};
use clap::CommandFactory;
use harness::exit::Error;
use harness::file::replace;
use harness::output::Output;
use std::io::Write;
use std::path::Path;

/// Runs `completions`.
pub fn completions(args: &CompletionsArgs, out: &mut Output) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "harness", &mut script);
    out.writer().write_all(&script).map_err(Error::stdout)
}

/// Runs `man`.
pub fn man(args: &ManArgs, out: &mut Output) -> Result<(), Error> {
    // `help` is no verb with a page of its own.
    let mut command = Cli::command().disable_help_subcommand(true);
    let Some(folder) = &args.out else {
        let page = page(&clap_mangen::Man::new(command))?;
        return out.writer().write_all(&page).map_err(Error::stdout);
    };
    std::fs::create_dir_all(folder).map_err(|why| Error::unwritable(folder, why))?;
    command.build();
    pages(&command, folder)
}

/// Writes the pages of a verb and of those below it, each whole or not at all.
fn pages(command: &clap::Command, folder: &Path) -> Result<(), Error> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set()).try_for_each(|verb| pages(verb, folder))?;
    let man = clap_mangen::Man::new(command.clone());
    replace(&folder.join(man.get_filename()), &page(&man)?)
}

fn page(man: &clap_mangen::Man) -> Result<Vec<u8>, Error> {
    let mut page = Vec::new();
    man.render(&mut page).map_err(|why| Error::Internal(format!("man page: {why}")))?;
    Ok(page)
}
