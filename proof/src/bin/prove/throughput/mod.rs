//! 4.1: transfers on one lane and a chain with a block time of 1 s, posted one by one: the time until all are mined
//! and confirmed, compared with a plain sender that signs in advance and sends the same number to the same kind of
//! node.
//!
//! Both take turns, each on its own chain, and start at the same offsets between two blocks. The offsets are spread
//! evenly over the block time and the means are compared: a single round can wait one block more or less because of
//! a few milliseconds, so its value (and a median) says little.

mod depth;
mod senders;
mod watch;

use std::time::Duration;

use proof::cluster::postgres;
use proof::network::NodeKind;
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, ensure, flag, print_step};
use rig::postgres::{Postgres, majors};
use serde_json::json;

use senders::{LanekeeperResult, Round};
use watch::Seen;

/// Relative to the plain sender's time until all are mined.
const OF_PLAIN_MAX: f64 = 1.5;
/// How much later than possible the node may receive the last bytes: the depth must be found by then.
const LAG_MAX: Duration = Duration::from_secs(1);

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let count: usize = flag("txs", "2000").parse()?;
    let rounds: usize = flag("rounds", "10").parse()?;
    let others = flag("others", "hardhat,ganache,devchain");
    let major = majors().last().copied().ok_or("no PostgreSQL")?;
    let server = postgres(major).await?;
    print_step("anvil without blocks: a few first, then many");
    let found = depth::found_within(report, &server, count).await?;
    let anvil = NodeKind::ANVIL;
    let anvil = compare(report, anvil, count, rounds, &server).await?;
    let mut compared = vec![anvil.clone()];
    for node_kind in NodeKind::ALL.into_iter().skip(1) {
        if others.split(',').any(|other| other == node_kind.name()) {
            compared
                .push(compare(report, node_kind, count.min(most(node_kind)), 1, &server).await?);
        }
    }
    ensure(
        anvil.of_plain() <= OF_PLAIN_MAX,
        format!(
            "on anvil {} of the plain sender's time, more than {OF_PLAIN_MAX}: {}",
            ratio(anvil.of_plain()),
            anvil.text()
        ),
    )?;
    let late = compared
        .iter()
        .find(|of| of.lag.is_some_and(|lag| lag > LAG_MAX));
    if let Some(late) = late {
        let problem = "the depth was not found within a second";
        return Err(format!("{problem}: {}", late.text()).into());
    }
    let found = found.ok_or("what came after the first few was not sent before a block came")?;
    ensure(
        found <= LAG_MAX,
        format!("the depth was found after {found:?}"),
    )?;
    let texts: Vec<String> = compared.iter().map(Compared::text).collect();
    Ok(format!(
        "transfers on one lane, blocks of 1 s, means of {rounds}: {} (limit {OF_PLAIN_MAX} on anvil); a few \
         first and then {count}: all at the node {} ms after the last accept",
        texts.join("; "),
        ms(found)
    ))
}

/// The most transfers that a kind handles: ganache takes a second for the first 100 and many minutes for 2,000,
/// with any sender.
fn most(node_kind: NodeKind) -> usize {
    match node_kind {
        NodeKind::GANACHE => 500,
        NodeKind::ANVIL | NodeKind::HARDHAT | NodeKind::Devchain => usize::MAX,
    }
}

/// The means of both senders on one kind of node.
#[derive(Clone, Debug)]
struct Compared {
    node_kind: NodeKind,
    count: usize,
    plain_mined: Duration,
    lanekeeper_mined: Duration,
    lanekeeper_confirmed: Duration,
    /// The delay until the node held everything, counted from the last accept and the plain sender's end: some
    /// nodes take seconds for that many.
    lag: Option<Duration>,
}

impl Compared {
    fn of_plain(&self) -> f64 {
        self.lanekeeper_mined.as_secs_f64() / self.plain_mined.as_secs_f64()
    }

    fn text(&self) -> String {
        let lag = match self.lag {
            Some(lag) => format!("all at the node {} ms later than it could", ms(lag)),
            None => "its pool is not visible".to_owned(),
        };
        format!(
            "{} ({}): mined after {} ms, {} of the plain sender's {} ms, confirmed after {} ms, {lag}",
            self.node_kind.name(),
            self.count,
            ms(self.lanekeeper_mined),
            ratio(self.of_plain()),
            ms(self.plain_mined),
            ms(self.lanekeeper_confirmed),
        )
    }
}

fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

async fn compare(
    report: &mut Report,
    node_kind: NodeKind,
    count: usize,
    rounds: usize,
    server: &Postgres,
) -> Outcome<Compared> {
    let (mut plain, mut lanekeeper): (Vec<Seen>, Vec<LanekeeperResult>) = (Vec::new(), Vec::new());
    for number in 0..rounds {
        #[expect(clippy::cast_precision_loss, reason = "a share of a block's time")]
        let share = number as f64 / rounds as f64;
        let round = Round {
            node_kind,
            number,
            count,
            share,
        };
        print_step(format!(
            "{}, round {number}: the plain sender",
            node_kind.name()
        ));
        plain.push(senders::run_plain_sender(round).await?);
        print_step(format!("{}, round {number}: Lanekeeper", node_kind.name()));
        lanekeeper.push(senders::run_lanekeeper(round, server).await?);
    }
    report.fact(
        node_kind.name(),
        json!({
            "bareMinedMs": plain.iter().map(|seen| ms(seen.mined)).collect::<Vec<_>>(),
            "bareAtNodeMs": plain.iter().map(|seen| seen.at_node.map(ms)).collect::<Vec<_>>(),
            "ours": lanekeeper.iter().map(LanekeeperResult::to_json).collect::<Vec<_>>(),
        }),
    );
    let pairs = lanekeeper.iter().zip(&plain);
    let lags: Option<Vec<Duration>> = pairs
        .map(|(lanekeeper, plain)| lanekeeper.lag(plain))
        .collect();
    Ok(Compared {
        node_kind,
        count,
        plain_mined: mean(plain.iter().map(|seen| seen.mined)),
        lanekeeper_mined: mean(lanekeeper.iter().map(|lanekeeper| lanekeeper.seen.mined)),
        lanekeeper_confirmed: mean(lanekeeper.iter().map(|lanekeeper| lanekeeper.confirmed)),
        lag: lags
            .filter(|_| node_kind.counts_pending())
            .map(|lags| Spread::of(lags).max()),
    })
}

fn mean(times: impl Iterator<Item = Duration>) -> Duration {
    let times: Vec<Duration> = times.collect();
    let count = u32::try_from(times.len()).expect("a few rounds");
    times.iter().sum::<Duration>() / count
}
