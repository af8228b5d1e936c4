//! Every deliberate bug is caught, in the world that is recorded for it in mutations.txt, and that world is clean
//! without it. How soon the first worlds catch them, and with which checkers: `proof/05-2-mutations`.
#![cfg(feature = "mutations")]

use sim::mutations::{MutationSearch, line, search_recorded};

/// The maximum number of worlds for a mutation that is not caught in its recorded one.
const SEEDS_MAX: u64 = 400;

#[test]
fn every_mutation_is_caught() {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let searches = search_recorded(&(1..1 + SEEDS_MAX), jobs);
    searches
        .iter()
        .for_each(|search| eprintln!("{}", line(search)));
    let is_stale = |search: &&MutationSearch| search.seeds > 1;
    for stale in searches.iter().filter(is_stale) {
        let name = stale.mutation.name();
        eprintln!(
            "{name}: its recorded world is outdated, record it again with mutations --record"
        );
    }
    let uncaught = searches.iter().filter(|search| search.caught.is_none());
    let uncaught: Vec<&str> = uncaught.map(|search| search.mutation.name()).collect();
    assert_eq!(
        uncaught,
        [] as [&str; 0],
        "not caught in {SEEDS_MAX} worlds"
    );
}
