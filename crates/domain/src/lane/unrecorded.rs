//! Transactions of the account on chain that no tx of the store recorded. Commits were lost that had sent them: each may
//! be the effect of a request that is queued again, or comes again.
//!
//! Each is a row of Lanekeeper's own, so that it outlives this keeper: STUCK until it accounts for a request, which is
//! held instead of being executed once more. One row accounts for one request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alloy_primitives::keccak256;
use uuid::Builder;

use super::{AdmittedRequest, MinedTransaction};
use crate::{EffectDigest, LaneKey, Nonce, Payload, RequestId, Timestamp, Token, Tx, TxId};

/// Request ids of such rows begin with this and end with the nonce; others must not.
pub const UNRECORDED_PREFIX: &str = "lanekeeper-unrecorded-";
/// The most of them in a lane. With more of them nothing is allocated.
pub const UNRECORDED_MAX: usize = 10_000;

/// The transactions that no tx recorded, of one lane. Shared between the copies of a lane: they rarely change.
#[derive(Clone, Debug, Default)]
pub(super) struct UnrecordedTransactions(Arc<Rows>);

#[derive(Clone, Debug, Default)]
struct Rows {
    by_nonce: BTreeMap<Nonce, Tx>,
    /// Those that account for no request yet.
    unclaimed: BTreeMap<EffectDigest, BTreeSet<Nonce>>,
}

impl UnrecordedTransactions {
    pub(super) fn load(rows: Vec<Tx>) -> Self {
        let mut loaded = Rows::default();
        for tx in rows {
            if let Some(nonce) = nonce_of(&tx) {
                loaded.insert(nonce, tx);
            }
        }
        Self(Arc::new(loaded))
    }

    pub(super) fn contains(&self, nonce: Nonce) -> bool {
        self.0.by_nonce.contains_key(&nonce)
    }

    pub(super) fn len(&self) -> usize {
        self.0.by_nonce.len()
    }

    /// Those at this nonce or above.
    pub(super) fn from(&self, nonce: Nonce) -> impl Iterator<Item = (Nonce, &Tx)> {
        self.0.by_nonce.range(nonce..).map(|(at, tx)| (*at, tx))
    }

    pub(super) fn insert(&mut self, nonce: Nonce, tx: Tx) {
        Arc::make_mut(&mut self.0).insert(nonce, tx);
    }

    /// Whether one of them did what this payload asks for, and accounts for no request yet.
    pub(super) fn matches(&self, payload: &Payload) -> bool {
        let unclaimed = &self.0.unclaimed;
        !unclaimed.is_empty() && unclaimed.contains_key(&payload.effect_digest())
    }

    /// Takes the row of one that did what this payload asks for: it accounts for no other request from now on.
    pub(super) fn claim(&mut self, payload: &Payload) -> Option<Tx> {
        if !self.matches(payload) {
            return None;
        }
        let rows = Arc::make_mut(&mut self.0);
        let digest = payload.effect_digest();
        let nonces = rows.unclaimed.get_mut(&digest)?;
        let nonce = nonces.pop_first()?;
        if nonces.is_empty() {
            rows.unclaimed.remove(&digest);
        }
        rows.by_nonce.get(&nonce).cloned()
    }

    /// A row has changed.
    pub(super) fn replace(&mut self, tx: Tx) {
        if let Some(nonce) = nonce_of(&tx) {
            Arc::make_mut(&mut self.0).by_nonce.insert(nonce, tx);
        }
    }
}

impl Rows {
    fn insert(&mut self, nonce: Nonce, tx: Tx) {
        if tx.is_open() && tx.tx_hash.is_some() {
            let digest = tx.request.payload.effect_digest();
            self.unclaimed.entry(digest).or_default().insert(nonce);
        }
        self.by_nonce.insert(nonce, tx);
    }
}

/// The nonce of such a row; `None` for a row of another kind.
fn nonce_of(tx: &Tx) -> Option<Nonce> {
    let id = tx.request.request_id.as_str();
    let nonce = id.strip_prefix(UNRECORDED_PREFIX)?.parse().ok()?;
    Some(Nonce(nonce))
}

/// The row of a transaction at a nonce, before it is STUCK.
pub(super) fn new_row(
    lane: LaneKey,
    (nonce, transaction): (Nonce, &MinedTransaction),
    token: Token,
    now: Timestamp,
) -> Tx {
    let payload = transaction.payload.clone();
    let request = AdmittedRequest {
        id: row_id(lane, nonce, now),
        request_id: RequestId::parse(format!("{UNRECORDED_PREFIX}{nonce}"))
            .expect("a number with a short prefix keeps the rule"),
        fingerprint: payload.fingerprint(),
        payload,
        gas: 0,
    };
    let mut tx = Tx::created(request, token, now);
    tx.tx_hash = Some(transaction.hash);
    tx
}

/// Time-ordered like every tx id, and the same in every step that records this nonce at this time.
fn row_id(lane: LaneKey, nonce: Nonce, now: Timestamp) -> TxId {
    let name = format!("{UNRECORDED_PREFIX}{lane} {nonce} {}", now.0);
    let digest = keccak256(name);
    let random = digest.0.first_chunk().expect("a digest has 32 bytes");
    TxId(Builder::from_unix_timestamp_millis(now.0, random).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::B256;
    use crate::lane::tests::{KEY, request};

    const NOW: Timestamp = Timestamp(1_000);

    /// The transaction at a nonce, with the effect of the request with this number.
    fn row(nonce: u64, number: u64) -> Tx {
        let transaction = MinedTransaction {
            hash: B256::with_last_byte(u8::try_from(nonce).expect("small")),
            payload: request(number).payload,
        };
        let mut tx = new_row(KEY, (Nonce(nonce), &transaction), Token(1), NOW);
        tx.transition(crate::TxState::Stuck, crate::SubState::ForeignNonce, NOW);
        tx
    }

    #[test]
    fn equal_transactions_account_for_as_many_requests_and_no_more() {
        let mut found = UnrecordedTransactions::load(vec![row(3, 1), row(5, 1), row(4, 2)]);
        let payload = request(1).payload;
        let claimed = |found: &mut UnrecordedTransactions| {
            nonce_of(&found.claim(&payload)?).map(|nonce| nonce.0)
        };
        assert_eq!(claimed(&mut found), Some(3));
        assert_eq!(claimed(&mut found), Some(5));
        assert_eq!(claimed(&mut found), None);
        assert!(found.contains(Nonce(3)), "its nonce stays accounted for");
        assert!(found.matches(&request(2).payload) && !found.matches(&request(3).payload));
    }

    #[test]
    fn row_that_accounts_for_a_request_accounts_for_no_other_after_a_load() {
        let mut ended = row(3, 1);
        ended.transition(
            crate::TxState::FailedFinal,
            crate::SubState::ForeignNonce,
            NOW,
        );
        let found = UnrecordedTransactions::load(vec![ended]);
        assert!(found.contains(Nonce(3)) && !found.matches(&request(1).payload));
    }
}
