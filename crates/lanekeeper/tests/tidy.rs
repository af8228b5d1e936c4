//! Rules about the code that no compiler checks.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The longest file.
const LINES_MAX: usize = 700;

/// The tables whose rows are critical, of the store and of the nonce component. docs/critical-writes.md lists every
/// statement that writes them.
const GUARDED: [&str; 9] = [
    "lane_event",
    "managed_tx",
    "nonce_block_holder",
    "nonce_lane",
    "nonce_reservation",
    "queued_tx",
    "signer_lease",
    "signer_nonce_cursor",
    "tx_attempt",
];

/// All other tables. docs/critical-writes.md explains why they are not critical.
const UNGUARDED: [&str; 8] = [
    "chain_header",
    "event_feed",
    "feed_head",
    "lane",
    "lane_feed",
    "node",
    "store_identity",
    "store_restore",
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
    assert!(
        !found.is_empty(),
        "no file found: the test runs in the wrong folder"
    );
    found
}

/// Counts `INTO t`, `UPDATE t` and `DELETE FROM t`, in any layout.
fn count_writes(text: &str, table: &str) -> usize {
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
fn guarded_tables_are_written_only_as_documented() {
    let sql_of_rust = "const A: &str = \"INSERT OR IGNORE INTO \\\n   managed_tx (a)\";";
    let seen = count_writes(&sql_of_rust.repeat(2), "managed_tx");
    assert_eq!(seen, 2, "the scanner finds no statement");

    let mut written = BTreeSet::new();
    for path in shipped_sql() {
        let text = fs::read_to_string(&path).unwrap();
        let place = path.strip_prefix(root()).unwrap().display().to_string();
        for table in GUARDED {
            let count = count_writes(&text, table);
            if count > 0 {
                written.insert(format!("| `{place}` | `{table}` | {count} |"));
            }
        }
    }
    let page = fs::read_to_string(root().join("docs/critical-writes.md")).unwrap();
    let documented: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with("| `crates/"))
        .map(|line| line.split(" | ").take(3).collect::<Vec<_>>().join(" | ") + " |")
        .collect();
    let strays: Vec<_> = written.difference(&documented).collect();
    let missing: Vec<_> = documented.difference(&written).collect();
    assert!(
        strays.is_empty() && missing.is_empty(),
        "docs/critical-writes.md must list every critical write.\nNot listed (does it pass the gate?): \
         {strays:#?}\nListed, but not in the code: {missing:#?}"
    );
}

/// A table that is in neither list would be written unnoticed.
#[test]
fn every_table_is_known_to_be_critical_or_not() {
    let mut created = BTreeSet::new();
    for path in files(&["crates"], &["sql"]) {
        let text = fs::read_to_string(&path).unwrap();
        let names = text
            .lines()
            .filter_map(|line| line.strip_prefix("CREATE TABLE ")?.split(' ').next());
        created.extend(names.map(str::to_owned));
    }
    let known: BTreeSet<String> = GUARDED
        .iter()
        .chain(&UNGUARDED)
        .map(ToString::to_string)
        .collect();
    assert_eq!(created, known);
    let page = fs::read_to_string(root().join("docs/critical-writes.md")).unwrap();
    for table in known {
        assert!(page.contains(&format!("`{table}`")), "{table}");
    }
}

/// Files that are compiled into the program and may contain SQL. Tests write tables directly.
fn shipped_sql() -> Vec<PathBuf> {
    let is_shipped = |path: &PathBuf| {
        let in_tests = path
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "sim" | "rig")));
        let name = path.file_name().and_then(|name| name.to_str());
        let is_test = matches!(name, Some("views.rs" | "plans.rs" | "tidy.rs"));
        !in_tests && !is_test
    };
    let all = files(&["crates"], &["rs", "sql"]).into_iter();
    all.filter(is_shipped).collect()
}

#[test]
fn files_are_not_too_long() {
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
fn nothing_is_unfinished_or_ignored() {
    // Split, so that the test does not find its own source.
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
fn proofs_are_executable_and_documented() {
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
                "docs/proofs.md does not mention {name}"
            );
        }
    }
}
