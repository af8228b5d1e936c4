//! 4.4: forks from one block deep to below finality and below the watched depth, on every kind of node: a checker
//! reads the event feed and compares it with the chain after every block.

mod deep;
mod fold;
mod rounds;
mod scenario;

use std::time::Duration;

use futures::future::join_all;
use proof::config::Config;
use proof::manual_chain::ManualChain;
use proof::network::{NodeKind, parse_node_kinds};
use proof::single_node::Terms;
use proof::{Outcome, Report, flag, print_step};
use serde_json::{Value, json};

use fold::Counts;
use rounds::ForkVisibility;
use scenario::ForkScenario;

const NAME: &str = "04-4-forks";

const BLOCK_TIME: Duration = Duration::from_millis(200);

const REQUIRED: u64 = 4;
const WATCH_DEPTH: u64 = 16;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let node_kinds = parse_node_kinds(&flag("node", "anvil,hardhat,ganache,devchain"))?;
    let depths: Vec<u64> = flag("depths", "1,2,3,4,6,9")
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let watched = join_all(
        node_kinds
            .iter()
            .map(|node_kind| watched(*node_kind, &depths)),
    )
    .await;
    let deep = join_all(node_kinds.iter().map(|node_kind| beyond(*node_kind))).await;
    let (mut total, mut failures) = (Found::default(), Vec::new());
    for (part, results) in [("watched", watched), ("beyond", deep)] {
        for (node_kind, result) in node_kinds.iter().zip(results) {
            let name = format!("{} {part}", node_kind.name());
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
    let names: Vec<&str> = node_kinds
        .iter()
        .map(|node_kind| node_kind.name())
        .collect();
    Ok(format!(
        "{} forks of depths {depths:?} (final at {REQUIRED}) and beyond the watched depth on {}: {} lists of \
         confirmations linked and equal to the chain after each of {} moves, newFork exactly where \
         an emitted header was replaced ({} times), {} final results reorged out and raised as incidents, {} payments exactly once",
        total.forks,
        names.join(", "),
        total.reported.lists,
        total.compared,
        total.reported.new_forks,
        total.reported.after_final,
        total.payments,
    ))
}

#[derive(Clone, Copy, Debug, Default)]
struct Found {
    forks: usize,
    payments: usize,
    compared: u64,
    reported: Counts,
}

impl Found {
    fn from_scenario(scenario: &ForkScenario, forks: usize, payments: usize) -> Self {
        Self {
            forks,
            payments,
            compared: scenario.compared,
            reported: scenario.fold.counts,
        }
    }

    fn add(&mut self, other: &Self) {
        self.forks += other.forks;
        self.payments += other.payments;
        self.compared += other.compared;
        self.reported.lists += other.reported.lists;
        self.reported.new_forks += other.reported.new_forks;
        self.reported.after_final += other.reported.after_final;
    }

    fn to_json(self) -> Value {
        json!({
            "forks": self.forks,
            "payments": self.payments,
            "comparedWithTheChain": self.compared,
            "events": self.reported.events,
            "lists": self.reported.lists,
            "newFork": self.reported.new_forks,
            "reorged": self.reported.reorged,
            "afterFinal": self.reported.after_final,
            "requeued": self.reported.requeued,
            "stuck": self.reported.stuck,
        })
    }
}

/// The forks within the watched depth, on one kind of node.
async fn watched(node_kind: NodeKind, depths: &[u64]) -> Outcome<Found> {
    let manual_chain = ManualChain::start(node_kind).await?;
    let terms = terms(&manual_chain, WATCH_DEPTH);
    let mut scenario = ForkScenario::open(manual_chain, &terms).await?;
    let manners = match node_kind {
        NodeKind::Independent(_) => vec![ForkVisibility::AtOnce, ForkVisibility::Growing],
        NodeKind::Devchain => vec![ForkVisibility::AtOnce], // its forks are atomic
    };
    let mut forks = 0;
    for (depth, visibility) in depths
        .iter()
        .flat_map(|d| manners.iter().map(move |m| (*d, *m)))
    {
        let named = |error| format!("a fork of depth {depth}, seen {visibility:?}: {error}");
        rounds::round(&mut scenario, depth, visibility)
            .await
            .map_err(named)?;
        forks += 1;
        print_step(format!(
            "{}: depth {depth}, seen {visibility:?}",
            node_kind.name()
        ));
    }
    rounds::fork_with_final_block(&mut scenario)
        .await
        .map_err(|error| format!("a fork together with the final block: {error}"))?;
    let payments = scenario.audit().await?;
    Ok(Found::from_scenario(&scenario, forks + 1, payments))
}

/// A fork below the watched depth, on one kind of node.
async fn beyond(node_kind: NodeKind) -> Outcome<Found> {
    let manual_chain = ManualChain::start(node_kind).await?;
    let terms = deep::terms(&manual_chain);
    let mut scenario = ForkScenario::open(manual_chain, &terms).await?;
    deep::fork(&mut scenario).await?;
    let payments = scenario.audit().await?;
    print_step(format!("{}: deeper than is watched", node_kind.name()));
    Ok(Found::from_scenario(&scenario, 1, payments))
}

fn terms(manual_chain: &ManualChain, watch_depth: u64) -> Terms {
    Terms {
        proof: NAME,
        name: manual_chain.node_kind().name().to_owned(),
        store: None,
        config: Config {
            rpc: vec![manual_chain.url().to_owned()],
            ws: manual_chain.ws_url(),
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
