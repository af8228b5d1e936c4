//! Every kept input again: seeds, what the fuzzer found, and what once failed.

use fuzz::corpus;
use fuzz::judge::Judge;
use fuzz::targets::KINDS;

#[global_allocator]
static ALLOCATOR: probe::memory::Counting = probe::memory::Counting;

/// What all targets together may weigh: the corpus is read by people and cloned by everybody.
const CORPUS_BYTES_MAX: usize = 1 << 20;

#[test]
fn no_kept_input_fails() {
    let mut bytes = 0;
    let mut failed = Vec::new();
    // One test for all: memory is counted for the whole process.
    for kind in &KINDS {
        let files = corpus::files(&corpus::folder(), kind.name).unwrap();
        assert!(
            !files.is_empty(),
            "{} has no inputs to begin with",
            kind.name
        );
        let mut judge = Judge::new(kind);
        for file in files {
            let input = std::fs::read(&file).unwrap();
            bytes += input.len();
            if let Some(fault) = judge.run(&input).fault {
                failed.push(format!("{}: {fault}", file.display()));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(bytes < CORPUS_BYTES_MAX, "{bytes} bytes");
}
