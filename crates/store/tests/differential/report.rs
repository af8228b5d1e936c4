//! How much is to be done, from which seed, and where the figures go.

use std::fmt::Display;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::compare::Difference;
use crate::draw::Sequence;

/// So many sequences instead of a time box.
const SEQUENCES_VARIABLE: &str = "LANEKEEPER_SEQUENCES";
/// The first seed; by default a random one.
const SEED_VARIABLE: &str = "LANEKEEPER_SEED";
/// A file to which figures are appended, one `name=value` per line.
const FIGURES_VARIABLE: &str = "LANEKEEPER_FIGURES";
/// The default duration of a run.
const TIME_BOX: Duration = Duration::from_secs(30);

/// How much of what answers have in common is shown around that in which they differ.
const CONTEXT: usize = 4;
/// How much of an answer is shown at most.
const LINES_MAX: usize = 60;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    Sequences(u64),
    Within(Duration),
}

pub(crate) fn size() -> Size {
    variable(SEQUENCES_VARIABLE).map_or(Size::Within(TIME_BOX), Size::Sequences)
}

pub(crate) fn first_seed() -> u64 {
    // Half of the bits are enough, and are read out loud more easily.
    let chance = || RandomState::new().hash_one(std::process::id()) >> 32;
    variable(SEED_VARIABLE).unwrap_or_else(chance)
}

fn variable<T: FromStr<Err: Display>>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let value = text.parse();
    Some(value.unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// Prints a figure, and writes it to the report file if one is configured.
pub(crate) fn figure(name: &str, value: u64) {
    eprintln!("{name}: {value}");
    let Some(path) = std::env::var_os(FIGURES_VARIABLE) else {
        return;
    };
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(Path::new(&path))
        .expect("the file for the figures");
    writeln!(file, "{name}={value}").expect("the file for the figures");
}

/// The report of a difference.
pub(crate) fn text(sequence: &Sequence, difference: &Difference) -> String {
    let seed = sequence.seed;
    let mut text = format!(
        "seed {seed}: the stores differ ({SEED_VARIABLE}={seed} {SEQUENCES_VARIABLE}=1 draws it again). \
         Shrunk to:\n"
    );
    for operations in &difference.operations {
        text.push_str(&format!("  {operations}\n"));
    }
    let answers: Vec<Vec<&str>> = difference
        .answers
        .iter()
        .map(|(_, answer)| answer.lines().collect())
        .collect();
    let (before, behind) = common(&answers);
    for ((name, _), lines) in difference.answers.iter().zip(&answers) {
        let end = lines.len() - behind;
        let from = before.saturating_sub(CONTEXT);
        let to = (end + CONTEXT).min(lines.len()).min(from + LINES_MAX);
        text.push_str(&format!("{name} (from line {from} of its answer):\n"));
        for line in &lines[from..to.max(from)] {
            text.push_str(&format!("    {line}\n"));
        }
    }
    text
}

/// How many lines all answers have in common at their beginning, and at their end.
fn common(answers: &[Vec<&str>]) -> (usize, usize) {
    let shortest = answers.iter().map(Vec::len).min().unwrap_or(0);
    let is_same = |line: &dyn Fn(&Vec<&str>) -> String| {
        answers
            .windows(2)
            .all(|pair| line(&pair[0]) == line(&pair[1]))
    };
    let before = (0..shortest)
        .take_while(|n| is_same(&|lines| lines[*n].to_owned()))
        .count();
    let behind = (0..shortest - before)
        .take_while(|n| is_same(&|lines| lines[lines.len() - 1 - n].to_owned()))
        .count();
    (before, behind)
}
