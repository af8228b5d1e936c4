//! Calls per block while thousands of txs wait at the node and only empty blocks arrive.

use proof::payers::Payers;
use proof::{Outcome, Report, ensure, eventually, print_step};
use rig::postgres::Postgres;
use serde_json::json;

use crate::calls::{CLIENTS, Counted, DONE_WITHIN, calls_since, table};

/// The budget of one block.
const PER_BLOCK_MAX: f64 = 3.0;
/// Blocks between the last send and the start of counting.
const SETTLE_BLOCKS: u64 = 5;

pub(crate) async fn count(
    report: &mut Report,
    server: &Postgres,
    pending: usize,
    blocks: u64,
) -> Outcome<String> {
    print_step(format!(
        "{pending} txs wait at the node for {blocks} blocks"
    ));
    let more = format!("[lane]\nmempoolDepth = {pending}\n");
    let counted = Counted::start("waiting", server, more).await?;
    let network = &counted.network;
    let lane = &counted.single_node.lanes[0];
    let payers = Payers {
        api: &counted.single_node.node.api,
        ledger: &counted.single_node.ledger,
        lanes: &counted.single_node.lanes,
        clients: CLIENTS,
    };
    network.stop_mining().await?;
    payers.post(pending).await?;
    eventually("all are at the node", DONE_WITHIN, || async {
        let held = network.chain.pending_nonce(lane).await?;
        Ok((held == pending as u64).then_some(()))
    })
    .await?;
    network.mine_without_room().await?;
    network.wait_for_blocks(SETTLE_BLOCKS).await?;
    let before = counted.proxy.calls();
    let passed = network.wait_for_blocks(blocks).await?;
    let calls = calls_since(&before, &counted.proxy.calls());
    ensure(
        network.chain.nonce(lane).await? == 0,
        "something was mined, which was not to happen yet",
    )?;
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let per_block = table(&calls, passed as f64, "block");
    report.fact(
        "waiting",
        json!({"pending": pending, "blocks": passed, "calls": calls, "callsPerBlock": per_block}),
    );
    network.mine_with_room().await?;
    let audit = counted
        .single_node
        .audit(&counted.network.chain, DONE_WITHIN);
    let promised = audit.run().await?.promised;
    ensure(promised == pending, "a promise is missing")?;
    let figure = format!(
        "{per_block:.2} calls per block with {pending} txs waiting, over {passed} blocks (limit {PER_BLOCK_MAX})"
    );
    ensure(per_block <= PER_BLOCK_MAX, figure.clone())?;
    Ok(figure)
}
