//! 2.3: 100 concurrent equal requests create one tx; the same key with another payload is a 422; 1,000 concurrent
//! creates on one lane get the nonces 0…999.

use std::collections::BTreeSet;

use futures::future::join_all;
use proof::{Options, Outcome, Report, Server, ensure, random_address};
use serde_json::json;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let folder = tempfile::tempdir()?;
    let server = Server::dev(&Options {
        dir: folder.path().into(),
        ..Options::default()
    })
    .await?;
    let api = &server.api;

    let signer = &server.accounts[0];
    let to = random_address();
    let same = json!({"signer": signer, "requestId": "same", "payload": {"to": to, "value": "1"}});
    let answers = join_all((0..100).map(|_| api.create(same.clone(), ""))).await;
    let mut ids = BTreeSet::new();
    let mut created = 0;
    for answer in answers {
        let (status, tx) = answer?;
        ensure(
            matches!(status.as_u16(), 200 | 202),
            format!("{status}: {tx}"),
        )?;
        created += u32::from(status.as_u16() == 202);
        ids.insert(tx["txId"].to_string());
    }
    report.fact("equalRequests", 100);
    report.fact("txs", ids.len());
    ensure(
        ids.len() == 1 && created == 1,
        format!("100 equal requests made {} txs, {created} new", ids.len()),
    )?;

    let other = json!({"signer": signer, "requestId": "same", "payload": {"to": to, "value": "2"}});
    let (status, problem) = api.create(other, "").await?;
    ensure(
        status.as_u16() == 422,
        format!("another payload under the key: {status} {problem}"),
    )?;

    let signer = &server.accounts[1];
    let creates = (0..1_000).map(|n| {
        let payload = json!({"to": random_address(), "value": "1", "gas": "21000"});
        api.create(
            json!({"signer": signer, "requestId": format!("n{n}"), "payload": payload}),
            "",
        )
    });
    let mut nonces = BTreeSet::new();
    for answer in join_all(creates).await {
        let (status, tx) = answer?;
        ensure(status.as_u16() == 202, format!("{status}: {tx}"))?;
        nonces.insert(
            tx["nonce"]
                .as_u64()
                .ok_or("an accept answer without nonce")?,
        );
    }
    let gapless = nonces.iter().copied().eq(0..1_000);
    report.fact("creates", 1_000);
    ensure(
        gapless,
        format!("1000 creates got {} different nonces", nonces.len()),
    )?;
    Ok("100 equal requests → 1 tx; other payload → 422; 1000 creates → nonces 0…999".into())
}
