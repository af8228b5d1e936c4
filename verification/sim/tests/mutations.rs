//! Every deliberate bug is caught, in the world that is recorded for it in mutations.txt, and that world is clean
//! without it. How soon the first worlds catch them, and with which checkers: `proof/05-2-mutations`.
#![cfg(feature = "mutations")]

use sim::mutations::{Hunt, hunt_recorded, line};

/// The most worlds of a mutation that gets through its recorded one.
const SEEDS_MAX: u64 = 400;

#[test]
fn every_mutation_is_caught() {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let hunts = hunt_recorded(&(1..1 + SEEDS_MAX), jobs);
    hunts.iter().for_each(|hunt| eprintln!("{}", line(hunt)));
    let is_stale = |hunt: &&Hunt| hunt.seeds > 1;
    for stale in hunts.iter().filter(is_stale) {
        let name = stale.mutation.name();
        eprintln!("{name}: its recorded world is old, write it anew with mutations --record");
    }
    let through = hunts.iter().filter(|hunt| hunt.caught.is_none());
    let through: Vec<&str> = through.map(|hunt| hunt.mutation.name()).collect();
    assert_eq!(through, [] as [&str; 0], "got through {SEEDS_MAX} worlds");
}
