//! Rules about the code that no compiler checks.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A stranger reads no longer file than this.
const LINES_MAX: usize = 700;

/// The tables whose rows the fence guards. Who writes them is listed in docs/critical-writes.md.
const GUARDED: [&str; 6] = [
    "lane_event",
    "managed_tx",
    "signer_lease",
    "signer_nonce_cursor",
    "tx_attempt",
    "tx_wake",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files under these folders of the repository with one of these extensions.
fn files(folders: &[&str], extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("a folder can be listed").path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                folders.push(path);
            } else if extension.is_some_and(|extension| extensions.contains(&extension)) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "this test looks in the wrong place");
    found
}

/// How often a text writes to a table: `INTO t`, `UPDATE t`, `DELETE FROM t`, whatever the layout.
fn writes_to(text: &str, table: &str) -> usize {
    let text = text.to_lowercase();
    let words: Vec<&str> = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let is_write = |three: &&[&str]| {
        let [first, second, third] = three else {
            return false;
        };
        *third == table
            && (*second == "into" || *second == "update" || (*first, *second) == ("delete", "from"))
    };
    words.windows(3).filter(is_write).count()
}

#[test]
fn guarded_rows_are_written_by_the_gate_only() {
    let sql_of_rust = "const A: &str = \"INSERT OR IGNORE INTO \\\n   managed_tx (a)\";";
    let seen = writes_to(&sql_of_rust.repeat(2), "managed_tx");
    assert_eq!(seen, 2, "this test sees nothing");

    let mut written = BTreeSet::new();
    for path in shipped_sql() {
        let text = fs::read_to_string(&path).unwrap();
        let place = path.strip_prefix(root()).unwrap().display().to_string();
        for table in GUARDED {
            let count = writes_to(&text, table);
            if count > 0 {
                written.insert(format!("| `{place}` | `{table}` | {count} |"));
            }
        }
    }
    let page = fs::read_to_string(root().join("docs/critical-writes.md")).unwrap();
    let told: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with("| `crates/"))
        .map(|line| line.split(" | ").take(3).collect::<Vec<_>>().join(" | ") + " |")
        .collect();
    let strays: Vec<_> = written.difference(&told).collect();
    let gone: Vec<_> = told.difference(&written).collect();
    assert!(
        strays.is_empty() && gone.is_empty(),
        "docs/critical-writes.md lists every critical write.\nNot listed (does it pass the gate?): \
         {strays:#?}\nListed and not there: {gone:#?}"
    );
}

/// What is compiled into the program and may hold SQL. Tests fill tables by hand.
fn shipped_sql() -> Vec<PathBuf> {
    let is_shipped = |path: &PathBuf| {
        let in_tests = path
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "sim" | "rig")));
        let name = path.file_name().and_then(|name| name.to_str());
        let is_test = matches!(name, Some("seed_views.rs" | "plans.rs" | "tidy.rs"));
        !in_tests && !is_test
    };
    let all = files(&["crates"], &["rs", "sql"]).into_iter();
    all.filter(is_shipped).collect()
}

#[test]
fn files_are_short_enough_to_be_read() {
    let long: Vec<String> = files(&["crates", "examples", "proof"], &["rs"])
        .into_iter()
        .filter_map(|path| {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            (lines > LINES_MAX).then(|| format!("{} has {lines} lines", path.display()))
        })
        .collect();
    assert!(long.is_empty(), "over {LINES_MAX} lines: {long:#?}");
}

#[test]
fn nothing_is_unfinished_or_switched_off() {
    // Spelled apart, so that this file does not find itself.
    let marks = ["todo", "unimplemented"].map(|word| format!("{word}!("));
    let ignored = ["#[ig", "nore"].concat();
    let mut found = Vec::new();
    for path in files(&["crates", "examples", "proof"], &["rs"]) {
        let text = fs::read_to_string(&path).unwrap();
        for mark in marks.iter().chain([&ignored]) {
            if text.contains(mark.as_str()) {
                found.push(format!("{} has {mark}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "unfinished: {found:#?}");
}

#[test]
fn proofs_can_be_run_and_are_told_of() {
    let Ok(entries) = fs::read_dir(root().join("proof")) else {
        return;
    };
    let page = fs::read_to_string(root().join("docs/proofs.md")).ok();
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        // Proofs are scripts named by issue and number: `02-1-first-transaction`.
        if !path.is_file() || !name.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert!(mode & 0o111 != 0, "{name} is not executable");
        if let Some(page) = &page {
            assert!(
                page.contains(name),
                "docs/proofs.md does not tell of {name}"
            );
        }
    }
}
