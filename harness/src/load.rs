//! Finding and reading workloads: embedded recordings, trace files, PyTorch snapshots, generated ones.

use crate::exit::Error;
use crate::hash::{self, Hash};
use std::io;
use std::path::{Path, PathBuf};
use workload_gen::format::{self, TraceError};
use workload_gen::import::{self, ImportError, ImportOptions, Sidecar};
use workload_gen::snapshot::{Snapshot, SnapshotError};
use workload_gen::spec::Spec;
use workload_gen::{Content, Embedded, Input, Trace, plain, plain_path};

/// A trace with its name in results.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The name.
    pub name: String,
    /// What it does. It was checked: a replay can rely on its slots and texts.
    pub trace: Trace,
    /// The hash of its events.
    pub hash: String,
}

/// A workload that is known by name and not read yet.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name.
    pub name: String,
    /// One line for people.
    pub about: &'static str,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Embedded(&'static Embedded),
    File(PathBuf),
    Spec(Spec),
}

/// The recordings that come with the program.
pub fn embedded() -> Vec<Source> {
    let source =
        |one: &'static Embedded| Source { name: one.name.to_string(), about: one.about, place: Place::Embedded(one) };
    workload_gen::embedded().iter().map(source).collect()
}

/// The workloads that `files` hold. Names are unique, as rows go by them.
pub fn in_files(files: &[PathBuf]) -> Result<Vec<Source>, Error> {
    let mut sources: Vec<Source> = Vec::new();
    for path in files {
        let name = name_of(path);
        if sources.iter().any(|source| source.name == name) {
            return Err(Error::Usage(format!(
                "{}: a second workload would be called '{name}'; give each once, under its own name",
                plain_path(path)
            )));
        }
        sources.push(in_file(name, path));
    }
    Ok(sources)
}

/// The workload that is generated from a line, and called by it.
pub fn generated(spec: &Spec) -> Source {
    Source { name: spec.to_string(), about: spec.generator().about, place: Place::Spec(spec.clone()) }
}

/// The embedded recording of that name, or the workload of that line, or else the file.
pub fn named(file: &Path) -> Result<Source, Error> {
    if let Some(known) = embedded().into_iter().find(|source| Path::new(&source.name) == file) {
        return Ok(known);
    }
    match file.to_str().filter(|text| Spec::is_meant(text)) {
        Some(text) => Spec::parse(text).map(|spec| generated(&spec)).map_err(|why| Error::Usage(why.to_string())),
        None => Ok(in_file(name_of(file), file)),
    }
}

fn in_file(name: String, path: &Path) -> Source {
    Source { name, about: "a file", place: Place::File(path.to_path_buf()) }
}

impl Source {
    /// Reads it.
    pub fn load(self) -> Result<Workload, Error> {
        let trace = match &self.place {
            Place::Embedded(one) => one.trace().map_err(|why| Error::Internal(why.to_string()))?,
            Place::File(path) => read(path).map_err(|why| hinted(why.into_error(), path))?,
            Place::Spec(spec) => spec.trace(),
        };
        // Readers check what they read; this is for an importer or generator that has a bug.
        workload_gen::check(&trace).map_err(|why| Error::Internal(format!("{}: {why}", self.name)))?;
        let hash = hash::of_trace(&trace);
        Ok(Workload { name: self.name, trace, hash })
    }

    /// Reads it, and says apart what cannot be read from what makes no sense.
    pub fn check(self) -> Result<Trace, Error> {
        match &self.place {
            Place::Embedded(_) | Place::Spec(_) => self.load().map(|workload| workload.trace),
            Place::File(path) => read(path).map_err(|why| match why {
                Unread::Trace(why @ TraceError::Line { .. }) => Error::CheckFailed(why.to_string()),
                Unread::Import(why @ ImportError::Inconsistent { .. }) => Error::CheckFailed(why.to_string()),
                other => hinted(other.into_error(), path),
            }),
        }
    }
}

/// A file that is not there may have been meant as the name of a recording.
fn hinted(error: Error, path: &Path) -> Error {
    match error {
        Error::Unreadable(why) if !path.exists() && path != Path::new(STDIN) => {
            let names: Vec<&str> = workload_gen::embedded().iter().map(|one| one.name).collect();
            // What has a colon may have been meant as a workload that is generated.
            let spec = path.to_str().filter(|text| text.contains(':')).and_then(|text| Spec::parse(text).err());
            let spec = spec.map_or(String::new(), |why| format!("; as a generated workload: {why}"));
            Error::Unreadable(format!(
                "{why}; the embedded recordings, which `trace` takes by name and `run` with -w, are: {}{spec}",
                names.join(", ")
            ))
        }
        error => error,
    }
}

/// Why a file gave no trace.
#[derive(Debug)]
pub enum Unread {
    /// As a trace.
    Trace(TraceError),
    /// As a snapshot.
    Import(ImportError),
}

impl Unread {
    /// What it means for a command.
    pub fn into_error(self) -> Error {
        match self {
            Unread::Trace(why) => Error::Unreadable(why.to_string()),
            Unread::Import(why @ ImportError::NoSuchDevice { .. }) => Error::Usage(why.to_string()),
            Unread::Import(why @ ImportError::SeveralDevices { .. }) => {
                Error::Usage(format!("{why} with `harness trace import --device N`"))
            }
            Unread::Import(why) => Error::Unreadable(why.to_string()),
        }
    }
}

/// What a user calls standard input.
pub(crate) const STDIN: &str = "-";

/// Opens a file that is read once, or standard input.
pub fn open(path: &Path) -> io::Result<Input<'static>> {
    if path == Path::new(STDIN) { Ok(Input::new(io::stdin(), &name_of(path))) } else { Input::open(path) }
}

/// Reads a trace or a snapshot, whichever its first bytes say it is.
fn read(path: &Path) -> Result<Trace, Unread> {
    let input = match open(path) {
        Ok(input) => input,
        Err(source) => return Err(Unread::Trace(TraceError::Open { file: plain_path(path), source })),
    };
    // What is neither is explained best by the reader of what its name promises.
    let is_trace = match input.content() {
        Content::Trace => true,
        Content::Pickle => false,
        Content::Other => [".trace", ".trace.zst", ".trace.gz"].iter().any(|ending| file_name(path).ends_with(ending)),
    };
    if is_trace {
        format::read_input(input).map_err(Unread::Trace)
    } else {
        let sidecar = sidecar(path).map_err(Unread::Import)?;
        import_input(input, sidecar, None).map_err(Unread::Import)
    }
}

/// Reads a snapshot as a trace; `device` tells which history is meant.
pub fn import(path: &Path, device: Option<u32>) -> Result<Trace, ImportError> {
    let sidecar = sidecar(path)?;
    match open(path) {
        Ok(input) => import_input(input, sidecar, device),
        Err(source) => Err(SnapshotError::Open { file: plain_path(path), source }.into()),
    }
}

/// What lies beside a snapshot. Nothing lies beside standard input.
pub fn sidecar(path: &Path) -> Result<Option<Sidecar>, ImportError> {
    if path == Path::new(STDIN) { Ok(None) } else { Sidecar::beside(path) }
}

fn import_input(input: Input<'_>, sidecar: Option<Sidecar>, device: Option<u32>) -> Result<Trace, ImportError> {
    import::import(Snapshot::read_input(input)?, &ImportOptions { device, sidecar })
}

/// What the file of a generated workload is called, without its ending: the workload's text without what shells and file
/// systems take for something else. A long one is cut, and tells itself from others by a hash of the whole.
pub fn stem_of(spec: &Spec) -> String {
    const LONGEST: usize = 120;
    let text = spec.to_string();
    let mut stem = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() || "._=+,".contains(c) => stem.push(c),
            _ if stem.is_empty() || stem.ends_with('-') => {}
            _ => stem.push('-'),
        }
    }
    if stem.len() > LONGEST {
        let mut hash = Hash::default();
        hash.text(&text);
        stem.truncate(LONGEST);
        stem.push('-');
        stem.push_str(&hash.hex());
    }
    stem.trim_end_matches('-').to_string()
}

/// The file's name without the endings that say its format.
pub fn name_of(path: &Path) -> String {
    if path == Path::new(STDIN) {
        return "stdin".to_string();
    }
    let mut name = file_name(path);
    for endings in [&[".zst", ".gz"][..], &[".trace", ".pickle", ".pkl"]] {
        if let Some(stem) = endings.iter().find_map(|ending| name.strip_suffix(ending)).filter(|stem| !stem.is_empty())
        {
            name = stem.to_string();
        }
    }
    name
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| plain_path(path), |name| plain(&name.to_string_lossy()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_loses_the_endings_of_formats_only() {
        for (path, name) in [
            ("a/gpt2.default.pickle.zst", "gpt2.default"),
            ("gpt2.default.trace", "gpt2.default"),
            ("snapshot.pkl.gz", "snapshot"),
            ("snapshot", "snapshot"),
            ("v1.2", "v1.2"),
            (".trace", ".trace"),
            ("gpt2.trace.gz", "gpt2"),
            ("two\nlines.trace", r"two\nlines"),
            ("-", "stdin"),
        ] {
            assert_eq!(name_of(Path::new(path)), name);
        }
    }

    #[test]
    fn a_workload_has_a_file_name() {
        let stem = |text: &str| stem_of(&Spec::parse(text).unwrap());
        assert_eq!(stem("churn:"), "churn");
        assert_eq!(stem("churn:seed=7,size=lognormal(13,2)"), "churn-size=lognormal-13,2-,seed=7");
        let long = |seed: u32| {
            let sizes = vec!["1048576"; 40].join(",");
            stem(&format!("churn:size=list({sizes}),seed={seed}"))
        };
        assert!(long(1).len() < 140 && long(1) != long(2), "{}", long(1));
    }

    #[test]
    fn a_name_is_given_once() {
        let error = in_files(&["a/x.trace".into(), "b/x.pickle".into()]).unwrap_err();
        assert_eq!(error.code(), crate::exit::USAGE);
        assert!(error.to_string().contains("b/x.pickle") && error.to_string().contains("'x'"), "{error}");
    }
}
