//! What `scripts/new-strategy` writes and refuses. That its copy compiles and keeps the rules is for `scripts/check`,
//! which builds one.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const FILES: [&str; 6] = [
    "Cargo.toml",
    "harness/Cargo.toml",
    "harness/src/registry.rs",
    "scripts/new-strategy",
    "strategies/direct/Cargo.toml",
    "strategies/direct/src/lib.rs",
];
const CONFORMANCE: &str = "strategies/direct/tests/conformance.rs";

/// The files that the script reads, in a folder of their own.
struct Copy(TempDir);

impl Copy {
    fn new() -> Copy {
        let folder = TempDir::new().unwrap();
        for file in FILES.iter().chain([&CONFORMANCE]) {
            let target = folder.path().join(file);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file), target).unwrap();
        }
        Copy(folder)
    }

    fn call(&self, args: &[&str]) -> Output {
        Command::new("bash").arg(self.path("scripts/new-strategy")).args(args).output().unwrap()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_else(|why| panic!("{file}: {why}"))
    }

    #[track_caller]
    fn makes(&self, args: &[&str]) {
        let output = self.call(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The lines of a file that speak of strategies.
    fn lines(&self, file: &str, kind: &str) -> Vec<String> {
        self.read(file).lines().filter(|line| line.contains(kind)).map(str::to_string).collect()
    }
}

#[test]
fn every_list_has_it_in_order() {
    let copy = Copy::new();
    let lists = |copy: &Copy| {
        [
            copy.lines("Cargo.toml", "strategy-"),
            copy.lines("harness/Cargo.toml", "strategy-"),
            copy.lines("harness/src/registry.rs", "entry::<strategy_"),
        ]
    };
    let before = lists(&copy);
    copy.makes(&["zone"]);
    copy.makes(&["able-fit"]);
    copy.makes(&["able"]);
    let new = [
        [
            "strategy-able = { path = \"strategies/able\" }",
            "strategy-able-fit = { path = \"strategies/able-fit\" }",
            "strategy-zone = { path = \"strategies/zone\" }",
        ],
        [
            "strategy-able = { workspace = true }",
            "strategy-able-fit = { workspace = true }",
            "strategy-zone = { workspace = true }",
        ],
        [
            "    entry::<strategy_able::Able>(),",
            "    entry::<strategy_able_fit::AbleFit>(),",
            "    entry::<strategy_zone::Zone>(),",
        ],
    ];
    for ((before, new), after) in before.into_iter().zip(new).zip(lists(&copy)) {
        let [first, second, last] = new.map(str::to_string);
        assert_eq!(after, [vec![first, second], before, vec![last]].concat());
    }
}

#[test]
fn the_copy_is_called_what_it_should_be() {
    let copy = Copy::new();
    let about = "best & first / of: all's";
    copy.makes(&["best-fit", about]);
    let code = copy.read("strategies/best-fit/src/lib.rs");
    assert!(code.starts_with(&format!("//! {about}.\n//!\n")), "{code}");
    for line in ["const NAME: &'static str = \"best-fit\";", "pub struct BestFit {", "impl Configure for BestFit {"] {
        assert!(code.contains(line), "no '{line}' in {code}");
    }
    assert!(code.contains(&format!("const ABOUT: &'static str = \"{about}\";")), "{code}");
    let manifest: toml::Table = copy.read("strategies/best-fit/Cargo.toml").parse().unwrap();
    assert_eq!(manifest["package"]["name"].as_str(), Some("strategy-best-fit"));
    assert_eq!(manifest["package"]["description"].as_str(), Some(about));
    assert!(copy.read("strategies/best-fit/tests/conformance.rs").contains("use strategy_best_fit::BestFit;"));
    assert!(copy.read("strategies/best-fit/README.md").starts_with("# best-fit\n"));
    for file in ["src/lib.rs", "tests/conformance.rs", "Cargo.toml"] {
        let text = copy.read(&format!("strategies/best-fit/{file}")).replace("direct = { ", "");
        assert!(!text.contains("Direct") && !text.contains("direct"), "{file}: {text}");
    }
}

#[test]
fn what_cannot_be_a_strategy_is_refused_and_changes_nothing() {
    let copy = Copy::new();
    let state = || FILES.map(|file| copy.read(file));
    let before = state();
    for (args, word) in [
        (&[][..], "usage: "),
        (&["a", "b", "c"], "usage: "),
        (&["direct"], "strategies/direct exists"),
        (&["Best"], "'Best' is no name"),
        (&["best_fit"], "'best_fit' is no name"),
        (&["../best"], "'../best' is no name"),
        (&["best-"], "'best-' is no name"),
        (&["9best"], "'9best' is no name"),
        (&["a-name-that-is-far-too-long"], "is no name"),
        (&["block"], "the type Block, a name that its code needs"),
        (&["self"], "the type Self"),
        (&["best", ""], "the line about it"),
        (&["best", "a \"quote\""], "the line about it"),
        (&["best", "two\nlines"], "the line about it"),
    ] {
        let output = copy.call(args);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}: {err}");
        assert!(err.starts_with("error: ") && err.contains(word), "{args:?}: {err}");
    }
    assert_eq!(state(), before);
    assert_eq!(fs::read_dir(copy.path("strategies")).unwrap().count(), 1);
}
