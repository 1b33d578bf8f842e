//! Reads the files, chooses the figures that they allow, draws them and writes them.

use super::data;
use super::export;
use super::select::{Run, Selection};
use super::{Drawn, Figure, Format, Options, Width, map, overhead, timeline};
use crate::exit::Error;
use crate::file::replace;
use crate::interrupt::Interrupt;
use crate::record::DEFAULT_PARENT;
use crate::results;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use workload_gen::plain_path;

/// Figures that `harness run` draws by itself.
const AFTER_RUN: [Figure; 2] = [Figure::Timeline, Figure::Overhead];

/// The name of the folder with the figures of a run.
const FOLDER: &str = "figures";

/// One drawing: its name, and what draws it.
struct Job<'a> {
    name: String,
    draw: Box<dyn Fn() -> Result<String, Error> + Sync + 'a>,
}

/// Draws the runs in `folders`; without any, the newest `runs/run-NNN`.
pub fn draw(folders: &[PathBuf], options: &Options, interrupt: &Interrupt) -> Result<Drawn, Error> {
    let folders = match folders {
        [] => &[results::newest(Path::new(DEFAULT_PARENT))?][..],
        folders => folders,
    };
    let folder = match (&options.out, folders) {
        (Some(out), _) => out.clone(),
        (None, [folder]) => folder.join(FOLDER),
        (None, _) => {
            return Err(Error::Usage(
                "runs of several folders are drawn together; say where to with -o DIR".to_string(),
            ));
        }
    };
    // Standard input holds rows, but no timelines and no maps.
    if let Some(folder) = folders.iter().find(|folder| !folder.is_dir()) {
        return Err(Error::unreadable(folder, "there is no such folder; name the folder of a run"));
    }
    let is_asked_for = !options.figures.is_empty();
    let figures = if is_asked_for { &options.figures } else { &Figure::ALL[..] };
    let drawn = draw_figures(folders, folder, figures, is_asked_for, options, interrupt);
    let drawn = drawn.map_err(|error| match error {
        // A run may lie where nobody may write.
        Error::Unwritable(why) if options.out.is_none() => {
            Error::Unwritable(format!("{why}; name another folder with -o DIR"))
        }
        error => error,
    })?;
    match drawn.files.is_empty() {
        true => Err(Error::Unreadable(drawn.notes.join("; "))),
        false => Ok(drawn),
    }
}

/// Draws what a run draws of itself.
pub fn draw_after_run(folder: &Path, interrupt: &Interrupt) -> Result<Option<Drawn>, Error> {
    let options = Options::default();
    draw_figures(&[folder.to_path_buf()], folder.join(FOLDER), &AFTER_RUN, false, &options, interrupt).map(Some)
}

/// What nobody asked for may be missing; that is noted. What is there and makes no sense is an error.
fn draw_figures(
    folders: &[PathBuf],
    folder: PathBuf,
    figures: &[Figure],
    is_asked_for: bool,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<Drawn, Error> {
    let results = results::read(folders)?;
    let selection = Selection::new(&results, &options.workloads, &options.strategies)?;
    if selection.runs().next().is_none() {
        return Err(Error::NothingSelected("no row of run.csv is left to draw".to_string()));
    }
    let mut drawn = Drawn { folder, ..Drawn::default() };
    let mut timelines = BTreeMap::new();
    let mut maps = BTreeMap::new();
    let mut wanted = BTreeSet::new();
    for &figure in figures {
        let lacks = |file: &str| selection.runs().any(|run| !run.folder.join(file).exists());
        let (read, is_missing) = match figure {
            Figure::Timeline => {
                (by_folder(&selection, data::timelines).map(|all| timelines = all), lacks(data::TIMELINE))
            }
            Figure::Map => (by_folder(&selection, data::maps).map(|all| maps = all), lacks(data::PEAK)),
            Figure::Overhead => (audited(&selection), true),
        };
        match read {
            Ok(()) => _ = wanted.insert(figure),
            Err(error) if is_asked_for || !is_missing => return Err(error),
            Err(error) => drawn.notes.push(format!("no {}: {error}", figure.name())),
        }
    }
    if wanted.is_empty() {
        return Ok(drawn);
    }

    let widths = if options.widths.is_empty() { &Width::ALL[..] } else { &options.widths };
    let mut jobs = Vec::new();
    for figure in wanted {
        for &width in BTreeSet::from_iter(widths) {
            let (selection, timelines, maps) = (&selection, &timelines, &maps);
            match figure {
                Figure::Timeline => jobs.push(Job {
                    name: format!("timeline-{}", width.name()),
                    draw: Box::new(move || timeline::figure(selection, timelines, width)),
                }),
                Figure::Overhead => jobs.push(Job {
                    name: format!("overhead-{}", width.name()),
                    draw: Box::new(move || overhead::figure(selection, width)),
                }),
                Figure::Map => {
                    for (nth, stem) in file_names(selection).into_iter().enumerate() {
                        jobs.push(Job {
                            name: format!("map-{stem}-{}", width.name()),
                            draw: Box::new(move || map::figure(selection, nth, maps, width)),
                        });
                    }
                }
            }
        }
    }
    let formats = if options.formats.is_empty() { &Format::ALL[..] } else { &options.formats };
    let formats: Vec<Format> = BTreeSet::from_iter(formats).into_iter().copied().collect();
    drawn.files = write(&drawn.folder, &jobs, &formats, interrupt)?;
    Ok(drawn)
}

fn write(folder: &Path, jobs: &[Job<'_>], formats: &[Format], interrupt: &Interrupt) -> Result<Vec<String>, Error> {
    fs::create_dir_all(folder).map_err(|why| Error::unwritable(folder, why))?;
    let go_on = || match interrupt.came() {
        true => Err(interrupt.error(format!("the figures so far are in {}", plain_path(folder)))),
        false => Ok(()),
    };
    let files: Vec<Vec<String>> = jobs
        .par_iter()
        .map(|job| {
            let svg = (job.draw)()?;
            formats
                .par_iter()
                .map(|&format| {
                    go_on()?;
                    let name = format!("{}.{}", job.name, format.ending());
                    replace(&folder.join(&name), &export::bytes(&svg, format)?)?;
                    Ok(name)
                })
                .collect()
        })
        .collect::<Result<_, Error>>()?;
    go_on()?;
    Ok(files.concat())
}

/// What `read` finds in each folder of the selected runs, together.
fn by_folder<T>(
    selection: &Selection,
    read: impl Fn(&Path, &BTreeSet<&str>) -> Result<BTreeMap<String, T>, Error>,
) -> Result<BTreeMap<String, T>, Error> {
    let mut ids: BTreeMap<&Path, BTreeSet<&str>> = BTreeMap::new();
    for run in selection.runs() {
        ids.entry(&run.folder).or_default().insert(&run.id);
    }
    let mut all = BTreeMap::new();
    for (folder, ids) in ids {
        all.extend(read(folder, &ids)?);
    }
    Ok(all)
}

/// Whether there is anything that bars could show: a peak, or a failure.
fn audited(selection: &Selection) -> Result<(), Error> {
    let is_unknown = |run: &Run| run.reserved_peak.is_none() && run.is_ok();
    match selection.runs().next() {
        Some(run) if selection.runs().all(is_unknown) => {
            let why = "it has no memory figures; make it again without --pass time";
            Err(Error::unreadable(&run.folder.join("run.csv"), why))
        }
        _ => Ok(()),
    }
}

/// A name for the files of each workload: its label, in letters that every file system has, and no name twice.
fn file_names(selection: &Selection) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for workload in &selection.workloads {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_');
        let stem: String =
            workload.label.chars().map(|char| if is_plain(char) { char } else { '_' }).take(100).collect();
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let free = std::iter::once(stem.clone()).chain(numbered).find(|name| !names.contains(name));
        names.push(free.unwrap_or(stem));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_leaves_whole_figures_only() {
        let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny_run");
        let folder = tempfile::TempDir::new().unwrap();
        let options = Options { out: Some(folder.path().to_path_buf()), ..Options::default() };
        let interrupt = Interrupt::default();
        interrupt.raise();
        let error = draw(&[run], &options, &interrupt).unwrap_err();
        assert!(error.to_string().starts_with("interrupted; the figures so far are in "), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
