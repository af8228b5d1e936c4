//! 4.5: replacement on nodes with real rules: a waiting tx is bumped, the node accepts the bump, and the mined
//! attempt is recognized; limits and missing funds stop nothing permanently.

mod bump;
mod funds;
mod limits;

use std::time::Duration;

use futures::future::join_all;
use proof::config::Config;
use proof::manual_chain::ManualChain;
use proof::network::{NodeKind, parse_node_kinds};
use proof::single_node::{SingleNode, Terms};
use proof::{Outcome, Report, flag, print_step};
use serde_json::{Map, Value, json};

const NAME: &str = "04-5-replacement";

/// Every awaited condition holds well before this.
const WITHIN: Duration = Duration::from_secs(60);

/// The configured block time.
const BLOCK_TIME: Duration = Duration::from_millis(200);

const LANE: usize = 0;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    // Not anvil: it accepts a replacement that pays a single wei more.
    let node_kinds = parse_node_kinds(&flag("node", "hardhat,ganache,devchain"))?;
    let results = join_all(node_kinds.iter().map(|node_kind| prove_on(*node_kind))).await;
    let (mut payments, mut failures) = (0, Vec::new());
    for (node_kind, (found, failed)) in node_kinds.iter().zip(results) {
        payments += found["payments"].as_u64().unwrap_or(0);
        report.fact(node_kind.name(), found);
        failures.extend(failed);
    }
    if !failures.is_empty() {
        return Err(failures.join("\n  ").into());
    }
    let names: Vec<&str> = node_kinds
        .iter()
        .map(|node_kind| node_kind.name())
        .collect();
    Ok(format!(
        "on {}: bumps taken by the node, the new one mined, the old one mined after the new one was sent, the \
         limit of the fee and of the attempts visible and passed, an account that ran dry went on when \
         funded; {payments} payments exactly once",
        names.join(", ")
    ))
}

/// All scenarios on one kind of node: results and failures.
async fn prove_on(node_kind: NodeKind) -> (Value, Vec<String>) {
    let (mut found, mut failed) = (Map::new(), Vec::new());
    let mut payments = 0;
    for scenario in Scenario::ALL {
        let name = scenario.name();
        match scenario.run(node_kind).await {
            Ok(Some((facts, count))) => {
                payments += count;
                print_step(format!("{}: {name}", node_kind.name()));
                found.insert(name.into(), facts);
            }
            Ok(None) => {
                found.insert(name.into(), "not on this kind of node".into());
            }
            Err(error) => {
                print_step(format!("{}: {name} FAILS", node_kind.name()));
                failed.push(format!("{}, {name}: {error}", node_kind.name()));
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

    /// The result and the number of payments, each exactly once; `None` where the kind is not capable of it.
    async fn run(self, node_kind: NodeKind) -> Outcome<Option<(Value, usize)>> {
        let manual_chain = ManualChain::start(node_kind).await?;
        // A few blocks lower the initial base fee of a new chain.
        manual_chain.mine(3)?;
        if self == Self::NewIsDropped && !manual_chain.drops_transactions() {
            return Ok(None);
        }
        let started = match self {
            Self::NewIsMined => bump::new_is_mined(&manual_chain).await,
            Self::NewIsHeldBack => bump::new_is_held_back(&manual_chain).await,
            Self::NewIsDropped => bump::new_is_dropped(&manual_chain).await,
            Self::FeeLimit => limits::fee(&manual_chain).await,
            Self::AttemptLimit => limits::attempts(&manual_chain).await,
            Self::RunsDry => funds::runs_dry(&manual_chain).await,
        };
        let (single_node, facts) = started?;
        let counted = single_node
            .audit(&manual_chain.chain()?, WITHIN)
            .run()
            .await?;
        Ok(Some((facts, counted.promised)))
    }
}

/// A node that bumps every two seconds, with further lines of that section.
async fn bumping(
    manual_chain: &ManualChain,
    name: &str,
    rpc: &str,
    more: &str,
) -> Outcome<SingleNode> {
    SingleNode::start(&Terms {
        proof: NAME,
        name: format!("{name}-{}", manual_chain.node_kind().name()),
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

fn fees_of(tx: &Value) -> Value {
    let attempts = tx["attempts"].as_array().into_iter().flatten();
    let fees = attempts.map(|a| json!([a["kind"], a["maxFeePerGas"], a["maxPriorityFeePerGas"]]));
    Value::Array(fees.collect())
}
