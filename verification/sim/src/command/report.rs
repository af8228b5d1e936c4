//! What a person is told: one world line by line, or what is wrong with one, and how to see it again.

use super::shrink::{RERUNS_MAX, shrink};
use super::{promise, story};
use crate::world::{Options, Outcome, run};

/// How to read a trace.
const LEGEND: &str = "\
seconds.millis  who  what
  node    what happens to a node            client  what a client asks, and what it is told
  store   what the database does            chain   what the nodes of the chain do
  a lane is CHAIN:LAST-DIGITS-OF-ITS-SIGNER; a keeper is NODE/TOKEN; a hash is its first digits
  commit LANE after BATCH by NODE/TOKEN: applied, nonces FLOOR..CURSOR, seq LAST-EVENT
         then each row as REQUEST@NONCE=STATE/subState, each new attempt as +HASH@NONCE:kind, each event
";

/// Prints the world of a seed as it goes; whether it kept every promise.
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
    let Outcome {
        hash,
        lines,
        violations,
        events,
        lasted,
        ..
    } = &outcome;
    eprintln!(
        "seed {seed}: {events} events in {} simulated seconds, {} lines, trace {hash:016x}",
        lasted.as_secs(),
        lines.len()
    );
    for violation in violations {
        eprintln!("VIOLATION {violation}");
    }
    violations.is_empty()
}

/// Explains a seed that fails: what it breaks, how little is needed for it, and what happened.
pub fn failure(seed: u64, options: Options) {
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
    eprintln!("\nthe last of what has to do with it, in the smallest world that was found:");
    for line in story(&outcome.lines, broken) {
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
