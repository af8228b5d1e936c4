//! 14.2: the preferred endpoint of a chain hangs, lies, lags or is slow, by method, with one, two and three endpoints, under
//! payments on that chain and on another one: how long payments wait, and what the other lane notices.

mod cases;
mod payer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy_primitives::U256;
use proof::cluster::run_blocking;
use proof::config::Config;
use proof::network::{Network, NodeKind, Terms, signer};
use proof::single_node::{self, SingleNode};
use proof::stats::{Spread, ms};
use proof::{Chain, Outcome, Report, ensure, flag, print_step};
use rig::evm::{CHAIN_ID, EvmNode, Kind, Mining, Options};
use rig::rpc_proxy::RpcProxy;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use cases::{Case, LAG_BLOCKS, chosen};
use payer::{Payer, Payment};

const PROOF: &str = "14-2-endpoints";

/// The chain of the other lane, whose endpoint is healthy.
const OTHER_CHAIN_ID: u64 = CHAIN_ID + 1;

/// Payments before the fault, with it, and after it.
const CALM: Duration = Duration::from_secs(3);
const FAULT: Duration = Duration::from_secs(12);
const AFTER: Duration = Duration::from_secs(6);

/// With a healthy endpoint besides, counted from the payment's request; with one endpoint, from the end of the fault.
const FLOWS_WITHIN: Duration = Duration::from_secs(10);

/// The other lane: p99 of the accepts, and of the time until its payments are mined.
const OTHER_ACCEPTED_WITHIN: Duration = Duration::from_secs(1);
const OTHER_MINED_WITHIN: Duration = Duration::from_secs(5);

/// The default of `chain.feeCap`: this many times the highest base fee and tip of the last blocks.
const FEE_CAP_TIMES: u128 = 10;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let cases = chosen()?;
    let chains = Arc::new(Chains::start(cases.len()).await?);
    let room = Arc::new(Semaphore::new(flag("at-once", "4").parse()?));
    let mut running = JoinSet::new();
    for (number, case) in cases.iter().copied().enumerate() {
        let (room, chains) = (Arc::clone(&room), Arc::clone(&chains));
        running.spawn(async move {
            let _permit = room.acquire_owned().await;
            (case, chains.try_case(case, number).await)
        });
    }
    let (mut table, mut shortfalls) = (Table::default(), Vec::new());
    while let Some(ended) = running.join_next().await {
        let (case, outcome) = ended?;
        match outcome {
            Ok(figures) => {
                print_step(format!("{}: {}", case.name(), figures.to_json()));
                report.note(&case.name(), figures.to_json());
                shortfalls.extend(
                    figures
                        .shortfall()
                        .map(|why| format!("{}: {why}", case.name())),
                );
                table.insert(&case, figures);
            }
            Err(error) => shortfalls.push(format!("{}: {error}", case.name())),
        }
    }
    shortfalls.sort_unstable();
    print_step(table.to_markdown(&cases));
    report.note("table", table.to_markdown(&cases));
    report.fact("shortfalls", json!(shortfalls));
    ensure(
        shortfalls.is_empty(),
        format!(
            "{} of {} fall short: {}",
            shortfalls.len(),
            cases.len(),
            shortfalls.join("; ")
        ),
    )?;
    let slowest = |figure: fn(&Figures) -> Duration| {
        ms(table.figures.values().map(figure).max().unwrap_or_default())
    };
    Ok(format!(
        "{} faults of endpoints, {} payments: payments flow again after {} ms at most (must {}); the other lane meanwhile: \
         p99 accepted after {} ms, mined after {} ms",
        cases.len(),
        table
            .figures
            .values()
            .map(|figures| figures.payments)
            .sum::<usize>(),
        slowest(|figures| figures.flows_after),
        ms(FLOWS_WITHIN),
        slowest(|figures| figures.other_accepted.percentile(99)),
        slowest(|figures| figures.other_mined.percentile(99)),
    ))
}

/// The two chains. Every case has its own account on both, its own endpoints, and its own node.
struct Chains {
    faulty: Network,
    other: EvmNode,
}

impl Chains {
    async fn start(cases: usize) -> Outcome<Self> {
        let accounts = u32::try_from(cases)?;
        let terms = Terms {
            accounts,
            ..Terms::default()
        };
        let faulty = Network::start(NodeKind::Devchain, terms).await?;
        faulty.mine(LAG_BLOCKS + 5).await?; // a lagging endpoint needs blocks to hide
        let options = Options {
            chain_id: OTHER_CHAIN_ID,
            mining: Mining::Every(Duration::from_secs(1)),
            accounts,
            ..Options::default()
        };
        let other = run_blocking(move || EvmNode::start(Kind::Anvil, options)).await?;
        Ok(Self { faulty, other })
    }

    async fn try_case(&self, case: Case, number: usize) -> Outcome<Figures> {
        let proxies: Vec<RpcProxy> = (0..case.endpoints)
            .map(|seed| RpcProxy::in_front_of(self.faulty.url(), seed as u64 + 1))
            .collect();
        let lanes = u32::try_from(number)? + 1;
        let node = SingleNode::start(&self.node(&case, &proxies, lanes)).await?;
        let payer = |chain_id: u64| Payer {
            api: node.node.api.clone(),
            chain_id,
            signer: signer(lanes - 1),
        };
        let (faulty, other) = (payer(CHAIN_ID).start(), payer(OTHER_CHAIN_ID).start());
        tokio::time::sleep(CALM).await;
        let fault_began = Instant::now();
        case.fault.inject(&proxies[0]);
        tokio::time::sleep(FAULT).await;
        let fault_ended = Instant::now();
        let struck = proxies[0].faults();
        proxies[0].heal();
        tokio::time::sleep(AFTER).await;
        let (faulty, other) = tokio::try_join!(faulty.stop(), other.stop())?;
        let span = Span {
            began: fault_began,
            ended: fault_ended,
        };
        Ok(Figures {
            flows_after: span.flows_after(&faulty, case.endpoints),
            payments: faulty.len() + other.len(),
            unmined: faulty
                .iter()
                .filter(|payment| payment.mined.is_none())
                .count(),
            fee: faulty
                .iter()
                .map(|payment| payment.fee)
                .max()
                .unwrap_or_default(),
            fee_limit: fee_limit(&self.faulty.chain).await?,
            other_accepted: span.spread(&other, |payment| Some(payment.accepted)),
            other_mined: span.spread(&other, |payment| payment.mined),
            struck,
        })
    }

    fn node(&self, case: &Case, proxies: &[RpcProxy], lanes: u32) -> single_node::Terms {
        let other = self.other.url();
        single_node::Terms {
            proof: PROOF,
            name: case.file_name(),
            store: None,
            config: Config {
                rpc: proxies.iter().map(RpcProxy::url).collect(),
                block_time: Some(Duration::from_secs(1)),
                lanes,
                more: format!(
                    "[[chain]]\nid = {OTHER_CHAIN_ID}\nrpc = [{other:?}]\nblockTime = \"1s\"\nconfirmations = 1\n\
                     [nonce]\nstateTimeout = \"2s\"\n[lane]\ngapFillAfter = \"4s\"\n"
                ),
                ..Config::default()
            },
        }
    }
}

/// What the default of `chain.feeCap` allows on a chain.
async fn fee_limit(chain: &Chain) -> Outcome<u128> {
    let history = json!(["0x400", "latest", []]);
    let history = chain.call("eth_feeHistory", history).await?;
    let parse = |fee: &Value| -> Option<u128> {
        let fee: U256 = fee.as_str()?.parse().ok()?;
        u128::try_from(fee).ok()
    };
    let fees = history["baseFeePerGas"].as_array().into_iter().flatten();
    let highest = fees
        .filter_map(parse)
        .max()
        .ok_or("the chain has no base fee")?;
    let tip = chain.call("eth_maxPriorityFeePerGas", json!([])).await?;
    let tip = parse(&tip).ok_or("the chain suggests no tip")?;
    Ok(FEE_CAP_TIMES * (highest + tip))
}

/// When the fault was there.
struct Span {
    began: Instant,
    ended: Instant,
}

impl Span {
    fn during<'a>(&self, payments: &'a [Payment]) -> impl Iterator<Item = &'a Payment> {
        let span = self.began..self.ended;
        payments
            .iter()
            .filter(move |payment| span.contains(&payment.posted))
    }

    /// The longest wait of a payment that was requested with the fault. With only one endpoint it may wait for the end of
    /// the fault.
    fn flows_after(&self, payments: &[Payment], endpoints: usize) -> Duration {
        let wait = |payment: &Payment| match (payment.mined, endpoints) {
            (None, _) => payer::MINED_WITHIN,
            (Some(mined), 1) => mined.saturating_duration_since(payment.posted.max(self.ended)),
            (Some(mined), _) => mined.saturating_duration_since(payment.posted),
        };
        self.during(payments).map(wait).max().unwrap_or_default()
    }

    fn spread(&self, payments: &[Payment], until: fn(&Payment) -> Option<Instant>) -> Spread {
        let took = |payment: &Payment| match until(payment) {
            Some(at) => at.saturating_duration_since(payment.posted),
            None => payer::MINED_WITHIN,
        };
        Spread::of(self.during(payments).map(took).collect())
    }
}

struct Figures {
    flows_after: Duration,
    payments: usize,
    unmined: usize,
    /// The highest fee per gas that was signed, and the highest that may be.
    fee: u128,
    fee_limit: u128,
    other_accepted: Spread,
    other_mined: Spread,
    /// How many calls the fault changed. (A lagging view is not counted by call.)
    struck: u64,
}

impl Figures {
    fn shortfall(&self) -> Option<String> {
        let other_accepted = self.other_accepted.percentile(99);
        let other_mined = self.other_mined.percentile(99);
        let checks = [
            (
                self.unmined == 0,
                format!("{} payments are never mined", self.unmined),
            ),
            (
                self.flows_after <= FLOWS_WITHIN,
                format!("payments flow again after {:?}", self.flows_after),
            ),
            (
                self.fee <= self.fee_limit,
                format!(
                    "{} wei per gas were signed, {} are allowed",
                    self.fee, self.fee_limit
                ),
            ),
            (
                other_accepted <= OTHER_ACCEPTED_WITHIN,
                format!("the other lane accepts after {other_accepted:?}"),
            ),
            (
                other_mined <= OTHER_MINED_WITHIN,
                format!("the other lane's payments are mined after {other_mined:?}"),
            ),
        ];
        let broken: Vec<String> = checks
            .into_iter()
            .filter(|(holds, _)| !holds)
            .map(|(_, why)| why)
            .collect();
        (!broken.is_empty()).then(|| broken.join(", "))
    }

    fn to_json(&self) -> Value {
        json!({
            "flowsAfterMs": ms(self.flows_after),
            "payments": self.payments,
            "neverMined": self.unmined,
            "highestFeeWei": self.fee.to_string(),
            "feeLimitWei": self.fee_limit.to_string(),
            "otherAccepted": self.other_accepted.to_json(),
            "otherMined": self.other_mined.to_json(),
            "callsStruck": self.struck,
        })
    }
}

/// A row for each fault, a column for each number of endpoints.
#[derive(Default)]
struct Table {
    figures: BTreeMap<(String, usize), Figures>,
}

impl Table {
    fn insert(&mut self, case: &Case, figures: Figures) {
        self.figures
            .insert((case.fault.name(), case.endpoints), figures);
    }

    fn to_markdown(&self, cases: &[Case]) -> String {
        let (mut rows, mut columns) = (Vec::new(), Vec::new());
        for case in cases {
            let row = case.fault.name();
            if !rows.contains(&row) {
                rows.push(row);
            }
            if !columns.contains(&case.endpoints) {
                columns.push(case.endpoints);
            }
        }
        let heads: Vec<String> = columns.iter().map(|count| format!("of {count}")).collect();
        let mut lines = vec![
            format!("| one endpoint | {} |", heads.join(" | ")),
            format!("|---|{}", "---|".repeat(columns.len())),
        ];
        for row in rows {
            let cells = columns.iter().map(|count| self.cell(&row, *count));
            lines.push(format!(
                "| {row} | {} |",
                cells.collect::<Vec<_>>().join(" | ")
            ));
        }
        lines.join("\n")
    }

    /// Payments flow again; p99 of the other lane: accepted, mined.
    fn cell(&self, row: &str, endpoints: usize) -> String {
        let Some(figures) = self.figures.get(&(row.to_owned(), endpoints)) else {
            return "failed".into();
        };
        let seconds = |duration: Duration| format!("{:.1} s", duration.as_secs_f64());
        format!(
            "{}; {} ms, {}",
            seconds(figures.flows_after),
            ms(figures.other_accepted.percentile(99)),
            seconds(figures.other_mined.percentile(99)),
        )
    }
}
