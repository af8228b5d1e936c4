//! Banned words: what an engineer of this field could not understand without a glossary of ours.
//!
//! Identifiers are split into their words (`told_reorg`, `ToldReorg` → told, reorg), so that a banned
//! word is found inside a longer name too.

use std::collections::BTreeSet;
use std::str::FromStr as _;

use proc_macro2::{TokenStream, TokenTree};

use crate::comments::prose_of;
use crate::{SourceFile, SourceTree};

/// Banned inside identifiers and file names, with the word of the field that replaces each.
const BANNED: &[(&str, &str)] = &[
    ("bell", "wakeup"),
    ("books", "ledger"),
    ("borrower", "holder"),
    ("dealt", "allocated"),
    ("deaf", "unreachable"),
    ("deed", "effect digest"),
    ("doubtful", "contested"),
    ("errand", "routed request"),
    ("fears", "suspect"),
    ("hindered", "blocked"),
    ("hindrance", "blocker"),
    ("lender", "reservations"),
    ("lending", "reserving"),
    ("lends", "reserves"),
    ("lent", "reserved"),
    ("loan", "reservation"),
    ("loans", "reservations"),
    ("nobody", "none"),
    ("rung", "notified"),
    ("said", "reported"),
    ("somebody", "the thing's own name"),
    ("stint", "allocation block"),
    ("tells", "emits, reports"),
    ("told", "emitted, reported"),
    ("unheard", "unreachable"),
    ("unsettled", "unreconciled"),
    ("went", "outcome"),
    ("whoever", "the thing's own name"),
    ("wish", "payload view"),
];

/// Banned as the whole name of a type: no noun that stands alone.
const BANNED_TYPES: &[&str] = &[
    "Again", "Ask", "At", "Away", "Beside", "Care", "Fate", "Hop", "Look", "Moment", "Out",
    "Right", "Said", "Seat", "Sight", "Told", "Went", "What", "Wish", "Word", "Words",
];

/// Banned as the whole name of a function: it cannot be searched for, or is no verb with an object.
const BANNED_FUNCTIONS: &[&str] = &[
    "ask",
    "care",
    "conclude",
    "deal",
    "from_word",
    "go",
    "here",
    "hurry",
    "let_go",
    "let_out",
    "look",
    "say",
    "tell",
    "there",
    "word",
];

/// Banned in comments and documents: they name a person where the thing has a name.
const BANNED_IN_PROSE: &[&str] = &[
    "anybody", "he", "him", "his", "nobody", "somebody", "whoever", "whom", "whomever",
];

/// Where the words are quoted on purpose.
const EXEMPT: &[&str] = &[
    "verification/tidy/src/vocabulary.rs",
    "docs/adr/",
    "CHANGELOG.md",
];

fn is_exempt(file: &SourceFile) -> bool {
    EXEMPT.iter().any(|exempt| file.path.starts_with(exempt))
}

/// Banned words in names: identifiers of Rust source, and the names of all files.
pub fn banned_names(tree: &SourceTree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| !is_exempt(file)) {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let stem = name.split('.').next().unwrap_or_default();
        found.extend(banned_in(stem).map(|why| format!("{}: file name: {why}", file.path)));
        if file.has_extension("rs") {
            found.extend(banned_identifiers(file));
        }
    }
    found
}

fn banned_identifiers(file: &SourceFile) -> Vec<String> {
    let tokens = TokenStream::from_str(&file.text);
    let tokens = tokens.unwrap_or_else(|error| panic!("{} does not parse: {error}", file.path));
    let mut names = Names::default();
    names.collect(tokens);
    let words = names.all.iter().flat_map(|name| banned_in(name));
    let types = names
        .types
        .iter()
        .filter(|name| BANNED_TYPES.contains(&name.as_str()));
    let types = types.map(|name| format!("type `{name}` is no noun that stands alone"));
    let functions = names.functions.iter();
    let functions = functions.filter(|name| BANNED_FUNCTIONS.contains(&name.as_str()));
    let functions = functions.map(|name| format!("function `{name}` is no verb with an object"));
    let all = words.chain(types).chain(functions);
    all.map(|why| format!("{}: {why}", file.path)).collect()
}

/// The banned words of one name.
fn banned_in(name: &str) -> impl Iterator<Item = String> {
    let words = words_of(name);
    let banned = BANNED.iter().filter(move |(word, _)| words.contains(*word));
    banned.map(move |(word, instead)| format!("`{name}` has \"{word}\": use \"{instead}\""))
}

fn words_of(name: &str) -> BTreeSet<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase() || c.is_numeric();
    }
    words.into_iter().filter(|word| !word.is_empty()).collect()
}

/// The identifiers of a file: all of them, and those that name a type or a function where they are
/// defined.
#[derive(Default)]
struct Names {
    all: BTreeSet<String>,
    types: BTreeSet<String>,
    functions: BTreeSet<String>,
}

impl Names {
    fn collect(&mut self, tokens: TokenStream) {
        let mut before = String::new();
        for token in tokens {
            if let TokenTree::Ident(ident) = &token {
                let name = ident.to_string();
                match before.as_str() {
                    "struct" | "enum" | "trait" | "type" => drop(self.types.insert(name.clone())),
                    "fn" => drop(self.functions.insert(name.clone())),
                    _ => {}
                }
                self.all.insert(name.clone());
                before = name;
                continue;
            }
            before.clear();
            if let TokenTree::Group(group) = token {
                self.collect(group.stream());
            }
        }
    }
}

/// Banned words in comments and pages.
pub fn banned_prose(tree: &SourceTree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| !is_exempt(file)) {
        for comment in prose_of(file) {
            let lower = comment.text.to_lowercase();
            let words = lower.split(|c: char| !c.is_alphanumeric());
            let banned: BTreeSet<&str> = words
                .filter(|word| BANNED_IN_PROSE.contains(word))
                .collect();
            for word in banned {
                let place = format!("{}:{}", file.path, comment.line);
                found.push(format!(
                    "{place}: \"{word}\" names a person: name the thing"
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(path: &str, text: &str) -> SourceTree {
        let file = SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        SourceTree { files: vec![file] }
    }

    #[test]
    fn banned_words_are_found_inside_names_and_file_names() {
        let found = banned_names(&tree(
            "crates/a/src/told.rs",
            "fn told_reorg() { let isLent = 1; }",
        ));
        assert_eq!(found.len(), 3, "{found:?}");
        let clean = tree(
            "crates/a/src/reorg.rs",
            "fn excellent() { let talented = \"told\"; }",
        );
        assert!(banned_names(&clean).is_empty());
    }

    #[test]
    fn verbs_are_no_types_and_functions_can_be_searched_for() {
        let source =
            "struct Went; enum Outcome { Went } fn go() {} impl A { fn go_offline(&self) {} }";
        let found = banned_names(&tree("a.rs", source));
        // The variant `Went` and the type `Went` share the banned word, which is reported once.
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn persons_are_found_in_comments_only() {
        let source = "/// Whoever asks.\nfn f() { let s = \"whoever\"; } // the holder\n";
        let found = banned_prose(&tree("a.rs", source));
        assert_eq!(
            found,
            ["a.rs:1: \"whoever\" names a person: name the thing"]
        );
    }
}
