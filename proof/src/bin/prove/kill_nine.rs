//! 2.2: `kill -9` at random times under load, restart on the same data, many rounds, with the chain in the same
//! process and with a separate chain: every accepted tx exactly once on chain, no gap, nothing stuck.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proof::audit::Audit;
use proof::ledger::{Ledger, Promise};
use proof::{Options, Outcome, Report, Server, flag, print_step};
use rand::Rng;

const CLIENTS: usize = 16;
const LANES: usize = 3;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let rounds: u32 = flag("rounds", "50").parse()?;
    let seed: u64 = flag("seed", &rand::random::<u32>().to_string()).parse()?;
    report.fact("seed", seed);
    report.fact("rounds", rounds);
    let mut total = 0;
    for outside in [false, true] {
        total += series(report, rounds, seed, outside).await?;
    }
    Ok(format!(
        "{} kills, {total} accepted txs, each exactly once on chain, 0 lost, 0 duplicated, 0 stuck",
        rounds * 2
    ))
}

async fn series(report: &mut Report, rounds: u32, seed: u64, outside: bool) -> Outcome<usize> {
    let place = if outside {
        "separate chain"
    } else {
        "chain in the same process"
    };
    print_step(format!("{rounds} rounds, {place}"));
    let folder = tempfile::tempdir()?;
    let chain_folder = tempfile::tempdir()?;
    let chain = match outside {
        true => Some(Server::devchain(chain_folder.path(), &[]).await?),
        false => None,
    };
    let options = Options {
        dir: folder.path().into(),
        chain_url: chain.as_ref().map(|chain| chain.chain.url().to_owned()),
        ..Options::default()
    };
    let ledger = Ledger::default();
    let mut rng =
        <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(seed + u64::from(outside));
    for round in 0..rounds {
        let server = Server::dev(&options).await?;
        let load = load(&server, &ledger, round);
        let life = Duration::from_millis(rng.random_range(20..1_200));
        // The kill ends the load; an earlier end is a contradiction between two responses.
        if let Ok(ended) = tokio::time::timeout(life, load).await {
            ended?;
        }
        server.kill_nine().await?;
    }
    let server = Server::dev(&options).await?;
    let audit = Audit {
        api: &server.api,
        chain: &server.chain,
        lanes: &server.accounts[..LANES],
        ledger: &ledger,
        within: Duration::from_secs(120),
    };
    let accepted = audit.run().await?.promised;
    let key = if outside {
        "acceptedOutside"
    } else {
        "acceptedInside"
    };
    report.fact(key, accepted);
    Ok(accepted)
}

/// Payments to unique recipients from several clients; some are repeated, as clients do.
async fn load(server: &Server, ledger: &Ledger, round: u32) -> Outcome<()> {
    let count = AtomicU64::new(0);
    let clients = (0..CLIENTS).map(|client| {
        let signer = &server.accounts[client % LANES];
        let count = &count;
        async move {
            loop {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let id = format!("r{round}-{number}");
                let body = ledger.transfer_body(signer, &id);
                for _repeat in 0..=u32::from(number.is_multiple_of(10)) {
                    match server.api.create(body.clone(), "").await {
                        Ok((status, tx)) if status.is_success() => {
                            ledger.record_promise(&id, Promise::read(&tx))?;
                        }
                        Ok(_) => {}
                        Err(_) => return Outcome::Ok(()), // killed
                    }
                }
            }
        }
    });
    futures::future::try_join_all(clients).await?;
    Ok(())
}
