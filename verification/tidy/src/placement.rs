//! What may stand where: deliberate bugs, PostgreSQL connections, and unfinished code.

use crate::{SourceFile, SourceTree};

/// What ships.
const SHIPPED: [&str; 2] = ["crates", "tools"];
/// The only crate that opens PostgreSQL connections and pools them.
const POSTGRES_CLIENT: &str = "crates/postgres";

/// Deliberate bugs are patches in verification/sim/mutations: shipped source has no switch for one.
pub fn shipped_mutations(tree: &SourceTree) -> Vec<String> {
    let shipped = tree
        .files
        .iter()
        .filter(|file| SHIPPED.iter().any(|folder| file.is_in(folder)));
    let sources = shipped.filter(|file| file.has_extension("rs") || file.has_extension("toml"));
    let mentions = |file: &SourceFile| {
        let words = file.text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words
            .into_iter()
            .any(|word| matches!(word, "mutation" | "mutations" | "Mutation"))
    };
    sources
        .filter(|file| mentions(file))
        .map(|file| {
            format!(
                "{} mentions mutations: deliberate bugs are patches in verification/sim/mutations",
                file.path
            )
        })
        .collect()
}

/// One client: a second pool or connector would drift from the first in what it does after a fault.
pub fn second_postgres_clients(tree: &SourceTree) -> Vec<String> {
    let product = tree.files.iter().filter(|file| file.is_in("crates"));
    let others = product.filter(|file| !file.is_in(POSTGRES_CLIENT) && !file.is_test());
    let reason = |file: &SourceFile| {
        if file.path.ends_with("Cargo.toml") {
            let second = ["deadpool", "tokio-postgres-rustls", "bb8", "sqlx"];
            let is_dependency = |name: &&str| file.text.lines().any(|line| line.starts_with(name));
            return second.into_iter().find(is_dependency);
        }
        let is_rust = file.has_extension("rs");
        let opens = [
            "tokio_postgres::connect",
            "tokio_postgres::Config",
            ".connect_raw(",
        ];
        let pool_of_clients = file.text.contains("tokio_postgres") && defines_pool(&file.text);
        (is_rust && pool_of_clients)
            .then_some("a pool")
            .or_else(|| {
                opens
                    .into_iter()
                    .find(|text| is_rust && file.text.contains(text))
            })
    };
    others
        .filter_map(|file| reason(file).map(|what| (file, what)))
        .map(|(file, what)| format!("{} has {what}: use {POSTGRES_CLIENT}", file.path))
        .collect()
}

fn defines_pool(text: &str) -> bool {
    let words: Vec<&str> = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    words
        .windows(2)
        .any(|pair| pair[0] == "struct" && pair[1].ends_with("Pool"))
}

/// Unfinished code and tests that are switched off.
pub fn unfinished(tree: &SourceTree) -> Vec<String> {
    // Spelled apart, so that this file does not find itself.
    let marks = [
        ["todo", "!("].concat(),
        ["unimplemented", "!("].concat(),
        ["#[ig", "nore"].concat(),
    ];
    let folders = ["crates", "examples", "proof", "tools", "verification"];
    let mut found = Vec::new();
    for file in tree.files_in(&folders, "rs") {
        let marks = marks
            .iter()
            .filter(|mark| file.text.contains(mark.as_str()));
        found.extend(marks.map(|mark| format!("{} has {mark}", file.path)));
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
    fn a_switch_for_a_bug_in_shipped_source_is_reported() {
        let switch = "if mutation::is_on(Mutation::DropGap) { return; }";
        assert_eq!(
            shipped_mutations(&tree("crates/domain/src/a.rs", switch)).len(),
            1
        );
        assert!(shipped_mutations(&tree("verification/sim/src/a.rs", switch)).is_empty());
        assert!(
            shipped_mutations(&tree("crates/domain/src/a.rs", "fn permutations() {}")).is_empty()
        );
    }

    #[test]
    fn a_second_pool_is_reported_wherever_it_comes_from() {
        let by_hand = "use tokio_postgres::Client; struct ClientPool { idle: Vec<Client> }";
        assert_eq!(
            second_postgres_clients(&tree("crates/nonce/src/a.rs", by_hand)).len(),
            1
        );
        let by_crate = "[dependencies]\ndeadpool.workspace = true\n";
        assert_eq!(
            second_postgres_clients(&tree("crates/nonce/Cargo.toml", by_crate)).len(),
            1
        );
        assert!(second_postgres_clients(&tree("crates/postgres/src/a.rs", by_hand)).is_empty());
    }
}
