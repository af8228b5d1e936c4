//! The gate's transaction: checked whole, then applied whole.

use std::collections::{BTreeMap, BTreeSet};

use domain::{B256, Nonce, RequestId, Tx, TxId, Writes};
use engine::ports::{CommitOutcome, Conflict, LaneBatch};

use super::rows::{EventRow, LaneRow, Rows, TxRow};

impl Rows {
    pub(super) fn commit(&mut self, batch: &LaneBatch) -> CommitOutcome {
        let Some(lane) = self.held_by(batch.right) else {
            return CommitOutcome::Fenced;
        };
        // A store that lost commits counts otherwise than its keeper does.
        let known = (batch.batch_seq_before, batch.event_seq_before);
        if (lane.batch_seq, lane.event_seq()) != known {
            return CommitOutcome::Fenced;
        }
        match self.check(lane, batch) {
            Ok(()) => {
                self.apply(batch);
                CommitOutcome::Applied
            }
            Err(conflict) => CommitOutcome::Conflict(conflict),
        }
    }

    fn check(&self, lane: &LaneRow, batch: &LaneBatch) -> Result<(), Conflict> {
        let writes = &batch.writes;
        check_requests(lane, &writes.inserts)?;
        let inserted: BTreeSet<TxId> = writes.inserts.iter().map(|tx| tx.id).collect();
        let updated: BTreeSet<TxId> = writes.updates.iter().map(|tx| tx.id).collect();
        let folded = inserted.len() + updated.len() == writes.inserts.len() + writes.updates.len();
        expect_rows(folded && inserted.is_disjoint(&updated), || {
            "two writes to one tx in one batch".to_owned()
        })?;
        for id in &updated {
            expect_rows(lane.txs.contains_key(id), || {
                format!("tx {id} is not there")
            })?;
        }
        check_nonces(lane, writes)?;
        for id in &inserted {
            expect_rows(!self.tx_lanes.contains_key(id), || {
                format!("tx {id} is there already")
            })?;
        }
        let has_tx = |id: &TxId| lane.txs.contains_key(id) || inserted.contains(id);
        self.check_attempts(lane, writes, has_tx)?;
        for (seq, event) in (batch.event_seq_before..).skip(1).zip(&writes.events) {
            expect_rows(event.seq == seq, || {
                format!("event {} where {seq} is due", event.seq)
            })?;
        }
        for id in &writes.wakes_added {
            expect_rows(has_tx(id) && !lane.wakes.contains(id), || {
                format!("wake {id} is there")
            })?;
        }
        for id in &writes.wakes_done {
            expect_rows(lane.wakes.contains(id), || {
                format!("wake {id} is not there")
            })?;
        }
        expect_rows(batch.next_nonce >= lane.next_nonce, || {
            "the cursor falls".to_owned()
        })?;
        expect_rows(batch.floor_nonce <= batch.next_nonce, || {
            "the floor lies above the cursor".to_owned()
        })
    }

    fn check_attempts(
        &self,
        lane: &LaneRow,
        writes: &Writes,
        has_tx: impl Fn(&TxId) -> bool,
    ) -> Result<(), Conflict> {
        let mut new: BTreeSet<B256> = BTreeSet::new();
        for attempt in &writes.attempts {
            let hash = attempt.hash;
            let is_new = !self.hashes.contains_key(&hash) && new.insert(hash);
            expect_rows(is_new, || format!("attempt {hash} is there already"))?;
            expect_rows(has_tx(&attempt.tx_id), || {
                format!("attempt {hash} has no tx")
            })?;
        }
        for (hash, _) in &writes.first_sent {
            let is_ours = self
                .hashes
                .get(hash)
                .is_some_and(|id| lane.txs.contains_key(id));
            expect_rows(is_ours || new.contains(hash), || {
                format!("attempt {hash} is not there")
            })?;
        }
        Ok(())
    }

    fn apply(&mut self, batch: &LaneBatch) {
        let Self {
            lanes,
            tx_lanes,
            hashes,
            ..
        } = self;
        let lane = lanes
            .iter_mut()
            .find(|lane| lane.id == batch.right.lane)
            .expect("the fence found its row");
        let writes = &batch.writes;
        for tx in &writes.updates {
            lane.set_down(tx);
        }
        for tx in &writes.inserts {
            tx_lanes.insert(tx.id, lane.id);
            lane.requests.insert(tx.request_id.clone(), tx.id);
            lane.txs.insert(
                tx.id,
                TxRow {
                    tx: tx.clone(),
                    attempts: Vec::new(),
                },
            );
        }
        // Nonces last: one tx may give up what another takes in the same batch.
        for tx in writes.updates.iter().chain(&writes.inserts) {
            if let Some(nonce) = tx.nonce {
                lane.nonces.insert(nonce, tx.id);
            }
        }
        for attempt in &writes.attempts {
            hashes.insert(attempt.hash, attempt.tx_id);
            let row = lane.txs.get_mut(&attempt.tx_id).expect("checked");
            row.attempts.push(attempt.clone());
        }
        for (hash, at) in &writes.first_sent {
            let row = lane.txs.get_mut(&hashes[hash]).expect("checked");
            let attempt = row
                .attempts
                .iter_mut()
                .find(|attempt| attempt.hash == *hash);
            attempt.expect("checked").first_sent_at.get_or_insert(*at);
        }
        lane.events
            .extend(writes.events.iter().map(|event| EventRow {
                node: batch.node.clone(),
                token: batch.right.token,
                event: event.clone(),
            }));
        lane.wakes.extend(&writes.wakes_added);
        for id in &writes.wakes_done {
            lane.wakes.remove(id);
        }
        lane.paused = writes.paused.unwrap_or(lane.paused);
        lane.next_nonce = batch.next_nonce;
        lane.floor_nonce = batch.floor_nonce;
        lane.batch_seq = lane.batch_seq.saturating_add(1);
    }
}

impl LaneRow {
    /// Overwrites a row and lets go of the nonce that it held.
    fn set_down(&mut self, tx: &Tx) {
        let row = self.txs.get_mut(&tx.id).expect("checked");
        if let Some(nonce) = row.tx.nonce
            && self.nonces.get(&nonce) == Some(&tx.id)
        {
            self.nonces.remove(&nonce);
        }
        row.tx = tx.clone();
    }
}

fn check_requests(lane: &LaneRow, inserts: &[Tx]) -> Result<(), Conflict> {
    let mut new: BTreeSet<&RequestId> = BTreeSet::new();
    for tx in inserts {
        if lane.requests.contains_key(&tx.request_id) || !new.insert(&tx.request_id) {
            return Err(Conflict::RequestId(tx.request_id.clone()));
        }
    }
    Ok(())
}

/// The unique index on (lane, nonce), as it stands after the whole batch.
fn check_nonces(lane: &LaneRow, writes: &Writes) -> Result<(), Conflict> {
    let moved: BTreeSet<TxId> = writes.updates.iter().map(|tx| tx.id).collect();
    let mut taken: BTreeMap<Nonce, TxId> = BTreeMap::new();
    for tx in writes.updates.iter().chain(&writes.inserts) {
        let Some(nonce) = tx.nonce else { continue };
        let held_elsewhere = lane
            .nonces
            .get(&nonce)
            .is_some_and(|id| *id != tx.id && !moved.contains(id));
        if held_elsewhere || taken.insert(nonce, tx.id).is_some() {
            return Err(Conflict::Nonce(nonce));
        }
    }
    Ok(())
}

fn expect_rows(holds: bool, what: impl FnOnce() -> String) -> Result<(), Conflict> {
    if holds {
        Ok(())
    } else {
        Err(Conflict::Rows(what()))
    }
}
