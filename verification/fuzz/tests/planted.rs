//! The fuzzer finds what is planted: a panic that is caught, a broken promise, and memory without bound.

use std::fs;
use std::time::Duration;

use fuzz::campaign::{CampaignResult, Plan, run_campaign};
use fuzz::judge::Judge;
use fuzz::targets::{Kind, Target};

#[global_allocator]
static ALLOCATOR: probe::memory::Counting = probe::memory::Counting;

struct Planted;

impl Target for Planted {
    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let has = |word: &[u8]| input.windows(word.len()).any(|window| window == word);
        if has(b"panic") {
            // Caught, as a router does: it counts all the same.
            std::panic::catch_unwind(|| panic!("planted")).unwrap_err();
        }
        if has(b"lies") {
            return Err("a planted lie: with details".to_owned());
        }
        if has(b"greedy") {
            std::hint::black_box(vec![1_u8; 8 << 20]);
        }
        Ok(())
    }
}

static PLANTED: Kind = Kind {
    name: "planted",
    dictionary: "panic\nlies\ngreedy",
    memory_base: 1 << 20,
    memory_per_byte: 32,
    make: || Box::new(Planted),
};

fn search(time: Duration) -> (CampaignResult, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let seeds = folder.path().join("corpus/planted");
    fs::create_dir_all(&seeds).expect("a folder of ours");
    fs::write(seeds.join("seed"), "a good input\nof two lines").expect("a folder of ours");
    let result = run_campaign(&Plan {
        kind: &PLANTED,
        time,
        seed: 1,
        corpus: folder.path().join("corpus"),
        out: folder.path().join("out"),
        keep: false,
    });
    (result.expect("the folders are there"), folder)
}

#[test]
fn everything_planted_is_found_once_made_small_and_fails_again() {
    let (result, _folder) = search(Duration::from_secs(4));
    let mut found = Vec::new();
    for fault in &result.faults {
        let input = fs::read(&fault.file).unwrap();
        let again = Judge::new(&PLANTED).run(&input).fault.unwrap();
        assert_eq!(again.place(), fault.place);
        found.push(String::from_utf8(input).unwrap());
    }
    found.sort();
    assert_eq!(found, ["greedy", "lies", "panic"], "{result:?}");
    assert!(result.executions > 1_000, "{result:?}");
    assert!(result.memory_most >= 8 << 20);
}
