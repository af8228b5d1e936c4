//! Calls per tx, from the start of the node until all are confirmed.

use proof::payers::Payers;
use proof::{Outcome, Report, ensure, print_step};
use rig::postgres::Postgres;
use serde_json::json;

use crate::calls::{CLIENTS, Counted, DONE_WITHIN, table};

/// The budget of one tx.
const PER_TX_MAX: f64 = 1.2;

pub(crate) async fn count(report: &mut Report, server: &Postgres, count: usize) -> Outcome<String> {
    print_step(format!("{count} txs on one lane until all are confirmed"));
    let counted = Counted::start("busy", server, String::new()).await?;
    let payers = Payers {
        api: &counted.single_node.node.api,
        ledger: &counted.single_node.ledger,
        lanes: &counted.single_node.lanes,
        clients: CLIENTS,
    };
    payers.post(count).await?;
    let audit = counted
        .single_node
        .audit(&counted.network.chain, DONE_WITHIN);
    audit.wait_until_idle().await?;
    let (calls, requests) = (counted.proxy.calls(), counted.proxy.requests());
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let per_tx = table(&calls, count as f64, "tx");
    report.fact(
        "busy",
        json!({"txs": count, "calls": calls, "httpRequests": requests, "callsPerTx": per_tx}),
    );
    ensure(audit.run().await?.promised == count, "a promise is missing")?;
    let figure = format!("{per_tx:.3} calls per tx for {count} txs (limit {PER_TX_MAX})");
    ensure(per_tx <= PER_TX_MAX, figure.clone())?;
    Ok(figure)
}
