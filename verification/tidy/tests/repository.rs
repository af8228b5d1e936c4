//! All rules, on this repository.

use tidy::{SourceTree, placement, repository_root, sizes, vocabulary};

/// Fails with every violation of a rule, so that one run shows all of them.
fn check(rule: fn(&SourceTree) -> Vec<String>) {
    let found = rule(&SourceTree::read(&repository_root()));
    assert!(
        found.is_empty(),
        "{} violations:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn names_use_the_words_of_the_field() {
    check(vocabulary::banned_names);
}

#[test]
fn comments_and_pages_name_things_not_persons() {
    check(vocabulary::banned_prose);
}

#[test]
fn files_are_short_enough_to_be_read() {
    check(sizes::long_files);
}

#[test]
fn structs_of_rules_and_engine_have_one_responsibility() {
    check(sizes::large_structs);
}

#[test]
fn fifteen_minute_path_is_true() {
    check(sizes::reading_path);
}

#[test]
fn shipped_source_has_no_deliberate_bug() {
    check(placement::shipped_mutations);
}

#[test]
fn one_crate_connects_to_postgres() {
    check(placement::second_postgres_clients);
}

#[test]
fn nothing_is_unfinished_or_switched_off() {
    check(placement::unfinished);
}
