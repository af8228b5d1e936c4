//! 2.1: one command, then a tx whose accept response has nonce and hash, and which is confirmed a moment later; a
//! reverting call is refused at the estimate with its reason, and with explicit gas ends FAILED_FINAL with the
//! reason; the transferred value is on the chain.

use std::time::{Duration, Instant};

use alloy_primitives::{U256, hex};
use proof::{
    Options, Outcome, Report, Server, ensure, eventually, first_lines, random_address, run,
};
use serde_json::{Value, json};

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let folder = tempfile::tempdir()?;
    let started = Instant::now();
    let server = Server::dev(&Options {
        dir: folder.path().into(),
        ..Options::default()
    })
    .await?;
    let ready_ms = started.elapsed().as_millis();
    report.fact("startMs", u64::try_from(ready_ms)?);
    ensure(
        ready_ms < 2_000,
        format!("dev took {ready_ms} ms to start; it must be under 2000"),
    )?;

    let confirmed_ms = transfer(report, &server).await?;
    cli(report, &server).await?;
    reverts(report, &server).await?;
    Ok(format!(
        "ready after {ready_ms} ms, confirmed {confirmed_ms} ms after the accept"
    ))
}

async fn transfer(report: &mut Report, server: &Server) -> Outcome<u128> {
    let to = random_address();
    let signer = &server.accounts[0];
    let body = json!({"signer": signer, "requestId": "first", "payload": {"to": to, "value": "1000000000000000000"}});
    let accepted_at = Instant::now();
    let (status, tx) = server.api.create(body, "").await?;
    ensure(
        status.as_u16() == 202,
        format!("a new tx must answer 202, not {status}: {tx}"),
    )?;
    ensure(
        tx["nonce"] == 0,
        format!("the accept response must have a nonce: {tx}"),
    )?;
    ensure(
        tx["txHash"].is_string(),
        format!("the accept response must have a txHash: {tx}"),
    )?;
    let id = tx["txId"].as_str().unwrap_or_default().to_owned();
    let (_, last) = server
        .api
        .get(&format!("/api/v1/tx/{id}?wait=confirmed&timeout=30s"))
        .await?;
    let confirmed_ms = accepted_at.elapsed().as_millis();
    ensure(
        last["state"] == "CONFIRMED",
        format!("it must be CONFIRMED: {last}"),
    )?;
    ensure(
        last["txHash"] == tx["txHash"],
        "the hash in the accept response is the one that was mined",
    )?;
    let required = last["confirmations"].as_array().map_or(0, Vec::len);
    ensure(
        required == 3,
        format!("its block and 2 confirmations are reported: {last}"),
    )?;
    ensure(
        server.chain.balance(&to).await? == U256::from(10).pow(U256::from(18)),
        "1 ETH arrived",
    )?;
    let (_, history) = server.api.get(&format!("/api/v1/tx/{id}/events")).await?;
    let kinds: Vec<&str> = history["events"].as_array().map_or(Vec::new(), |events| {
        events
            .iter()
            .filter_map(|event| event["type"].as_str())
            .collect()
    });
    let expected = [
        "TxAccepted",
        "TxSubmitted",
        "TxReceiptUpdated",
        "TxConfirmed",
    ];
    ensure(
        kinds == expected,
        format!("every step is reported, once and in order: {kinds:?}"),
    )?;
    report.fact("confirmedMs", u64::try_from(confirmed_ms)?);
    Ok(confirmed_ms)
}

/// The README's commands, as a user types them.
async fn cli(report: &mut Report, server: &Server) -> Outcome<()> {
    let env = [("LANEKEEPER_URL", server.api.url())];
    let to = random_address();
    let signer = server.accounts[0].as_str();
    let send = [
        "tx",
        "send",
        "--from",
        signer,
        "--to",
        &to,
        "--value",
        "0.1eth",
        "--wait",
        "confirmed",
    ];
    let output = run(&send, &env).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(
        output.status.success(),
        format!(
            "tx send failed: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        ),
    )?;
    ensure(
        text.contains("confirmed"),
        format!("tx send shows the end: {text}"),
    )?;
    ensure(
        server.chain.balance(&to).await? == U256::from(10).pow(U256::from(17)),
        "0.1 ETH arrived",
    )?;
    let events = first_lines(&["events", "tail", "--json"], &env, 8).await?;
    ensure(
        events.iter().all(|line| line.contains("\"seq\"")),
        "events tail shows events",
    )?;
    report.fact("cli", "tx send --wait confirmed, events tail");
    Ok(())
}

/// A contract whose every call reverts with `Error("closed")`.
fn closed_contract() -> String {
    let mut message = hex!("08c379a0").to_vec();
    message.extend(U256::from(32).to_be_bytes::<32>());
    message.extend(U256::from(6).to_be_bytes::<32>());
    message.extend(b"closed");
    message.extend([0; 26]);
    let mut code = hex!("6064600c60003960646000fd").to_vec();
    code.extend(message);
    let mut init = hex!("6070600c60003960706000f3").to_vec();
    init.extend(code);
    format!("0x{}", hex::encode(init))
}

async fn reverts(report: &mut Report, server: &Server) -> Outcome<()> {
    let signer = &server.accounts[1];
    let deploy =
        json!({"signer": signer, "requestId": "deploy", "payload": {"data": closed_contract()}});
    let (status, deployed) = server
        .api
        .create(deploy, "?wait=confirmed&timeout=30s")
        .await?;
    ensure(
        deployed["state"] == "CONFIRMED",
        format!("{status}: the deployment: {deployed}"),
    )?;
    let hash = deployed["txHash"].clone();
    let receipt = server
        .chain
        .call("eth_getTransactionReceipt", json!([hash]))
        .await?;
    let contract = receipt["contractAddress"].clone();
    let call = |id: &str, gas: Value| {
        let mut payload = json!({"to": contract, "data": "0x12345678"});
        if !gas.is_null() {
            payload["gas"] = gas;
        }
        json!({"signer": signer, "requestId": id, "payload": payload})
    };
    let (status, problem) = server
        .api
        .create(call("tried-out", Value::Null), "")
        .await?;
    ensure(
        status.as_u16() == 422,
        format!("a reverting call is refused: {status} {problem}"),
    )?;
    let detail = problem["detail"].as_str().unwrap_or_default();
    ensure(
        detail.contains("closed"),
        format!("with its reason: {problem}"),
    )?;
    report.fact("refusedWith", detail);
    let query = format!("/api/v1/tx/by-request?chainId=31337&signer={signer}&requestId=tried-out");
    let (status, _) = server.api.get(&query).await?;
    ensure(status.as_u16() == 404, "nothing of it was stored")?;

    let (_, tx) = server
        .api
        .create(
            call("forced", json!("100000")),
            "?wait=confirmed&timeout=30s",
        )
        .await?;
    ensure(
        tx["state"] == "FAILED_FINAL",
        format!("with explicit gas it is mined and fails: {tx}"),
    )?;
    let reason = tx["reason"].as_str().unwrap_or_default();
    ensure(reason.contains("closed"), format!("with the reason: {tx}"))?;
    report.fact("failedWith", reason);
    let nonce = eventually("nonce 2 on chain", Duration::from_secs(5), || async {
        Ok(Some(server.chain.nonce(signer).await?).filter(|nonce| *nonce == 2))
    });
    ensure(nonce.await? == 2, "the refused call cost no nonce")
}
