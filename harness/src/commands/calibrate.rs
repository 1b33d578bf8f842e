//! `harness calibrate`: what the driver calls of a card cost.

use crate::args::CalibrateArgs;
use allocator_core::cuda::{Card, NoCard};
use harness::calibrate::{self, Calibration};
use harness::exit::Error;
use harness::file::replace;
use harness::machine::is_debug_build;
use harness::output::{Output, complain};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use workload_gen::plain_path;

/// How often the context is measured; the median counts.
const CONTEXTS: usize = 3;

/// Runs the command.
pub fn calibrate(args: &CalibrateArgs, out: &mut Output) -> Result<(), Error> {
    if args.hold_context {
        return hold_context(args.device, out);
    }
    let files = Files::beside(&args.out)?;
    let card = Card::open(args.device).map_err(no_card)?;
    if is_debug_build() {
        complain(format_args!("warning: this is a debug build, its times say little; build with --release"));
    }
    let context_bytes = context(&card, args.device)?;
    let name = args.out.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
    let calibration = calibrate::calibrate(&card, &name, context_bytes, args.samples)
        .map_err(|why| Error::NoDevice(format!("the card cannot be measured: {why}")))?;
    files.write(&calibration)?;
    out.text(&calibration.summary())?;
    let [profile, samples, packing] = files.all().map(plain_path);
    out.line(format_args!("The profile is {profile}, its means are {samples}, the packing check is {packing}."))
}

fn no_card(why: NoCard) -> Error {
    Error::NoDevice(why.to_string())
}

/// What the card loses when another program opens it: the driver keeps a context for each. Nobody sees his own come.
/// `None` if the card serves one program only.
fn context(card: &Card, device: u32) -> Result<Option<u64>, Error> {
    let mut lost = Vec::new();
    for _ in 0..CONTEXTS {
        let (before, _) = card.memory().map_err(no_card)?;
        let program = std::env::current_exe().map_err(second_process)?;
        let mut child = Command::new(program)
            .args(["calibrate", "--hold-context", "-o", "unused.toml", "-d", &format!("cuda:{device}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(second_process)?;
        // It says a line when it has the card, and keeps it until its input ends.
        let mut line = [0; HELD.len() + 1];
        let said = child.stdout.as_mut().map(|stdout| stdout.read_exact(&mut line));
        let (after, _) = card.memory().map_err(no_card)?;
        drop(child.stdin.take());
        child.wait().map_err(second_process)?;
        if !matches!(said, Some(Ok(()))) {
            complain(format_args!("note: a second process could not open the card, so its context is not measured"));
            return Ok(None);
        }
        lost.push(before.saturating_sub(after));
    }
    lost.sort_unstable();
    Ok(Some(lost[CONTEXTS / 2]))
}

fn second_process(why: std::io::Error) -> Error {
    Error::Internal(format!("a second process, for the context: {why}"))
}

const HELD: &str = "held";

fn hold_context(device: u32, out: &mut Output) -> Result<(), Error> {
    let _card = Card::open(device).map_err(no_card)?;
    out.line(format_args!("{HELD}"))?;
    out.flush()?;
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

/// Where the results go. None of them exists.
struct Files {
    profile: PathBuf,
    samples: PathBuf,
    packing: PathBuf,
}

impl Files {
    fn beside(profile: &Path) -> Result<Files, Error> {
        let files = Files {
            profile: profile.to_path_buf(),
            samples: profile.with_extension("csv"),
            packing: profile.with_extension("packing.csv"),
        };
        if let Some(path) = files.all().into_iter().find(|path| path.exists()) {
            return Err(Error::unwritable(path, "it exists, and results are never overwritten; name a new file"));
        }
        Ok(files)
    }

    fn all(&self) -> [&Path; 3] {
        [&self.profile, &self.samples, &self.packing]
    }

    fn write(&self, calibration: &Calibration) -> Result<(), Error> {
        let texts = [calibration.toml()?, calibration.samples_csv()?, calibration.packing_csv()?];
        self.all().into_iter().zip(texts).try_for_each(|(path, text)| replace(path, text.as_bytes()))
    }
}
