//! 2.6: memory of `dev` when idle, after many txs and after as many again; the growth per finished tx must be near
//! zero. The first half fills the bounded caches, the second shows what a finished tx leaves behind.

use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use proof::{Options, Outcome, Report, Server, ensure, eventually, flag, random_address};
use serde_json::json;

/// The average growth per finished tx. (One attempt alone is larger.)
const BYTES_PER_TX_MAX: f64 = 64.0;
const CLIENTS: usize = 64;
const LANES: usize = 10;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let count: usize = flag("txs", "100000").parse()?;
    let folder = tempfile::tempdir()?;
    let server = Server::dev(&Options {
        dir: folder.path().into(),
        ..Options::default()
    })
    .await?;
    report.fact("restKib", server.resident_kib()?);

    send(&server, 0, count).await?;
    settle(&server).await?;
    let before = server.resident_kib()?;
    report.fact("txs", count);
    report.fact("afterKib", before);
    send(&server, count, 2 * count).await?;
    settle(&server).await?;
    let after = server.resident_kib()?;
    report.fact("afterTwiceKib", after);

    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let per_tx = (after as f64 - before as f64) * 1024.0 / count as f64;
    report.fact("bytesPerFinishedTx", per_tx);
    ensure(
        per_tx < BYTES_PER_TX_MAX,
        format!("{per_tx:.0} bytes per finished tx; at most {BYTES_PER_TX_MAX} are allowed"),
    )?;
    Ok(format!(
        "{} MiB after {count} txs, {} MiB after twice as many: {per_tx:.0} bytes per finished tx",
        before / 1024,
        after / 1024
    ))
}

async fn send(server: &Server, from: usize, to: usize) -> Outcome<()> {
    stream::iter((from..to).map(|number| {
        let signer = &server.accounts[number % LANES];
        let payload = json!({"to": random_address(), "value": "1", "gas": "21000"});
        let body = json!({"signer": signer, "requestId": format!("m{number}"), "payload": payload});
        async move {
            loop {
                let (status, answer) = server.api.create(body.clone(), "").await?;
                match status.as_u16() {
                    202 => return Ok::<(), Box<dyn std::error::Error + Send + Sync>>(()),
                    429 => tokio::time::sleep(Duration::from_millis(50)).await,
                    _ => return Err(format!("{status}: {answer}").into()),
                }
            }
        }
    }))
    .buffer_unordered(CLIENTS)
    .try_collect()
    .await
}

/// Waits until nothing is open, and until final txs are evicted.
async fn settle(server: &Server) -> Outcome<()> {
    eventually("every lane is quiet", Duration::from_secs(300), || async {
        let (_, lanes) = server.api.get("/api/v1/lanes").await?;
        let busy = lanes["lanes"].as_array().ok_or("no lanes")?.iter();
        let open = busy
            .filter(|lane| lane["inFlight"] != 0 || lane["queued"] != 0)
            .count();
        Ok((open == 0).then_some(()))
    })
    .await?;
    server.chain.call("anvil_mine", json!(["0x50"])).await?;
    let mined = server.chain.height().await?;
    eventually(
        "the node has seen them",
        Duration::from_secs(30),
        || async {
            let (_, ready) = server.api.get("/readyz").await?;
            let head = ready["chains"][0]["head"].as_u64();
            Ok(head.filter(|head| *head >= mined).map(drop))
        },
    )
    .await
}
