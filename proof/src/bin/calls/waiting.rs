//! Calls per block while thousands of txs wait at the node and nothing happens but empty blocks.

use std::collections::BTreeMap;

use proof::payers::Payers;
use proof::{Outcome, Report, demand, eventually, say};
use rig::postgres::Postgres;
use serde_json::json;

use crate::{CLIENTS, Counted, DONE_WITHIN, table};

/// What one block may cost.
const PER_BLOCK_MAX: f64 = 3.0;
/// After the last send the node is left alone for so many blocks before counting begins.
const SETTLE_BLOCKS: u64 = 5;

pub(crate) async fn count(
    report: &mut Report,
    server: &Postgres,
    pending: usize,
    blocks: u64,
) -> Outcome<String> {
    say(format!(
        "{pending} txs wait at the node for {blocks} blocks"
    ));
    let more = format!("[lane]\nmempoolDepth = {pending}\n");
    let counted = Counted::start("waiting", server, more).await?;
    let network = &counted.network;
    let lane = &counted.solo.lanes[0];
    let payers = Payers {
        api: &counted.solo.node.api,
        ledger: &counted.solo.ledger,
        lanes: &counted.solo.lanes,
        clients: CLIENTS,
    };
    network.hold_blocks().await?;
    payers.post(pending).await?;
    eventually("all are at the node", DONE_WITHIN, || async {
        let held = network.chain.pending_nonce(lane).await?;
        Ok((held == pending as u64).then_some(()))
    })
    .await?;
    network.blocks_without_room().await?;
    network.pass(SETTLE_BLOCKS).await?;
    let before = counted.proxy.calls();
    let passed = network.pass(blocks).await?;
    let calls = since(&before, &counted.proxy.calls());
    demand(
        network.chain.nonce(lane).await? == 0,
        "something was mined, which was not to happen yet",
    )?;
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let per_block = table(&calls, passed as f64, "block");
    report.fact(
        "waiting",
        json!({"pending": pending, "blocks": passed, "calls": calls, "callsPerBlock": per_block}),
    );
    network.blocks_with_room().await?;
    let audit = counted.solo.audit(&counted.network.chain, DONE_WITHIN);
    let promised = audit.run().await?.promised;
    demand(promised == pending, "a promise is missing")?;
    let figure = format!(
        "{per_block:.2} calls per block with {pending} txs waiting, over {passed} blocks (must {PER_BLOCK_MAX})"
    );
    demand(per_block <= PER_BLOCK_MAX, figure.clone())?;
    Ok(figure)
}

fn since(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let new = now.iter().map(|(method, count)| {
        let old = before.get(method).copied().unwrap_or_default();
        (method.clone(), count.saturating_sub(old))
    });
    new.filter(|(_, count)| *count > 0).collect()
}
