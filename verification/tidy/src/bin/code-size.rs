//! `code-size BASE [HEAD [REPORT]]`: files and lines of two commits (without HEAD: of the working tree), by what ships, what
//! is a tool and what verifies; the largest structs; public items. Shipped code must not have grown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::json;
use tidy::{SourceFile, SourceTree, repository_root};

const ROLES: [&str; 3] = ["ships", "tools", "verification"];

#[derive(Default)]
struct Role {
    files: usize,
    lines: usize,
}

/// What was counted of one tree.
struct Count {
    roles: BTreeMap<&'static str, Role>,
    /// Structs of `domain` and `engine` by their number of fields, the largest first.
    structs: Vec<(usize, String)>,
    public_items: usize,
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(base) = arguments.next() else {
        eprintln!(
            "usage: code-size BASE [HEAD [REPORT.json]], for example: code-size 270fffd 6b054a9"
        );
        return ExitCode::from(2);
    };
    let (head, report) = (arguments.next(), arguments.next());
    let root = repository_root();
    let before = Count::of(&tree_at(&root, &base));
    let after = match &head {
        Some(head) => Count::of(&tree_at(&root, head)),
        None => Count::of(&SourceTree::read(&root)),
    };
    for role in ROLES {
        let (old, new) = (&before.roles[role], &after.roles[role]);
        println!(
            "| {role} | {} files, {} lines | {} files, {} lines |",
            old.files, old.lines, new.files, new.lines
        );
    }
    println!(
        "| largest structs | {} | {} |",
        before.largest(),
        after.largest()
    );
    println!(
        "| public items of what ships | {} | {} |",
        before.public_items, after.public_items
    );
    let (old, new) = (before.roles["ships"].lines, after.roles["ships"].lines);
    let holds = new <= old;
    let head = head.as_deref().unwrap_or("the working tree");
    let figure = format!("{old} lines of shipped code at {base}, {new} at {head}");
    if let Some(path) = report {
        let facts = json!({
            "proof": "13-1-size", "holds": holds, "figure": figure,
            "before": before.json(), "after": after.json(),
        });
        std::fs::write(path, format!("{facts:#}\n")).expect("the report can be written");
    }
    let verdict = if holds { "HOLDS" } else { "FAILS" };
    println!("{verdict} 13-1-size: {figure}");
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The source files of a commit.
fn tree_at(root: &Path, commit: &str) -> SourceTree {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(root)
            .output();
        let output = output.expect("git runs");
        assert!(output.status.success(), "git {arguments:?} failed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let names = git(&["ls-tree", "-r", "--name-only", commit]);
    let source = names.lines().filter(|name| is_source(name));
    let files = source.map(|path| SourceFile {
        path: path.to_owned(),
        text: git(&["show", &format!("{commit}:{path}")]),
    });
    SourceTree {
        files: files.collect(),
    }
}

fn is_source(path: &str) -> bool {
    [".rs", ".sql", ".lua"]
        .iter()
        .any(|ending| path.ends_with(ending))
}

/// The files of modules that are declared as `#[cfg(test)] mod NAME;`.
fn test_modules(tree: &SourceTree) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in tree.files.iter().filter(|file| file.has_extension("rs")) {
        let path = Path::new(&file.path);
        let is_folder_module = ["mod.rs", "lib.rs", "main.rs"]
            .iter()
            .any(|name| path.ends_with(name));
        let folder = match is_folder_module {
            true => path.parent().unwrap_or(path).to_path_buf(),
            false => path.with_extension(""),
        };
        for declared in file.text.split("#[cfg(test)]\nmod ").skip(1) {
            if let Some((name, _)) = declared.split_once(';')
                && name.chars().all(|c| c.is_alphanumeric() || c == '_')
            {
                let module = folder.join(name);
                found.insert(module.with_extension("rs").to_string_lossy().into_owned());
                found.insert(module.join("mod.rs").to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// The role of a file, in the layout before and after crates were sorted by audience.
fn role_of(file: &SourceFile, test_modules: &BTreeSet<String>) -> &'static str {
    let is_in = |folders: &[&str]| folders.iter().any(|folder| file.is_in(folder));
    let tests_only = ["crates/sim", "crates/rig", "crates/fuzz", "crates/probe"];
    if !is_in(&["crates", "tools"])
        || file.is_test()
        || test_modules.contains(&file.path)
        || is_in(&tests_only)
    {
        "verification"
    } else if is_in(&[
        "tools",
        "crates/chain/src/devchain",
        "crates/lanekeeper/src/bench",
    ]) {
        "tools"
    } else {
        "ships"
    }
}

/// The source without the unit tests at its end.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {")
        .map_or(text, |at| &text[..at])
}

impl Count {
    fn of(tree: &SourceTree) -> Self {
        let mut roles: BTreeMap<&'static str, Role> = BTreeMap::new();
        let mut structs = Vec::new();
        let mut public_items = 0;
        let test_modules = test_modules(tree);
        for file in tree.files.iter().filter(|file| is_source(&file.path)) {
            let role = role_of(file, &test_modules);
            let own = without_tests(&file.text);
            let shipped = if role == "verification" {
                file.text.as_str()
            } else {
                own
            };
            let count = roles.entry(role).or_default();
            count.files += 1;
            count.lines += shipped.lines().count();
            let unit_tests = file.text.lines().count() - shipped.lines().count();
            roles.entry("verification").or_default().lines += unit_tests;
            if role == "ships" && file.has_extension("rs") {
                let is_public = |line: &&str| line.trim_start().starts_with("pub ");
                public_items += own.lines().filter(is_public).count();
                structs.extend(structs_of(file));
            }
        }
        structs.sort_by(|a, b| b.cmp(a));
        Self {
            roles,
            structs,
            public_items,
        }
    }

    fn largest(&self) -> String {
        let largest = self.structs.iter().take(5);
        let largest: Vec<String> = largest
            .map(|(fields, name)| format!("{name} {fields}"))
            .collect();
        largest.join(", ")
    }

    fn json(&self) -> serde_json::Value {
        let roles = self.roles.iter();
        let roles: serde_json::Map<String, serde_json::Value> = roles
            .map(|(name, role)| {
                (
                    (*name).to_owned(),
                    json!({"files": role.files, "lines": role.lines}),
                )
            })
            .collect();
        json!({"roles": roles, "largestStructs": self.largest(), "publicItems": self.public_items})
    }
}

fn structs_of(file: &SourceFile) -> Vec<(usize, String)> {
    if !file.is_in("crates/domain") && !file.is_in("crates/engine") {
        return Vec::new();
    }
    let parsed = syn::parse_file(&file.text).expect("it compiles");
    let mut structs = Vec::new();
    for item in parsed.items {
        if let syn::Item::Struct(item) = item {
            structs.push((item.fields.len(), item.ident.to_string()));
        }
    }
    structs
}
