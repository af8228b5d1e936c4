//! `/metrics` of the real binary, name by name.
//!
//! [`METRICS`] lists every metric with its type, its labels and the place that reaches it: a scenario below, or a test
//! that asserts the name itself. A name that only the source has fails, and so does one that only the table has.

mod one_node;
mod scrape;
mod table;
mod two_nodes;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use table::{Kind, METRICS, ReachedBy, find_metric};

/// Every awaited condition is met well before this.
const DEADLINE: Duration = Duration::from_secs(60);
const CHAIN_ID: u64 = 31_337;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Rust files of the shipped crates, without their tests.
fn shipped_sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("a folder") {
        folders.push(entry.expect("a folder can be listed").path().join("src"));
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("a folder can be listed").path();
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.expect("names are text");
            if path.is_dir() && name != "tests" {
                folders.push(path);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                found.push(path);
            }
        }
    }
    found
}

/// The string literals of a source that are metric names, wherever they are.
fn metric_names(source: &str) -> BTreeSet<&str> {
    let is_name = |text: &&str| {
        let mut characters = text.chars();
        text.starts_with("lanekeeper_")
            && !text.ends_with('_')
            && characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    source.split(['"', '{']).filter(is_name).collect()
}

/// The names that stand directly in a metric macro, with its kind.
fn names_in_macros(source: &str) -> Vec<(Kind, &str)> {
    let macros = [
        ("counter!(", Kind::Counter),
        ("gauge!(", Kind::Gauge),
        ("histogram!(", Kind::Histogram),
    ];
    let mut found = Vec::new();
    for (call, kind) in macros {
        let arguments = source.split(call).skip(1);
        let literals = arguments.filter_map(|text| text.trim_start().strip_prefix('"'));
        found.extend(literals.filter_map(|text| Some((kind, text.split('"').next()?))));
    }
    found
}

#[test]
fn every_metric_of_the_source_is_listed_with_the_test_that_reaches_it() {
    let planted = "counter!(\n  \"lanekeeper_planted_total\", \"kind\" => x); const A: &str = \"lanekeeper_b\";";
    let names: Vec<_> = metric_names(planted).into_iter().collect();
    assert_eq!(names, ["lanekeeper_b", "lanekeeper_planted_total"]);
    let in_macros = names_in_macros(planted);
    assert_eq!(in_macros, [(Kind::Counter, "lanekeeper_planted_total")]);

    let mut in_source = BTreeSet::new();
    for path in shipped_sources() {
        let source = fs::read_to_string(&path).unwrap();
        in_source.extend(metric_names(&source).into_iter().map(str::to_owned));
        for (kind, name) in names_in_macros(&source) {
            let listed = find_metric(name).map(|metric| metric.kind);
            assert_eq!(listed, Some(kind), "{name} in {}", path.display());
        }
    }
    let listed: BTreeSet<String> = METRICS
        .iter()
        .map(|metric| metric.name.to_owned())
        .collect();
    assert_eq!(listed.len(), METRICS.len(), "a name is listed twice");
    let unlisted: Vec<_> = in_source.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&in_source).collect();
    assert!(
        unlisted.is_empty() && gone.is_empty(),
        "in the source and not in METRICS: {unlisted:#?}; in METRICS and not in the source: {gone:#?}"
    );
    for metric in METRICS {
        let ReachedBy::Test(file) = metric.reached_by else {
            continue;
        };
        let text = fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let tests = text.split_once("#[cfg(test)]").map_or(&*text, |(_, it)| it);
        assert!(
            metric_names(tests).contains(metric.name),
            "{file} does not name {}",
            metric.name
        );
    }
}
