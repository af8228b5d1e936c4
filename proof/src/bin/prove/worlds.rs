//! 14.6: many worlds of all kinds, in which everything that harms others happens often, and the mutation score of the parts
//! that `scripts/mutation-score` has run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proof::{Outcome, Report, ensure};
use serde_json::Value;

use crate::seeds;

/// The number of worlds, unless specified otherwise.
const SEEDS: &str = "200000";
/// The first seed.
const FROM: &str = "1";
/// What harms others. Each must happen in so many of so many worlds.
const PARTS: [&str; 9] = [
    "poisoned-requests",
    "hung-methods",
    "false-fees",
    "fee-limits",
    "repeat-floods",
    "revert-floods",
    "reader-floods",
    "late-releases",
    "hung-sends",
];
const FIRED_MIN: f64 = 1_000.0;
const FIRED_OF: f64 = 200_000.0;
/// How many of a hundred viable mutants must be caught.
const CAUGHT_PERCENT_MIN: f64 = 85.0;

pub(crate) fn prove(report: &mut Report) -> Outcome<String> {
    let only = seeds::option("--only", "");
    let mut figures = Vec::new();
    if only != "mutants" {
        report.part("worlds");
        figures.push(search(report)?);
    }
    if only != "worlds" {
        report.part("mutants");
        figures.push(count_mutants(report)?);
    }
    Ok(figures.join("; "))
}

fn search(report: &mut Report) -> Outcome<String> {
    let found = seeds::search(
        &seeds::option("--seeds", SEEDS),
        &seeds::option("--from", FROM),
    )?;
    for name in [
        "from",
        "seeds",
        "failed",
        "simulatedHours",
        "cpuSeconds",
        "fired",
    ] {
        report.fact(name, found[name].clone());
    }
    let worlds = found["seeds"].as_f64().unwrap_or_default();
    let failed = found["failed"].as_array().map_or(usize::MAX, Vec::len);
    ensure(
        failed == 0,
        format!("{failed} worlds break a promise: {}", found["failed"]),
    )?;
    let least = worlds * FIRED_MIN / FIRED_OF;
    let fired = |part: &str| found["fired"][part].as_f64().unwrap_or_default();
    let rare: Vec<&str> = PARTS
        .into_iter()
        .filter(|part| fired(part) < least)
        .collect();
    ensure(
        rare.is_empty(),
        format!(
            "in fewer than {least:.0} of {worlds} worlds: {}",
            rare.join(", ")
        ),
    )?;
    let rarest = PARTS.into_iter().map(fired).fold(f64::INFINITY, f64::min);
    Ok(format!(
        "{worlds} worlds in {:.0} CPU-minutes, 0 violations; each part that harms others happened in {rarest} of them or more",
        found["cpuSeconds"].as_f64().unwrap_or_default() / 60.0
    ))
}

/// What became of the mutants of a part.
#[derive(Default)]
struct Mutants {
    parts: Vec<String>,
    caught: BTreeSet<String>,
    missed: BTreeSet<String>,
    unviable: BTreeSet<String>,
}

fn count_mutants(report: &mut Report) -> Outcome<String> {
    let mutants = read_results(&results())?;
    ensure(
        !mutants.parts.is_empty(),
        "no part was run: scripts/mutation-score --shard 0/200",
    )?;
    let (caught, missed) = (mutants.caught.len(), mutants.missed.len());
    report.fact("parts", mutants.parts.join(" "));
    report.fact("caught", caught);
    report.fact("unviable", mutants.unviable.len());
    let survivors: Vec<Value> = mutants
        .missed
        .iter()
        .map(|one| one.as_str().into())
        .collect();
    report.fact("survivors", survivors);
    let percent = caught as f64 * 100.0 / (caught + missed).max(1) as f64;
    report.fact("caughtPercent", percent);
    let figure = format!(
        "{caught} of {} viable mutants caught ({percent:.1} %) in the parts {}",
        caught + missed,
        mutants.parts.join(" ")
    );
    ensure(percent >= CAUGHT_PERCENT_MIN, figure.clone())?;
    Ok(figure)
}

/// Where `scripts/mutation-score` leaves its results: beside the folder of this program's profile.
fn results() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().nth(2).unwrap_or(Path::new("target"));
    target.join("mutation-score/results")
}

fn read_results(folder: &Path) -> Outcome<Mutants> {
    let mut mutants = Mutants::default();
    for part in folder.read_dir().into_iter().flatten() {
        let part = part?;
        mutants
            .parts
            .push(part.file_name().to_string_lossy().into_owned());
        for (file, found) in [
            ("caught.txt", &mut mutants.caught),
            ("missed.txt", &mut mutants.missed),
            ("unviable.txt", &mut mutants.unviable),
        ] {
            let text = std::fs::read_to_string(part.path().join(file))?;
            found.extend(text.lines().map(str::to_owned));
        }
    }
    mutants.parts.sort();
    Ok(mutants)
}
