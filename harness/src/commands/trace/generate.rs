//! `harness trace gen`: the traces of generated workloads, written as they come.

use super::outline;
use super::targets::Targets;
use crate::args::GenArgs;
use harness::exit::Error;
use harness::interrupt::Interrupt;
use harness::load;
use harness::output::Output;
use harness::progress::Progress;
use harness::size::{counted, grouped};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use workload_gen::format::Draft;
use workload_gen::plain_path;
use workload_gen::spec::{Outline, Spec};

/// zstd's level: the highest at which compressing keeps up with generating.
const LEVEL: i32 = 3;

/// Runs the command.
pub(super) fn generate(args: &GenArgs, out: &mut Output) -> Result<(), Error> {
    if args.out == Path::new("-") {
        let [spec] = args.specs.as_slice() else {
            return Err(Error::Usage("-o - takes one workload; name a folder for several".to_string()));
        };
        let task = Task { spec, interrupt: &Interrupt::default(), is_shown: !io::stdout().is_terminal() };
        let Some(outline) = task.outline() else { return Ok(()) };
        return task.write(&outline, out.writer()).map(drop).map_err(Error::stdout);
    }
    let stems = args.specs.iter().map(load::stem_of).collect();
    let mut targets = Targets::new(&args.out, stems, "workloads")?;
    let interrupt = Interrupt::awaited();
    let files = targets.begin()?;
    let all = counted(files.len(), "trace was", "traces were");
    for (before, (spec, file)) in args.specs.iter().zip(files).enumerate() {
        let task = Task { spec, interrupt: &interrupt, is_shown: true };
        let Some(found) = task.save(file).map_err(|why| Error::unwritable(file, why))? else {
            return Err(interrupt.error(format!("{before} of {all} written")));
        };
        out.line(format_args!("{}: {}", plain_path(file), outline(&found.header, found.events)))?;
    }
    Ok(())
}

struct Task<'a> {
    spec: &'a Spec,
    interrupt: &'a Interrupt,
    /// Whether progress may be drawn.
    is_shown: bool,
}

impl Task<'_> {
    /// Writes the trace to a file, which is there whole or not at all. After an interrupt it is not.
    fn save(&self, file: &Path) -> io::Result<Option<Outline>> {
        // What cannot be written is found out before the work is done.
        let draft = Draft::create(file, LEVEL)?;
        let Some(outline) = self.outline() else { return Ok(None) };
        let Some(draft) = self.write(&outline, draft)? else { return Ok(None) };
        draft.commit().map(|()| Some(outline))
    }

    fn outline(&self) -> Option<Outline> {
        let progress = Progress::new(0, !self.is_shown);
        self.spec.outline(&mut |events| {
            progress.doing(&format!("counting {}: {} events", self.spec, grouped(events)));
            !self.interrupt.came()
        })
    }

    fn write<W: Write>(&self, outline: &Outline, to: W) -> io::Result<Option<W>> {
        let progress = Progress::new(outline.events, !self.is_shown);
        progress.doing(&format!("writing {}", self.spec));
        self.spec.write(outline, to, &mut |events| {
            progress.at(events);
            !self.interrupt.came()
        })
    }
}
