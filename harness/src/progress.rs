//! A bar on standard error while a command works, if someone watches. Nothing is drawn into a file or a pipe.

use indicatif::{ProgressBar, ProgressStyle};

/// See the module. It draws when it is told of a step and at no other time, so that nothing runs beside a measurement.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of `steps` steps. Where rows run over the terminal there is no line for it, and nobody needs it.
    pub fn new(steps: u64, rows_are_watched: bool) -> Progress {
        let bar = if rows_are_watched { ProgressBar::hidden() } else { ProgressBar::new(steps) };
        if let Ok(style) = ProgressStyle::with_template("{bar:8} {pos}/{len} {elapsed} {wide_msg}") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// Says what is being done.
    pub fn doing(&self, what: &str) {
        self.0.set_message(what.to_string());
    }

    /// So many steps are done. It is drawn now and then, however often it is told.
    pub fn at(&self, steps: u64) {
        self.0.set_position(steps);
    }

    /// A step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
