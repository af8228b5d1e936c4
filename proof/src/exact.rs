//! Exactly once on an account that others use too: every payment arrived once, at a nonce that the store
//! knows, and everything else that was mined is a foreign transaction that the proof itself has made.

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::{Address, U256};
use serde_json::Value;

use crate::audit::Audit;
use crate::solo::Solo;
use crate::stage::Stage;
use crate::{Outcome, demand};

/// How long open work may take.
const QUIET_WITHIN: Duration = Duration::from_secs(60);

/// A transfer of 1 wei that somebody else has made from an account of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// From which lane.
    pub lane: usize,
    /// At which nonce.
    pub nonce: u64,
    /// To whom.
    pub to: Address,
}

/// Compares store and chain; gives the number of payments.
pub async fn exactly_once(solo: &Solo, stage: &Stage, foreign: &[Foreign]) -> Outcome<usize> {
    let chain = stage.chain()?;
    let audit = Audit {
        api: &solo.node.api,
        chain: &chain,
        lanes: &solo.lanes,
        ledger: &solo.ledger,
        within: QUIET_WITHIN,
    };
    audit.quiet().await?;
    let txs = solo.node.api.all_txs().await?;
    let payments = solo.ledger.payments();
    demand(
        txs.len() == payments.len(),
        format!("{} payments, {} txs", payments.len(), txs.len()),
    )?;
    let mut recipients = Vec::new();
    for (id, payment) in &payments {
        let tx = txs.iter().find(|tx| tx["requestId"] == id.as_str());
        let tx = tx.ok_or_else(|| format!("{id} was accepted and is lost"))?;
        let promise = payment.promise.as_ref().ok_or("it was not promised")?;
        let is_kept = tx["txId"] == promise.tx_id.as_str() && tx["state"] == "CONFIRMED";
        demand(is_kept, format!("{id}: promised {promise:?}, but {tx}"))?;
        recipients.push(payment.to.clone());
    }
    recipients.extend(foreign.iter().map(|f| f.to.to_checksum(None)));
    let balances = chain.balances(&recipients).await?;
    for (recipient, balance) in recipients.iter().zip(&balances) {
        demand(
            *balance == U256::ONE,
            format!("{balance} wei arrived at {recipient} instead of 1"),
        )?;
    }
    let mined = audit.mined().await?;
    for (lane, signer) in solo.lanes.iter().enumerate() {
        let ours = txs.iter().filter(|tx| tx["signer"] == signer.as_str());
        let others = foreign.iter().filter(|foreign| foreign.lane == lane);
        let known = known(ours, others)?;
        let mut on_chain = mined
            .get(&signer.to_lowercase())
            .cloned()
            .unwrap_or_default();
        // What this store never saw was there before it: another scenario on the same chain.
        let first = known.first_key_value().map_or(0, |(nonce, _)| *nonce);
        on_chain.retain(|(nonce, _)| *nonce >= first);
        let on_chain_count = on_chain.len();
        let on_chain: BTreeMap<u64, String> = on_chain.into_iter().collect();
        demand(
            on_chain == known && on_chain_count == known.len() || known.is_empty(),
            format!("{signer}: {known:?} in the store and foreign, {on_chain:?} on chain"),
        )?;
    }
    Ok(payments.len())
}

/// What must stand at each nonce, and nothing twice.
fn known<'a>(
    ours: impl Iterator<Item = &'a Value>,
    foreign: impl Iterator<Item = &'a Foreign>,
) -> Outcome<BTreeMap<u64, String>> {
    let mut known = BTreeMap::new();
    let lower = |text: &str| text.to_lowercase();
    for tx in ours {
        let nonce = tx["nonce"].as_u64().ok_or("a tx without nonce")?;
        let to = lower(tx["payload"]["to"].as_str().unwrap_or_default());
        let before = known.insert(nonce, to);
        demand(before.is_none(), format!("nonce {nonce} has two txs"))?;
    }
    for Foreign { nonce, to, .. } in foreign {
        let before = known.insert(*nonce, lower(&to.to_checksum(None)));
        demand(
            before.is_none(),
            format!("nonce {nonce} was consumed by another, and a tx still has it"),
        )?;
    }
    let (first, last) = (known.first_key_value(), known.last_key_value());
    if let (Some((first, _)), Some((last, _))) = (first, last) {
        demand(
            last - first + 1 == known.len() as u64,
            format!("the nonces have a gap: {known:?}"),
        )?;
    }
    Ok(known)
}
