//! 4.1: transfers on one lane and a chain with blocks of 1 s, posted one by one: how long until all are
//! mined and confirmed, beside a bare sender that signs ahead and fires as many at the same kind of node.
//!
//! The two take turns, each on a chain of its own, and begin at the same moments between two blocks. These
//! moments are spread evenly over a block's time and the means are compared: a single round waits for a
//! whole block more or less by a few milliseconds, so its figure (and a median) says little.

mod depth;
mod senders;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use proof::cluster::postgres;
use proof::network::Make;
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, demand, flag, say};
use rig::postgres::{Postgres, majors};
use serde_json::json;

use senders::{Ours, PROOF, Round};
use watch::Seen;

/// Of the bare sender's time until all are mined.
const OF_BARE_MAX: f64 = 1.5;
/// How much later than it could the node may have the last bytes: by then the depth must be found.
const LAG_MAX: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> ExitCode {
    let mut report = Report::new(PROOF);
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

async fn prove(report: &mut Report) -> Outcome<String> {
    let count: usize = flag("txs", "2000").parse()?;
    let rounds: usize = flag("rounds", "10").parse()?;
    let others = flag("others", "hardhat,ganache,devchain");
    let major = majors().last().copied().ok_or("no PostgreSQL")?;
    let server = postgres(major).await?;
    say("anvil without blocks: a few first, then many");
    let found = depth::found_within(report, &server, count).await?;
    let anvil = Make::ANVIL;
    let anvil = compare(report, anvil, count, rounds, &server).await?;
    let mut compared = vec![anvil.clone()];
    for make in Make::ALL.into_iter().skip(1) {
        if others.split(',').any(|other| other == make.name()) {
            compared.push(compare(report, make, count.min(most(make)), 1, &server).await?);
        }
    }
    demand(
        anvil.of_bare() <= OF_BARE_MAX,
        format!(
            "on anvil {} of the bare sender's time, more than {OF_BARE_MAX}: {}",
            ratio(anvil.of_bare()),
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
    demand(
        found <= LAG_MAX,
        format!("the depth was found after {found:?}"),
    )?;
    let texts: Vec<String> = compared.iter().map(Compared::text).collect();
    Ok(format!(
        "transfers on one lane, blocks of 1 s, means of {rounds}: {} (must {OF_BARE_MAX} on anvil); a few \
         first and then {count}: all at the node {} ms after the last accept",
        texts.join("; "),
        ms(found)
    ))
}

/// The most transfers that a make bears: ganache takes a second for the first 100 and many minutes for 2,000,
/// whoever sends them.
fn most(make: Make) -> usize {
    match make {
        Make::GANACHE => 500,
        Make::ANVIL | Make::HARDHAT | Make::Devchain => usize::MAX,
    }
}

/// Means of both senders on one make.
#[derive(Clone, Debug)]
struct Compared {
    make: Make,
    count: usize,
    bare_mined: Duration,
    ours_mined: Duration,
    ours_confirmed: Duration,
    /// How much later than it could the node held everything: it could when the last was accepted and the
    /// bare sender was through, for some nodes take seconds for so many.
    lag: Option<Duration>,
}

impl Compared {
    fn of_bare(&self) -> f64 {
        self.ours_mined.as_secs_f64() / self.bare_mined.as_secs_f64()
    }

    fn text(&self) -> String {
        let lag = match self.lag {
            Some(lag) => format!("all at the node {} ms later than it could", ms(lag)),
            None => "what it holds it does not tell".to_owned(),
        };
        format!(
            "{} ({}): mined after {} ms, {} of the bare sender's {} ms, confirmed after {} ms, {lag}",
            self.make.name(),
            self.count,
            ms(self.ours_mined),
            ratio(self.of_bare()),
            ms(self.bare_mined),
            ms(self.ours_confirmed),
        )
    }
}

fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

async fn compare(
    report: &mut Report,
    make: Make,
    count: usize,
    rounds: usize,
    server: &Postgres,
) -> Outcome<Compared> {
    let (mut bare, mut ours): (Vec<Seen>, Vec<Ours>) = (Vec::new(), Vec::new());
    for number in 0..rounds {
        #[expect(clippy::cast_precision_loss, reason = "a share of a block's time")]
        let share = number as f64 / rounds as f64;
        let round = Round {
            make,
            number,
            count,
            share,
        };
        say(format!("{}, round {number}: the bare sender", make.name()));
        bare.push(senders::bare(round).await?);
        say(format!("{}, round {number}: Lanekeeper", make.name()));
        ours.push(senders::ours(round, server).await?);
    }
    report.fact(
        make.name(),
        json!({
            "bareMinedMs": bare.iter().map(|seen| ms(seen.mined)).collect::<Vec<_>>(),
            "bareAtNodeMs": bare.iter().map(|seen| seen.at_node.map(ms)).collect::<Vec<_>>(),
            "ours": ours.iter().map(Ours::to_json).collect::<Vec<_>>(),
        }),
    );
    let pairs = ours.iter().zip(&bare);
    let lags: Option<Vec<Duration>> = pairs.map(|(ours, bare)| ours.lag(bare)).collect();
    Ok(Compared {
        make,
        count,
        bare_mined: mean(bare.iter().map(|seen| seen.mined)),
        ours_mined: mean(ours.iter().map(|ours| ours.seen.mined)),
        ours_confirmed: mean(ours.iter().map(|ours| ours.confirmed)),
        lag: lags
            .filter(|_| make.counts_pending())
            .map(|lags| Spread::of(lags).max()),
    })
}

fn mean(times: impl Iterator<Item = Duration>) -> Duration {
    let times: Vec<Duration> = times.collect();
    let count = u32::try_from(times.len()).expect("a few rounds");
    times.iter().sum::<Duration>() / count
}
