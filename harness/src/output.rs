//! What the program says. Standard output is one buffered writer, without colours where nobody sees them, that
//! survives a reader who leaves; what goes to standard error is worth no failure if nobody can read it.
//!
//! `println!` and `eprintln!` panic on a closed pipe, so nothing uses them.

use crate::exit::Error;
use std::fmt::Arguments;
use std::io::{BufWriter, StdoutLock, Write};

/// What ends every other escape code. They are written always, and taken out where nobody sees colours.
pub(crate) const RESET: &str = "\x1b[0m";
/// For what is best, and for headings.
pub(crate) const BOLD: &str = "\x1b[1m";
/// For bad news.
pub(crate) const YELLOW: &str = "\x1b[33m";
/// For worse news.
pub(crate) const RED: &str = "\x1b[31m";

/// Writes a line to standard error, without what a file's name or a trace could do to a terminal.
pub fn complain(line: Arguments<'_>) {
    let line = line.to_string();
    let plain: Vec<_> = line.split('\n').map(workload_gen::plain).collect();
    let _ = writeln!(anstream::stderr(), "{}", plain.join("\n"));
}

/// See the module.
#[derive(Debug)]
pub struct Output(BufWriter<anstream::AutoStream<StdoutLock<'static>>>);

impl Default for Output {
    fn default() -> Output {
        Output(BufWriter::with_capacity(1 << 16, anstream::stdout().lock()))
    }
}

impl Output {
    /// Writes a text.
    pub fn text(&mut self, text: &str) -> Result<(), Error> {
        self.0.write_all(text.as_bytes()).map_err(Error::stdout)
    }

    /// Writes a line.
    pub fn line(&mut self, line: Arguments<'_>) -> Result<(), Error> {
        self.0.write_fmt(line).and_then(|()| self.0.write_all(b"\n")).map_err(Error::stdout)
    }

    /// Hands over what was written so far.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.0.flush().map_err(Error::stdout)
    }

    /// Hands everything over.
    pub fn finish(mut self) -> Result<(), Error> {
        self.flush()
    }

    /// The writer itself, for what writes in its own way.
    pub fn writer(&mut self) -> &mut impl Write {
        &mut self.0
    }
}

/// The columns of the terminal that standard output goes to, unless `COLUMNS` says otherwise; unknown in a file or pipe.
pub fn width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    told.or_else(|| terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0)))
}
