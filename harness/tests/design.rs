//! The picture of the crates in `docs/DESIGN.md`, held against the manifests.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use toml::Table;

fn manifest(folder: &Path) -> Table {
    let path = folder.join("Cargo.toml");
    fs::read_to_string(&path).unwrap().parse().unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The folders of all crates of the workspace, from its root.
fn crates(root: &Path) -> Vec<String> {
    let mut folders = Vec::new();
    for member in manifest(root)["workspace"]["members"].as_array().unwrap() {
        match member.as_str().unwrap().strip_suffix("/*") {
            None => folders.push(member.as_str().unwrap().to_string()),
            Some(parent) => {
                let names = fs::read_dir(root.join(parent)).unwrap().map(|entry| entry.unwrap().file_name());
                let names = names.map(|name| name.into_string().unwrap()).filter(|name| !name.starts_with('.'));
                folders.extend(names.map(|name| format!("{parent}/{name}")));
            }
        }
    }
    folders
}

/// What a crate may import from the workspace; its tests and examples may use the second list too.
fn allowed(folder: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match folder {
        "allocator-core" => (&[], &[]),
        "workload-gen" => (&["allocator-core"], &[]),
        // A preset of the other's engine.
        "strategies/expandable" => (&["allocator-core", "strategy-caching"], &["workload-gen"]),
        // Gets its memory from the other.
        "strategies/binning" => (&["allocator-core", "strategy-pool"], &["workload-gen"]),
        _ => (&["allocator-core"], &["workload-gen"]),
    }
}

#[test]
fn arrows_point_down_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = crates(&root);
    let name = |folder: &String| manifest(&root.join(folder))["package"]["name"].as_str().unwrap().to_string();
    let ours: BTreeSet<String> = folders.iter().map(name).collect();
    assert!(ours.contains("harness") && ours.len() >= 6, "{ours:?}");
    for folder in folders.iter().filter(|folder| *folder != "harness") {
        let manifest = manifest(&root.join(folder));
        let (always, in_tests) = allowed(folder);
        for (kind, more) in [("dependencies", &[][..]), ("build-dependencies", &[]), ("dev-dependencies", in_tests)] {
            let names = manifest.get(kind).and_then(toml::Value::as_table).into_iter().flat_map(Table::keys);
            for name in names.filter(|name| ours.contains(*name)) {
                let is_allowed = always.iter().chain(more).any(|other| other == name);
                assert!(is_allowed, "{folder} imports {name}, which docs/DESIGN.md does not draw");
            }
        }
    }
}
