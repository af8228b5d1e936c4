//! 2.2: `kill -9` at random moments under load, restart on the same folder, many rounds in a row, once
//! with the chain in the same process and once with a chain that lives on: every accepted tx exactly
//! once on chain, no gap left, nothing stuck.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alloy_primitives::U256;
use proof::{Options, Outcome, Report, Server, demand, eventually, flag, random_address, say};
use rand::Rng;
use serde_json::{Value, json};

const CLIENTS: usize = 16;
const LANES: usize = 3;

/// What was promised to the business: recipient by request id.
#[derive(Default)]
struct Promises {
    accepted: Mutex<BTreeMap<String, String>>,
    asked: Mutex<BTreeMap<String, (String, String)>>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut report = Report::new("02-2-kill-nine");
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

async fn prove(report: &mut Report) -> Outcome<String> {
    let rounds: u32 = flag("rounds", "50").parse()?;
    let seed: u64 = flag("seed", &rand::random::<u32>().to_string()).parse()?;
    report.fact("seed", seed);
    report.fact("rounds", rounds);
    let mut total = 0;
    for outside in [false, true] {
        total += series(report, rounds, seed, outside).await?;
    }
    Ok(format!(
        "{} kills, {total} accepted txs, each exactly once on chain, 0 lost, 0 doubled, 0 stuck",
        rounds * 2
    ))
}

async fn series(report: &mut Report, rounds: u32, seed: u64, outside: bool) -> Outcome<usize> {
    let place = if outside {
        "chain living on"
    } else {
        "chain in the same process"
    };
    say(format!("{rounds} rounds, {place}"));
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
    let promises = Arc::new(Promises::default());
    let mut rng =
        <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(seed + u64::from(outside));
    for round in 0..rounds {
        let server = Server::dev(&options).await?;
        let load = load(&server, &promises, round);
        let life = Duration::from_millis(rng.random_range(20..1_200));
        tokio::time::timeout(life, load).await.ok(); // the kill ends the load
        server.kill_nine().await?;
    }
    let server = Server::dev(&options).await?;
    let accepted = audit(&server, &promises).await?;
    let key = if outside {
        "acceptedOutside"
    } else {
        "acceptedInside"
    };
    report.fact(key, accepted);
    Ok(accepted)
}

/// Payments to unique recipients, as fast as a few clients can; some repeated, as clients do.
async fn load(server: &Server, promises: &Arc<Promises>, round: u32) {
    let count = Arc::new(AtomicU64::new(0));
    let clients = (0..CLIENTS).map(|client| {
        let (api, promises, count) = (server.api.clone(), Arc::clone(promises), Arc::clone(&count));
        let signer = server.accounts[client % LANES].clone();
        async move {
            loop {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let id = format!("r{round}-{number}");
                let to = random_address();
                promises
                    .asked
                    .lock()
                    .expect("no panic")
                    .insert(id.clone(), (signer.clone(), to.clone()));
                let gas = if number % 5 == 0 {
                    Value::Null
                } else {
                    json!("21000")
                };
                let mut payload = json!({"to": to, "value": "1"});
                if !gas.is_null() {
                    payload["gas"] = gas;
                }
                let body = json!({"signer": signer, "requestId": id, "payload": payload});
                for _repeat in 0..=u32::from(number % 10 == 0) {
                    match api.create(body.clone(), "").await {
                        Ok((status, _)) if status.is_success() => {
                            promises
                                .accepted
                                .lock()
                                .expect("no panic")
                                .insert(id.clone(), to.clone());
                        }
                        Ok(_) => {}
                        Err(_) => return, // killed
                    }
                }
            }
        }
    });
    futures::future::join_all(clients).await;
}

/// From the chain's balances and the store: every accepted request exactly once, nothing else at all.
async fn audit(server: &Server, promises: &Promises) -> Outcome<usize> {
    let within = Duration::from_secs(120);
    let open = eventually("every tx is final", within, || async {
        let txs = server.api.all_txs().await?;
        let open = txs.iter().filter(|tx| tx["state"] != "CONFIRMED").count();
        Ok((open == 0).then_some(txs))
    });
    let txs = open.await?;
    let accepted = promises.accepted.lock().expect("no panic").clone();
    let asked = promises.asked.lock().expect("no panic").clone();
    let stored: BTreeMap<String, &Value> = txs
        .iter()
        .map(|tx| (tx["requestId"].as_str().unwrap_or_default().to_owned(), tx))
        .collect();
    demand(stored.len() == txs.len(), "a request id has two txs")?;
    for id in accepted.keys() {
        demand(
            stored.contains_key(id),
            format!("{id} was accepted and is lost"),
        )?;
    }
    let recipients: Vec<String> = asked.values().map(|(_, to)| to.clone()).collect();
    let balances = server.chain.balances(&recipients).await?;
    for (id, balance) in asked.keys().zip(&balances) {
        let expected = U256::from(u8::from(stored.contains_key(id)));
        demand(
            *balance == expected,
            format!("{id}: {balance} wei arrived instead of {expected}"),
        )?;
    }
    for signer in server.accounts.iter().take(LANES) {
        let mut nonces: Vec<u64> = txs
            .iter()
            .filter(|tx| tx["signer"] == signer.as_str())
            .filter_map(|tx| tx["nonce"].as_u64())
            .collect();
        nonces.sort_unstable();
        let gapless = nonces.iter().copied().eq(0..nonces.len() as u64);
        demand(
            gapless,
            format!("the nonces of {signer} have a gap or a repeat"),
        )?;
        let on_chain = server.chain.nonce(signer).await?;
        demand(
            on_chain == nonces.len() as u64,
            format!("{signer}: chain nonce {on_chain}"),
        )?;
    }
    Ok(accepted.len())
}
