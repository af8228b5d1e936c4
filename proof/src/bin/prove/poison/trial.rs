//! One node of a kind, with a lane for each kind of poison: all are tried at once, and none may hold up its own lane.

use std::time::{Duration, Instant};

use alloy_primitives::U256;
use futures::future::join_all;
use proof::config::Config;
use proof::network::{Network, NodeKind, Terms, signer};
use proof::single_node::{self, SingleNode};
use proof::stats::ms;
use proof::{Outcome, ensure, random_address};
use reqwest::StatusCode;
use rig::rpc_proxy::RpcProxy;
use serde_json::{Value, json};

use super::PROOF;
use super::kinds::{ChainFacts, Poison, TX_GAS_CAP, kinds};

/// The next payment must be mined within this time.
const NEXT_WITHIN: Duration = Duration::from_secs(60);
const NEXT_WITHIN_OF_TWO: Duration = Duration::from_secs(10);

/// A healthy lane mines its first payment well before this.
const FIRST_WITHIN: Duration = Duration::from_secs(60);

/// The number of funded accounts; at least one for each kind.
const ACCOUNTS: u32 = 40;

/// A chain and the number of its endpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) node_kind: NodeKind,
    /// Whether it has no base fee.
    pub(crate) is_legacy: bool,
    pub(crate) endpoints: usize,
}

/// What became of one kind of poison.
pub(crate) struct Verdict {
    pub(crate) kind: &'static str,
    /// How it was answered, for the table.
    pub(crate) answer: String,
    /// When the next payment was mined.
    pub(crate) next: Option<Duration>,
    /// Why it falls short.
    pub(crate) shortfall: Option<String>,
}

impl Setup {
    /// For the table and the logs.
    pub(crate) fn name(&self) -> String {
        let rules = if self.is_legacy { "-berlin" } else { "" };
        format!("{}{rules}-{}", self.node_kind.name(), self.endpoints)
    }

    pub(crate) fn next_within(&self) -> Duration {
        if self.endpoints > 1 {
            NEXT_WITHIN_OF_TWO
        } else {
            NEXT_WITHIN
        }
    }

    /// Tries every kind whose name contains `only`.
    pub(crate) async fn run(&self, only: &str) -> Outcome<Vec<Verdict>> {
        let terms = Terms {
            accounts: ACCOUNTS,
            hardfork: self.is_legacy.then_some("berlin"),
            ..Terms::default()
        };
        let network = Network::start(self.node_kind, terms).await?;
        let proxies: Vec<RpcProxy> = (0..self.endpoints)
            .map(|seed| RpcProxy::in_front_of(network.url(), seed as u64 + 1))
            .collect();
        let chain = facts(&network, self.is_legacy).await?;
        let mut poisons = kinds(&chain);
        poisons.retain(|poison| poison.name.contains(only));
        ensure(
            !poisons.is_empty(),
            format!("--only {only}: nothing to try"),
        )?;
        let lanes = u32::try_from(poisons.len())?;
        ensure(lanes <= ACCOUNTS, "every kind needs an account")?;
        let node = SingleNode::start(&single_node::Terms {
            proof: PROOF,
            name: self.name(),
            store: None,
            config: Config {
                rpc: proxies.iter().map(RpcProxy::url).collect(),
                block_time: Some(Duration::from_secs(1)),
                chain_more: format!("txGasCap = {TX_GAS_CAP}\n"),
                lanes,
                ..Config::default()
            },
        })
        .await?;
        let trials = poisons.iter().enumerate();
        let trials = trials.map(|(lane, poison)| self.try_one(&node, lane, poison));
        join_all(trials).await.into_iter().collect()
    }

    async fn try_one(&self, node: &SingleNode, lane: usize, poison: &Poison) -> Outcome<Verdict> {
        let payment = json!({"to": random_address(), "value": "1", "gas": "21000"});
        let first = pay(node, lane, "first", &payment, FIRST_WITHIN).await?;
        first.ok_or_else(|| format!("{}: the first payment is not mined", poison.name))?;
        let mut answers = Vec::new();
        for (number, payload) in poison.payloads.iter().enumerate() {
            let id = format!("poison-{number}");
            answers.push(send(node, lane, &id, payload).await?);
        }
        let next = pay(node, lane, "next", &payment, self.next_within()).await?;
        let wrong = answers.iter().find_map(|answer| answer.shortfall(poison));
        let late = next.is_none().then(|| {
            let within = self.next_within();
            format!("the next payment is not mined within {within:?}")
        });
        let answer = match answers.as_slice() {
            [one] => one.shown(node).await?,
            many => format!(
                "{} refused",
                many.iter().filter(|one| one.is_refusal()).count()
            ),
        };
        Ok(Verdict {
            kind: poison.name,
            answer,
            next,
            shortfall: wrong.or(late),
        })
    }
}

async fn facts(network: &Network, is_legacy: bool) -> Outcome<ChainFacts> {
    let block = json!(["latest", false]);
    let block = network.chain.call("eth_getBlockByNumber", block).await?;
    let number = |name: &str| -> Option<U256> { block[name].as_str()?.parse().ok() };
    let limit = number("gasLimit").ok_or("the block has no gas limit")?;
    let base_fee = number("baseFeePerGas").map(u128::try_from).transpose()?;
    ensure(
        base_fee.is_none() == is_legacy,
        format!("the base fee of the chain is {base_fee:?}"),
    )?;
    Ok(ChainFacts {
        block_gas_limit: u64::try_from(limit)?,
        base_fee,
        balance: network.chain.balance(&signer(0)).await?,
    })
}

/// The answer to a poisoned request.
enum PoisonAnswer {
    Refused { status: StatusCode, problem: String },
    Accepted { tx_id: String },
}

impl PoisonAnswer {
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Why a refusal is not the right one.
    fn shortfall(&self, poison: &Poison) -> Option<String> {
        match self {
            Self::Refused { status, problem }
                if !status.is_client_error() || !poison.refusals.contains(&problem.as_str()) =>
            {
                Some(format!("refused with {status} {problem}"))
            }
            Self::Refused { .. } | Self::Accepted { .. } => None,
        }
    }

    async fn shown(&self, node: &SingleNode) -> Outcome<String> {
        match self {
            Self::Refused { problem, .. } => Ok(problem.clone()),
            Self::Accepted { tx_id } => {
                let tx = node.tx(tx_id).await?;
                if is_no_op(&tx) {
                    return Ok("accepted, ended by a no-op".into());
                }
                let text = |key: &str| tx[key].as_str().unwrap_or_default().to_owned();
                let status = tx["receipt"]["status"].as_str().unwrap_or_default();
                let parts = [text("state"), text("subState"), status.to_owned()];
                let parts: Vec<String> =
                    parts.into_iter().filter(|part| !part.is_empty()).collect();
                Ok(format!("accepted: {}", parts.join(" ")))
            }
        }
    }
}

/// Whether the nonce was consumed by a no-op: the nodes refuse the payload for good.
fn is_no_op(tx: &Value) -> bool {
    let mined = &tx["receipt"]["txHash"];
    let mut attempts = tx["attempts"].as_array().into_iter().flatten();
    attempts.any(|attempt| attempt["kind"] == "cancel" && attempt["txHash"] == *mined)
}

async fn send(node: &SingleNode, lane: usize, id: &str, payload: &Value) -> Outcome<PoisonAnswer> {
    let body = json!({"signer": node.lanes[lane], "requestId": id, "payload": payload});
    let (status, answer) = node.node.api.create(body, "").await?;
    if status.is_success() {
        let tx_id = answer["txId"].as_str().unwrap_or_default().to_owned();
        return Ok(PoisonAnswer::Accepted { tx_id });
    }
    let problem = answer["type"].as_str().unwrap_or_default();
    let problem = problem.rsplit(['/', ':', '#']).next().unwrap_or_default();
    Ok(PoisonAnswer::Refused {
        status,
        problem: problem.to_owned(),
    })
}

/// A payment, and how long it took until it was mined; `None`: longer.
async fn pay(
    node: &SingleNode,
    lane: usize,
    id: &str,
    payload: &Value,
    within: Duration,
) -> Outcome<Option<Duration>> {
    let body = json!({"signer": node.lanes[lane], "requestId": id, "payload": payload});
    let began = Instant::now();
    let wait = format!("?wait=mined&timeout={}ms", ms(within));
    let (status, tx) = node.node.api.create(body, &wait).await?;
    ensure(status.is_success(), format!("a payment: {status} {tx}"))?;
    let is_mined =
        tx["receipt"]["blockNumber"].is_number() || tx["receipt"]["blockNumber"].is_string();
    Ok(is_mined.then(|| began.elapsed()))
}
