//! `harness plot` from outside: which files it makes, that they are the same each time, and how it says no.
#![cfg(feature = "figures")]

mod common;

#[cfg(unix)]
use common::shell;
use common::{fails, harness, succeeds};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A folder that holds a copy of a small run: two workloads on three strategies, one of them out of memory twice.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("run")).unwrap();
    for file in ["run.csv", "timeline.csv", "peak.csv"] {
        fs::copy(data("tiny_run").join(file), folder.path().join("run").join(file)).unwrap();
    }
    folder
}

fn edit(folder: &TempDir, file: &str, change: impl Fn(&str) -> String) {
    let path = folder.path().join("run").join(file);
    let text = fs::read_to_string(&path).unwrap();
    let changed = change(&text);
    assert_ne!(changed, text, "the change to {file} changes nothing");
    fs::write(path, changed).unwrap();
}

fn files(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[test]
fn drawings_are_what_they_were() {
    let folder = folder();
    succeeds(&folder, &["plot", "run", "--format", "svg", "-o", "drawn"]);
    let (drawn, golden) = (folder.path().join("drawn"), data("tiny_run/figures"));
    assert_eq!(files(&drawn), files(&golden));
    for name in files(&golden) {
        let read = |folder: &Path| fs::read_to_string(folder.join(&name)).unwrap();
        let same = read(&drawn) == read(&golden);
        assert!(same, "{name} changed; if that is meant, look at it and draw tests/data/tiny_run again");
    }
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let folder = folder();
    for _ in 0..3 {
        succeeds(&folder, &["plot", "run", "-o", "a"]);
        succeeds(&folder, &["plot", "run", "-o", "b"]);
        assert_eq!(files(&folder.path().join("a")).len(), 24);
        for name in files(&folder.path().join("a")) {
            let read = |place: &str| fs::read(folder.path().join(place).join(&name)).unwrap();
            assert!(read("a") == read("b"), "{name} is not the same each time");
        }
    }
}

#[test]
fn a_pdf_has_its_font_and_a_png_its_size() {
    let folder = folder();
    succeeds(&folder, &["plot", "run", "--only", "overhead"]);
    let read = |name: &str| fs::read(folder.path().join("run/figures").join(name)).unwrap();
    let pdf = read("overhead-column.pdf");
    let holds = |word: &str| pdf.windows(word.len()).any(|bytes| bytes == word.as_bytes());
    assert!(holds("+Inter-Regular") && holds("/FontFile2") && holds("/ToUnicode"), "text is no text");
    assert!(holds("/MediaBox [0 0 237.6"), "3.3 inches are 237.6 points");
    assert!(!holds("/CreationDate") && !holds("/ID"), "something tells when it was made");
    let png = read("overhead-text.png");
    assert_eq!(u32::from_be_bytes(png[16..20].try_into().unwrap()), 2100, "7 inches at 300 dots");
    let size = png.windows(4).position(|bytes| bytes == b"pHYs").unwrap() + 4;
    assert_eq!(png[size..size + 9], [0, 0, 46, 35, 0, 0, 46, 35, 1], "11811 dots a metre");
}

#[test]
fn flags_choose_what_is_drawn() {
    let folder = folder();
    let out = succeeds(&folder, &["plot", "run"]);
    assert_eq!(out.lines().count(), 25);
    assert!(
        out.starts_with("run/figures/timeline-column.svg\n") && out.ends_with("24 files in run/figures\n"),
        "{out}"
    );
    let drawn = |args: &[&str]| {
        let out = TempDir::new().unwrap();
        succeeds(&folder, &[&["plot", "run", "-o", out.path().to_str().unwrap()], args].concat());
        files(out.path())
    };
    let one = ["--only", "timeline", "--format", "pdf", "--width", "text"];
    assert_eq!(drawn(&one), names(&["timeline-text.pdf"]));
    let two = ["--only", "timeline", "--only", "overhead", "--format", "svg", "--format", "svg", "--width", "column"];
    assert_eq!(drawn(&two), names(&["overhead-column.svg", "timeline-column.svg"]));
    let map = ["--only", "map", "-w", "^st", "--format", "svg", "--width", "column"];
    assert_eq!(drawn(&map), names(&["map-streams-column.svg"]));
    let svg = |args: &[&str]| {
        succeeds(&folder, &[&["plot", "run", "-o", "s", "--format", "svg"], args].concat());
        fs::read_to_string(folder.path().join("s/timeline-column.svg")).unwrap()
    };
    let all = svg(&[]);
    assert!(all.contains(">direct<") && all.contains(">squeeze<") && all.contains("#009e73"));
    let some = svg(&["-S", "^direct$", "-W", "squeeze"]);
    assert!(!some.contains(">direct<") && !some.contains(">squeeze<") && some.contains(">streams<"));
    assert!(some.contains("#009e73"), "a strategy keeps its colour when another is left out");
}

#[test]
fn runs_of_several_folders_come_into_one_picture() {
    let folder = folder();
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    for file in ["run.csv", "timeline.csv", "peak.csv"] {
        let text = fs::read_to_string(folder.path().join("run").join(file)).unwrap();
        let id = |text: String, old: &str| text.replace(old, "0123456789abcdef");
        let text = text.lines().filter(|line| line.starts_with("run,") || line.starts_with("d2c7ffd580f91851"));
        let text = id(text.collect::<Vec<_>>().join("\n") + "\n", "d2c7ffd580f91851");
        fs::write(other.join(file), text.replace("\"\"max_split_size_mb\"\":null", "\"\"max_split_size_mb\"\":20"))
            .unwrap();
    }
    fails(&folder, &["plot", "run", "other"], 2, &["-o DIR"]);
    succeeds(&folder, &["plot", "run", "other", "-o", "both", "--only", "overhead", "--format", "svg"]);
    let svg = fs::read_to_string(folder.path().join("both/overhead-text.svg")).unwrap();
    for word in [">caching<", ">caching max_split_size_mb=20<", ">not run<", ">oom at event 3<", ">+109.7<"] {
        assert!(svg.contains(word), "{word} is not in {svg}");
    }
}

/// The small run with more strategies: copies of `direct` with other names, the last of which takes 50 times as much.
fn crowd(folder: &TempDir, count: usize) {
    let is_direct = |line: &str, id: &str| line.starts_with(id);
    let ids = ["48d220195862280b", "3d2345eb37a5cf79"];
    for file in ["run.csv", "timeline.csv", "peak.csv"] {
        edit(folder, file, |text| {
            let mut all = text.to_string();
            for nth in 0..count {
                for (workload, id) in ids.iter().enumerate() {
                    for line in text.lines().filter(|line| is_direct(line, id)) {
                        let new = line.replacen(id, &format!("{workload:08x}{nth:08x}"), 1);
                        let new = new.replace(",direct,", &format!(",copy{nth},"));
                        let greedy = nth + 1 == count && workload == 0;
                        let new = if greedy { new.replace("29000000", "1450000000") } else { new };
                        all.push_str(&(new + "\n"));
                    }
                }
            }
            all
        });
    }
}

#[test]
fn many_strategies_are_a_matrix_and_an_outlier_hides_nothing() {
    let folder = folder();
    let read = |name: &str| fs::read_to_string(folder.path().join("run/figures").join(name)).unwrap();
    crowd(&folder, 6);
    succeeds(&folder, &["plot", "run"]);
    for width in ["column", "text"] {
        let overhead = read(&format!("overhead-{width}.svg"));
        for word in [">caching<", ">copy5<", ">oom at event 3<", ">1000<"] {
            assert!(overhead.contains(word), "{word} is not in {overhead}");
        }
        assert_eq!(overhead.matches(">copy5<").count(), 1, "a row and no legend");
        assert!(overhead.contains(">+4900"), "{overhead}");
        let timeline = read(&format!("timeline-{width}.svg"));
        assert!(timeline.contains(">copy5: 1.35 GiB<"), "{timeline}");
        assert!(!timeline.contains(">1.0<") && timeline.contains(">0.06<"), "the axis shows the others: {timeline}");
    }
    let few = ["-s", "^(caching|direct|expandable|copy5)$"];
    succeeds(&folder, &[&["plot", "run", "--only", "overhead", "--format", "svg"], &few[..]].concat());
    let bars = read("overhead-column.svg");
    assert!(bars.contains(">+4900<") && bars.contains(">+109.7<") && !bars.contains(">2000<"), "{bars}");
}

#[test]
fn without_a_folder_the_newest_run_is_drawn() {
    let folder = folder();
    fails(&folder, &["plot"], 6, &["there is no runs/run-NNN", "harness run"]);
    fs::create_dir_all(folder.path().join("runs/run-002")).unwrap();
    fs::rename(folder.path().join("run"), folder.path().join("runs/run-010")).unwrap();
    let out = succeeds(&folder, &["plot", "--only", "overhead", "--width", "text", "--format", "svg"]);
    assert_eq!(out, "runs/run-010/figures/overhead-text.svg\n1 file in runs/run-010/figures\n");
}

#[test]
fn what_is_not_there_is_named() {
    let folder = folder();
    fails(&folder, &["plot", "nowhere"], 6, &["nowhere"]);
    fails(&folder, &["plot", "run", "-s", "none"], 3, &["-s and -S leave no strategy", "caching, direct, expandable"]);
    fails(&folder, &["plot", "run", "-W", "."], 3, &["-w and -W leave no workload", "streams, squeeze"]);
    fails(&folder, &["plot", "run", "--only", "pie"], 2, &["timeline, overhead, map"]);
    fails(&folder, &["plot", "run", "--width", "wide"], 2, &["column, text"]);
    fails(&folder, &["plot", "run", "-o", "run/run.csv/figures"], 7, &["cannot write run/run.csv/figures"]);
    fails(&folder, &["plot", "run/run.csv"], 6, &["run/run.csv", "name the folder of a run"]);
    fails(&folder, &["plot", "-"], 6, &["cannot read -: ", "name the folder of a run"]);
    fails(&folder, &["plot", "run", "-s", "^caching$", "-w", "none"], 3, &["-w and -W leave no workload"]);
    assert!(!folder.path().join("run/figures").exists());

    fs::remove_file(folder.path().join("run/peak.csv")).unwrap();
    fails(&folder, &["plot", "run", "--only", "map"], 6, &["cannot read run/peak.csv"]);
    let done = harness(&folder, &["plot", "run", "--format", "svg"]);
    assert_eq!((done.code, done.out.lines().count()), (0, 5), "{}", done.err);
    assert!(done.err.starts_with("note: no map: cannot read run/peak.csv"), "{}", done.err);
}

#[test]
fn files_of_another_make_are_refused_by_name_and_place() {
    let cases: [(&str, &str, &str, &[&str]); 6] = [
        ("run.csv", "reserved_peak_bytes", "reserved_bytes", &["run/run.csv", "'reserved_peak_bytes'"]),
        ("timeline.csv", "load_max_bytes", "load", &["run/timeline.csv", "'load_max_bytes'", "make it again"]),
        ("timeline.csv", ",0,1,36700,", ",0,one,36700,", &["run/timeline.csv", "line 2", "'one'", "'events'"]),
        ("peak.csv", "pending", "lost", &["run/peak.csv", "line 2", "'lost'", "'state'"]),
        ("peak.csv", ",0,0,1\n", ",0,0\n", &["run/peak.csv", "line 2 has 7 cells", "cut short"]),
        ("run.csv", "\"{\"\"conf", "\"{\"conf", &["run/run.csv"]),
    ];
    for (file, old, new, words) in cases {
        let folder = folder();
        edit(&folder, file, |text| text.replacen(old, new, 1));
        let figure = if file == "peak.csv" { "map" } else { "timeline" };
        fails(&folder, &["plot", "run", "--only", figure], 6, words);
        fails(&folder, &["plot", "run"], 6, words);
    }
    let folder = folder();
    fs::write(folder.path().join("run/machine.toml"), "format = 1\n").unwrap();
    succeeds(&folder, &["plot", "run", "--only", "overhead", "--format", "svg"]);
    fs::write(folder.path().join("run/machine.toml"), "format = 99\n").unwrap();
    fails(&folder, &["plot", "run"], 6, &["run/machine.toml", "format 99"]);
}

#[test]
fn a_run_without_an_audit_has_no_figures() {
    let folder = TempDir::new().unwrap();
    succeeds(&folder, &["run", "-s", "direct", "-w", "cuda", "--pass", "time", "--repeats", "1", "-o", "t"]);
    assert!(!folder.path().join("t/figures").exists());
    fails(&folder, &["plot", "t"], 6, &["t/timeline.csv", "t/run.csv", "--pass time"]);
}

#[test]
fn a_map_holds_what_is_reserved() {
    let folder = TempDir::new().unwrap();
    succeeds(&folder, &["run", "-w", "cuda|multi", "--pass", "audit", "-o", "r"]);
    let rows = |file: &str, columns: [&str; 3]| -> Vec<[String; 3]> {
        let mut reader = csv::Reader::from_path(folder.path().join("r").join(file)).unwrap();
        let header = reader.headers().unwrap().clone();
        let places = columns.map(|column| header.iter().position(|name| name == column).unwrap());
        reader.records().map(|row| row.unwrap()).map(|row| places.map(|at| row[at].to_string())).collect()
    };
    let map = rows("peak.csv", ["run", "state", "size_bytes"]);
    let runs = rows("run.csv", ["run", "reserved_peak_bytes", "requested_at_reserved_peak_bytes"]);
    assert!(runs.len() >= 6, "{runs:?}");
    for [run, reserved, requested] in runs {
        let sum = |states: &[&str]| -> u64 {
            let pieces = map.iter().filter(|[of, state, _]| *of == run && states.contains(&state.as_str()));
            pieces.map(|[.., size]| size.parse::<u64>().unwrap()).sum()
        };
        assert_eq!(sum(&["live", "pending", "cached"]), reserved.parse().unwrap(), "{run}");
        assert!(sum(&["live", "pending"]) >= requested.parse().unwrap(), "{run}");
    }
}

/// A limit on the size of files stands for a full disk.
#[test]
#[cfg(unix)]
fn a_failed_drawing_loses_nothing() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("tiny.trace"), "gpu-alloc-trace 1\na 0 1000 0\nf 0\n").unwrap();
    let script = "trap '' XFSZ; ulimit -f 8; exec $H run --trace tiny.trace -s direct --pass audit -o r";
    let done = shell(&folder, script);
    assert_eq!(done.code, 7, "{}", done.err);
    assert!(done.err.contains("cannot write r/figures/"), "{}", done.err);
    assert!(done.out.contains("the rows are in r\n"));
    let drawn = files(&folder.path().join("r/figures"));
    assert!(drawn.iter().all(|name| name.ends_with(".svg")), "half a file: {drawn:?}");

    succeeds(&folder, &["plot", "r"]);
    let all = files(&folder.path().join("r/figures"));
    assert_eq!(all.len(), 18);
    assert_eq!(shell(&folder, "trap '' XFSZ; ulimit -f 8; exec $H plot r").code, 7);
    assert_eq!(files(&folder.path().join("r/figures")), all, "what was there stays");
}

#[test]
fn a_run_draws_itself() {
    let folder = TempDir::new().unwrap();
    let run = ["run", "-w", "cuda", "-s", "^(caching|direct|expandable)$", "--pass", "audit"];
    let out = succeeds(&folder, &[&run[..], &["-o", "r"]].concat());
    assert!(out.ends_with("the figures are in r/figures\n"), "{out}");
    let all = ["timeline", "overhead"].into_iter().flat_map(|figure| {
        let widths = ["column", "text"].into_iter();
        widths.flat_map(move |width| ["svg", "pdf", "png"].map(|ending| format!("{figure}-{width}.{ending}")))
    });
    assert_eq!(files(&folder.path().join("r/figures")), all.collect());
    assert_eq!(succeeds(&folder, &[&run[..], &["-o", "c", "--csv", "-"]].concat()).lines().count(), 4);
    assert!(folder.path().join("c/figures/timeline-text.pdf").exists());
    let maps = succeeds(&folder, &["plot", "r", "--only", "map", "--format", "svg"]);
    assert!(maps.contains("r/figures/map-cudagraph.default-text.svg\n"), "{maps}");
}

/// Odd data: names that are long, hostile or alike, nothing at all, numbers at their ends.
#[test]
fn odd_runs_are_drawn_too() {
    let folder = folder();
    let long = "a-very_long.name/of a workload that & nobody <should> have".repeat(5);
    let control = "tab\there \u{1}\u{202e}漢字";
    edit(&folder, "run.csv", |text| {
        text.replace(",streams,", &format!(",{long},")).replace(",squeeze,", &format!(",{control},"))
    });
    edit(&folder, "timeline.csv", |text| text.replace(",44040192", &format!(",{}", u64::MAX)));
    edit(&folder, "timeline.csv", |text| text.replace(",0,1,36700,", &format!(",{},1,36700,", u64::MAX)));
    edit(&folder, "run.csv", |text| text.replace(",oom,3,", &format!(",oom,{},", u64::MAX)));
    edit(&folder, "peak.csv", |text| text.replace(",20971520,cached", &format!(",{},cached", u64::MAX)));
    succeeds(&folder, &["plot", "run"]);
    let drawn = files(&folder.path().join("run/figures"));
    assert_eq!(drawn.len(), 24);
    assert!(drawn.iter().all(|name| name.len() < 130 && !name.contains('/') && name.is_ascii()), "{drawn:?}");

    let headers = |text: &str| text.lines().next().unwrap().to_string() + "\n";
    edit(&folder, "timeline.csv", headers);
    edit(&folder, "peak.csv", headers);
    succeeds(&folder, &["plot", "run"]);
    edit(&folder, "run.csv", headers);
    fails(&folder, &["plot", "run"], 3, &["there is no row"]);
}
