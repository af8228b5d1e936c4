//! What a hunt found, as a line for people and as JSON for the proof's report.

use std::ops::Range;

use serde_json::{Value, json};

use super::{Caught, Hunt, blind};

/// One line of the table.
#[must_use]
pub fn line(hunt: &Hunt) -> String {
    let name = hunt.mutation.name();
    let (by, seed) = match &hunt.caught {
        Some(caught) => (caught.promises().join("; "), caught.seed.to_string()),
        None => ("NOT CAUGHT".to_owned(), "-".to_owned()),
    };
    let (seeds, took) = (hunt.seeds, hunt.took.as_secs_f64());
    format!("{name:<27}{seeds:>5} seeds {took:>7.1} s  seed {seed:>8}  {by}")
}

/// The report of a whole proof.
#[must_use]
pub fn json(hunts: &[Hunt], seeds: &Range<u64>, unclean: &[Caught], figure: &str) -> Value {
    let caught = hunts.iter().filter(|hunt| hunt.caught.is_some()).count();
    json!({
        "proof": "05-2-mutations",
        "holds": caught == hunts.len() && unclean.is_empty(),
        "figure": figure,
        "mutations": hunts.len(),
        "caught": caught,
        "firstSeed": seeds.start,
        "seedsMax": seeds.end.saturating_sub(seeds.start),
        "hunts": hunts.iter().map(of_hunt).collect::<Vec<_>>(),
        "uncleanWithoutMutation": unclean.iter().map(of_world).collect::<Vec<_>>(),
        "checkersThatCaughtNothing": blind(hunts),
    })
}

fn of_hunt(hunt: &Hunt) -> Value {
    json!({
        "mutation": hunt.mutation.name(),
        "what": hunt.mutation.what(),
        "seeds": hunt.seeds,
        "seconds": hunt.took.as_secs_f64(),
        "caught": hunt.caught.as_ref().map(of_world),
    })
}

fn of_world(world: &Caught) -> Value {
    json!({
        "seed": world.seed,
        "kind": super::options(world.seed).to_string(),
        "by": world.promises(),
        "first": world.violations.first(),
    })
}
