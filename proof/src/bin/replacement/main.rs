//! 4.5: replacement on nodes with real rules: a tx that waits is bumped, the node takes the bump, and
//! whichever attempt is mined in the end is recognised; limits and empty accounts stop nothing for good.

mod bump;
mod funds;
mod limits;

use std::process::ExitCode;
use std::time::Duration;

use futures::future::join_all;
use proof::config::Config;
use proof::network::{Make, makes};
use proof::solo::{Solo, Terms};
use proof::stage::Stage;
use proof::{Outcome, Report, flag, say};
use serde_json::{Map, Value, json};

const NAME: &str = "04-5-replacement";

/// Everything that is waited for comes well before this.
const WITHIN: Duration = Duration::from_secs(60);

/// How often the node is told to look for a head.
const BLOCK_TIME: Duration = Duration::from_millis(200);

/// The lane of all but the last scenario.
const LANE: usize = 0;

#[tokio::main]
async fn main() -> ExitCode {
    let mut report = Report::new(NAME);
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

async fn prove(report: &mut Report) -> Outcome<String> {
    // Not anvil: it takes a replacement that pays a single wei more.
    let makes = makes(&flag("node", "hardhat,ganache,devchain"))?;
    let results = join_all(makes.iter().map(|make| on(*make))).await;
    let (mut payments, mut failures) = (0, Vec::new());
    for (make, (found, failed)) in makes.iter().zip(results) {
        payments += found["payments"].as_u64().unwrap_or(0);
        report.fact(make.name(), found);
        failures.extend(failed);
    }
    if !failures.is_empty() {
        return Err(failures.join("\n  ").into());
    }
    let names: Vec<&str> = makes.iter().map(|make| make.name()).collect();
    Ok(format!(
        "on {}: bumps taken by the node, the new one mined, the old one mined after the new one was sent, the \
         limit of the fee and of the attempts visible and passed, an account that ran dry went on when \
         funded; {payments} payments exactly once",
        names.join(", ")
    ))
}

/// All scenarios on one make: what they found, and what failed.
async fn on(make: Make) -> (Value, Vec<String>) {
    let (mut found, mut failed) = (Map::new(), Vec::new());
    let mut payments = 0;
    for scenario in Scenario::ALL {
        let name = scenario.name();
        match scenario.run(make).await {
            Ok(Some((facts, count))) => {
                payments += count;
                say(format!("{}: {name}", make.name()));
                found.insert(name.into(), facts);
            }
            Ok(None) => {
                found.insert(name.into(), "not on this make".into());
            }
            Err(error) => {
                say(format!("{}: {name} FAILS", make.name()));
                failed.push(format!("{}, {name}: {error}", make.name()));
                found.insert(name.into(), format!("FAILS: {error}").into());
            }
        }
    }
    found.insert("payments".into(), payments.into());
    (Value::Object(found), failed)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    NewIsMined,
    NewIsHeldBack,
    NewIsDropped,
    FeeLimit,
    AttemptLimit,
    RunsDry,
}

impl Scenario {
    const ALL: [Self; 6] = [
        Self::NewIsMined,
        Self::NewIsHeldBack,
        Self::NewIsDropped,
        Self::FeeLimit,
        Self::AttemptLimit,
        Self::RunsDry,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::NewIsMined => "newIsMined",
            Self::NewIsHeldBack => "newIsHeldBack",
            Self::NewIsDropped => "newIsDropped",
            Self::FeeLimit => "feeLimit",
            Self::AttemptLimit => "attemptLimit",
            Self::RunsDry => "runsDry",
        }
    }

    /// What it found and how many payments it made, each exactly once; `None` where the make cannot.
    async fn run(self, make: Make) -> Outcome<Option<(Value, usize)>> {
        let stage = Stage::start(make).await?;
        // On a new chain base fees are still those of its beginning; a few blocks tell of them.
        stage.mine(3)?;
        if self == Self::NewIsDropped && !stage.drops_transactions() {
            return Ok(None);
        }
        let started = match self {
            Self::NewIsMined => bump::new_is_mined(&stage).await,
            Self::NewIsHeldBack => bump::new_is_held_back(&stage).await,
            Self::NewIsDropped => bump::new_is_dropped(&stage).await,
            Self::FeeLimit => limits::fee(&stage).await,
            Self::AttemptLimit => limits::attempts(&stage).await,
            Self::RunsDry => funds::runs_dry(&stage).await,
        };
        let (solo, facts) = started?;
        let counted = solo.audit(&stage.chain()?, WITHIN).run().await?;
        Ok(Some((facts, counted.promised)))
    }
}

/// A node with the policy to bump every two seconds, and these further lines of that section.
async fn bumping(stage: &Stage, name: &str, rpc: &str, more: &str) -> Outcome<Solo> {
    Solo::start(&Terms {
        proof: NAME,
        name: format!("{name}-{}", stage.make().name()),
        store: None,
        config: Config {
            rpc: vec![rpc.to_owned()],
            block_time: Some(BLOCK_TIME),
            lanes: 2,
            more: format!(
                "[nonce]\nstateTimeout = \"2s\"\n\
                 [resubmit]\ninterval = \"2s\"\npolicy = \"bump\"\n{more}"
            ),
            ..Config::default()
        },
    })
    .await
}

/// The attempts of a tx, for a report.
fn fees_of(tx: &Value) -> Value {
    let attempts = tx["attempts"].as_array().into_iter().flatten();
    let fees = attempts.map(|a| json!([a["kind"], a["maxFeePerGas"], a["maxPriorityFeePerGas"]]));
    Value::Array(fees.collect())
}
