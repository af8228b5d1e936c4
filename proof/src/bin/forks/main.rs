//! 4.4: forks from one block deep to beyond what is final, and beyond what is watched, on every make of
//! node: a checker reads the event feed and compares what it tells with the chain after every block.

mod deep;
mod fold;
mod rounds;
mod theatre;

use std::process::ExitCode;
use std::time::Duration;

use futures::future::join_all;
use proof::config::Config;
use proof::network::{Make, makes};
use proof::solo::Terms;
use proof::stage::Stage;
use proof::{Outcome, Report, flag, say};
use serde_json::{Value, json};

use fold::Counts;
use rounds::Manner;
use theatre::Theatre;

const NAME: &str = "04-4-forks";

/// How often the node is told to look for a head.
const BLOCK_TIME: Duration = Duration::from_millis(200);

/// Blocks that make a result final.
const REQUIRED: u64 = 4;
/// How deep finals are watched for forks.
const WATCH_DEPTH: u64 = 16;

#[tokio::main]
async fn main() -> ExitCode {
    let mut report = Report::new(NAME);
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

async fn prove(report: &mut Report) -> Outcome<String> {
    let makes = makes(&flag("node", "anvil,hardhat,ganache,devchain"))?;
    let depths: Vec<u64> = flag("depths", "1,2,3,4,6,9")
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let watched = join_all(makes.iter().map(|make| watched(*make, &depths))).await;
    let deep = join_all(makes.iter().map(|make| beyond(*make))).await;
    let (mut total, mut failures) = (Found::default(), Vec::new());
    for (part, results) in [("watched", watched), ("beyond", deep)] {
        for (make, result) in makes.iter().zip(results) {
            let name = format!("{} {part}", make.name());
            match result {
                Ok(found) => {
                    total.add(&found);
                    report.fact(&name, found.to_json());
                }
                Err(error) => {
                    report.fact(&name, format!("FAILS: {error}"));
                    failures.push(format!("{name}: {error}"));
                }
            }
        }
    }
    if !failures.is_empty() {
        return Err(failures.join("\n  ").into());
    }
    let names: Vec<&str> = makes.iter().map(|make| make.name()).collect();
    Ok(format!(
        "{} forks of depths {depths:?} (final at {REQUIRED}) and beyond the watched depth on {}: {} lists of \
         confirmations linked and equal to the chain after each of {} moves, newFork exactly where something \
         told was replaced ({} times), {} finals taken back and raised as incidents, {} payments exactly once",
        total.forks,
        names.join(", "),
        total.told.lists,
        total.compared,
        total.told.new_forks,
        total.told.after_final,
        total.payments,
    ))
}

/// What was found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    forks: usize,
    payments: usize,
    compared: u64,
    told: Counts,
}

impl Found {
    fn of(theatre: &Theatre, forks: usize, payments: usize) -> Self {
        Self {
            forks,
            payments,
            compared: theatre.compared,
            told: theatre.fold.counts,
        }
    }

    fn add(&mut self, other: &Self) {
        self.forks += other.forks;
        self.payments += other.payments;
        self.compared += other.compared;
        self.told.lists += other.told.lists;
        self.told.new_forks += other.told.new_forks;
        self.told.after_final += other.told.after_final;
    }

    fn to_json(self) -> Value {
        json!({
            "forks": self.forks,
            "payments": self.payments,
            "comparedWithTheChain": self.compared,
            "events": self.told.events,
            "lists": self.told.lists,
            "newFork": self.told.new_forks,
            "reorged": self.told.reorged,
            "afterFinal": self.told.after_final,
            "requeued": self.told.requeued,
            "stuck": self.told.stuck,
        })
    }
}

/// The forks that are watched for, on one make.
async fn watched(make: Make, depths: &[u64]) -> Outcome<Found> {
    let stage = Stage::start(make).await?;
    let terms = terms(&stage, WATCH_DEPTH);
    let mut theatre = Theatre::open(stage, &terms).await?;
    let manners = match make {
        Make::Independent(_) => vec![Manner::AtOnce, Manner::Growing],
        Make::Devchain => vec![Manner::AtOnce], // its forks are one step
    };
    let mut forks = 0;
    for (depth, manner) in depths
        .iter()
        .flat_map(|d| manners.iter().map(move |m| (*d, *m)))
    {
        let named = |error| format!("a fork of depth {depth}, seen {manner:?}: {error}");
        rounds::round(&mut theatre, depth, manner)
            .await
            .map_err(named)?;
        forks += 1;
        say(format!("{}: depth {depth}, seen {manner:?}", make.name()));
    }
    rounds::leap(&mut theatre)
        .await
        .map_err(|error| format!("a fork seen with the block that makes final: {error}"))?;
    let payments = theatre.audit().await?;
    Ok(Found::of(&theatre, forks + 1, payments))
}

/// A fork deeper than is watched for, on one make.
async fn beyond(make: Make) -> Outcome<Found> {
    let stage = Stage::start(make).await?;
    let terms = deep::terms(&stage);
    let mut theatre = Theatre::open(stage, &terms).await?;
    deep::fork(&mut theatre).await?;
    let payments = theatre.audit().await?;
    say(format!("{}: deeper than is watched", make.name()));
    Ok(Found::of(&theatre, 1, payments))
}

/// The settings of a node that follows a chain.
fn terms(stage: &Stage, watch_depth: u64) -> Terms {
    Terms {
        proof: NAME,
        name: stage.make().name().to_owned(),
        store: None,
        config: Config {
            rpc: vec![stage.url().to_owned()],
            ws: stage.ws_url(),
            block_time: Some(BLOCK_TIME),
            confirmations: REQUIRED,
            lanes: rounds::LANES,
            more: format!(
                "[confirmations]\nprogress = \"every-block\"\nwatchDepth = {watch_depth}\n\
                 [nonce]\nstateTimeout = \"1s\"\n\
                 [resubmit]\ninterval = \"30s\"\n"
            ),
            ..Config::default()
        },
    }
}
