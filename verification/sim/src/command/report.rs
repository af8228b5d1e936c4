//! Output for people: one world line by line, or a failure and how to reproduce it.

use super::shrink::{RERUNS_MAX, shrink};
use super::{excerpt, promise};
use crate::world::{Options, WorldOutcome, run};

/// How to read a trace.
const LEGEND: &str = "\
seconds.millis  component  event
  node    start, crash, freeze, isolation   client  requests, and their answers
  store   grants, commits, failovers        chain   sends, blocks, reorgs
  a lane is CHAIN:LAST-DIGITS-OF-ITS-SIGNER; a keeper is NODE/TOKEN; a hash is its first digits
  commit LANE after BATCH by NODE/TOKEN: applied, nonces FLOOR..CURSOR, seq LAST-EVENT
         then each row as REQUEST@NONCE=STATE/subState, each new attempt as +HASH@NONCE:kind, each event
";

/// Prints the world of a seed as it runs; returns whether it kept every promise.
#[must_use]
pub fn replay(seed: u64, options: Options) -> bool {
    eprintln!("seed {seed} {options}\n{LEGEND}");
    let outcome = run(
        seed,
        Options {
            echo: true,
            ..options
        },
    );
    let WorldOutcome {
        hash,
        lines,
        violations,
        events,
        duration,
        ..
    } = &outcome;
    eprintln!(
        "seed {seed}: {events} events in {} simulated seconds, {} lines, trace {hash:016x}",
        duration.as_secs(),
        lines.len()
    );
    for violation in violations {
        eprintln!("VIOLATION {violation}");
    }
    violations.is_empty()
}

/// Explains a failing seed: the broken promise, the smallest world that breaks it, and an excerpt of its trace.
pub fn explain_failure(seed: u64, options: Options) {
    let outcome = run(seed, options);
    let Some(first) = outcome.violations.first() else {
        eprintln!(
            "seed {seed} {options} failed, and does not when it is run again: not deterministic"
        );
        return;
    };
    let broken = promise(first);
    eprintln!("\nFAILED  seed {seed} {options}");
    eprintln!("BROKEN  {broken}");
    for violation in &outcome.violations {
        eprintln!("        {violation}");
    }
    let small = shrink(seed, options, broken);
    let outcome = run(seed, small.options);
    eprintln!("\nthe last related events, in the smallest world that was found:");
    for line in excerpt(&outcome.lines, broken) {
        eprintln!("{line}");
    }
    eprintln!(
        "\nSMALLEST  --seed {seed} {}   ({} of at most {RERUNS_MAX} worlds tried)",
        small.options, small.reruns
    );
    eprintln!(
        "REPLAY    cargo run -p sim -- --seed {seed} {}\n",
        small.options
    );
}
