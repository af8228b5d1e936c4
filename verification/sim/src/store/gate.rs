//! The gate's transaction: checked completely, then applied completely.

use std::collections::BTreeSet;

use crate::mutation::{self, Mutation};
use domain::{B256, Nonce, RequestId, Tx, TxId, Writes};
use engine::ports::{CommitOutcome, Conflict, LaneBatch};

use super::rows::{EventRow, LaneRow, Rows, TxRow};

impl Rows {
    pub(super) fn commit(&mut self, batch: &LaneBatch) -> CommitOutcome {
        if !self.passes(batch) {
            return CommitOutcome::Fenced;
        }
        match self.check(batch) {
            Ok(()) => {
                self.apply(batch);
                CommitOutcome::Applied
            }
            Err(conflict) => CommitOutcome::Conflict(conflict),
        }
    }

    /// The fence. A store that lost commits has other sequence numbers than its keeper.
    pub(super) fn passes(&self, batch: &LaneBatch) -> bool {
        let known = (batch.batch_seq_before, batch.event_seq_before);
        self.lane(batch.lease_grant.lane).is_some_and(|lane| {
            let holds = lane.is_held_by(batch.lease_grant)
                || (mutation::is_on(Mutation::FenceByTokenOnly)
                    && lane.token == batch.lease_grant.token);
            holds && (lane.batch_seq, lane.event_seq()) == known
        })
    }

    /// Whether all rows of a batch can be written. The lane exists: the fence found it.
    pub(super) fn check(&self, batch: &LaneBatch) -> Result<(), Conflict> {
        let lane = self
            .lane(batch.lease_grant.lane)
            .expect("the fence found its row");
        let writes = &batch.writes;
        check_requests(lane, &writes.inserts)?;
        let inserted: BTreeSet<TxId> = writes.inserts.iter().map(|tx| tx.id).collect();
        let updated: BTreeSet<TxId> = writes.updates.iter().map(|tx| tx.id).collect();
        let folded = inserted.len() + updated.len() == writes.inserts.len() + writes.updates.len();
        expect(folded && inserted.is_disjoint(&updated), || {
            "two writes to one tx in one batch".to_owned()
        })?;
        for id in &updated {
            expect_rows(lane.txs.contains_key(id), || {
                format!("tx {id} does not exist")
            })?;
        }
        check_nonces(lane, writes)?;
        for id in &inserted {
            expect(!self.tx_lanes.contains_key(id), || {
                format!("tx {id} exists already")
            })?;
        }
        let has_tx = |id: &TxId| lane.txs.contains_key(id) || inserted.contains(id);
        self.check_attempts(lane, writes, has_tx)?;
        check_events(lane, batch)?;
        check_queue_rows(lane, writes, has_tx)?;
        expect_rows(batch.next_nonce >= lane.next_nonce, || {
            "the cursor decreases".to_owned()
        })?;
        expect(batch.floor_nonce <= batch.next_nonce, || {
            "the floor is above the cursor".to_owned()
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
            expect(is_new, || format!("attempt {hash} exists already"))?;
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
                format!("attempt {hash} does not exist")
            })?;
        }
        Ok(())
    }

    /// Writes a checked batch. A missing row, where it was not checked, is skipped.
    pub(super) fn apply(&mut self, batch: &LaneBatch) {
        let Self {
            lanes,
            tx_lanes,
            hashes,
            ..
        } = self;
        let lane = lanes
            .iter_mut()
            .find(|lane| lane.id == batch.lease_grant.lane)
            .expect("the fence found its row");
        let writes = &batch.writes;
        for tx in &writes.updates {
            lane.replace_row(tx);
        }
        for tx in &writes.inserts {
            tx_lanes.insert(tx.id, lane.id);
            lane.insert(tx);
        }
        // Nonces last: one tx may release a nonce that another takes in the same batch.
        for tx in writes.updates.iter().chain(&writes.inserts) {
            if let Some(nonce) = tx.nonce.filter(|_| lane.txs.contains_key(&tx.id)) {
                lane.nonces.insert(nonce, tx.id);
            }
        }
        for attempt in &writes.attempts {
            hashes.insert(attempt.hash, attempt.tx_id);
            if let Some(row) = lane.txs.get_mut(&attempt.tx_id) {
                row.attempts.push(attempt.clone());
            }
        }
        for (hash, at) in &writes.first_sent {
            let row = hashes.get(hash).and_then(|id| lane.txs.get_mut(id));
            let attempt = row.and_then(|row| row.attempts.iter_mut().find(|it| it.hash == *hash));
            if let Some(attempt) = attempt {
                attempt.first_sent_at.get_or_insert(*at);
            }
        }
        lane.events
            .extend(writes.events.iter().map(|event| EventRow {
                node: batch.node.clone(),
                token: batch.lease_grant.token,
                event: event.clone(),
            }));
        for id in &writes.queued_removed {
            lane.wakes.remove(id);
        }
        for id in &writes.queued_added {
            if lane.txs.contains_key(id) {
                lane.wakes.insert(*id);
            }
        }
        lane.paused = writes.paused.unwrap_or(lane.paused);
        lane.next_nonce = batch.next_nonce;
        lane.floor_nonce = batch.floor_nonce;
        lane.open_cost = batch.open_cost;
        lane.head = batch.head.clone();
        lane.newest_final = batch.newest_final;
        lane.batch_seq = lane.batch_seq.saturating_add(1);
    }

    /// Inserts the new txs of a batch and nothing else: what a gate does whose inserts are not joined with the
    /// rows that passed the fence (`Mutation::InsertFencedRows`).
    pub(super) fn insert_only(&mut self, batch: &LaneBatch) {
        let Self {
            lanes, tx_lanes, ..
        } = self;
        let lane = lanes
            .iter_mut()
            .find(|lane| lane.id == batch.lease_grant.lane);
        let Some(lane) = lane else { return };
        for tx in &batch.writes.inserts {
            let is_taken = tx_lanes.contains_key(&tx.id)
                || lane.requests.contains_key(&tx.request.request_id)
                || tx
                    .nonce
                    .is_some_and(|nonce| lane.nonces.contains_key(&nonce));
            if is_taken {
                continue;
            }
            tx_lanes.insert(tx.id, lane.id);
            lane.insert(tx);
            lane.nonces.extend(tx.nonce.map(|nonce| (nonce, tx.id)));
        }
    }
}

impl LaneRow {
    fn insert(&mut self, tx: &Tx) {
        self.requests.insert(tx.request.request_id.clone(), tx.id);
        self.txs.insert(
            tx.id,
            TxRow {
                tx: tx.clone(),
                attempts: Vec::new(),
            },
        );
    }

    /// Overwrites a row and releases the nonce that it held.
    fn replace_row(&mut self, tx: &Tx) {
        let Some(row) = self.txs.get_mut(&tx.id) else {
            return;
        };
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
        if lane.requests.contains_key(&tx.request.request_id) || !new.insert(&tx.request.request_id)
        {
            return Err(Conflict::RequestId(tx.request.request_id.clone()));
        }
    }
    Ok(())
}

/// The unique index on (lane, nonce), row by row as PostgreSQL checks it: first the released nonces, then the
/// updated rows (in batch order here, in any order there: callers must not depend on it), then the new ones. A tx
/// that moves to a nonce before its holder has moved on conflicts.
fn check_nonces(lane: &LaneRow, writes: &Writes) -> Result<(), Conflict> {
    if mutation::is_on(Mutation::AllocateNonceTwice) {
        return Ok(());
    }
    let mut new: BTreeSet<Nonce> = BTreeSet::new();
    for tx in writes.inserts.iter().chain(&writes.updates) {
        let is_twice = tx.nonce.filter(|nonce| !new.insert(*nonce));
        is_twice.map_or(Ok(()), |nonce| Err(Conflict::Nonce(nonce)))?;
    }
    let before = |tx: &Tx| lane.txs.get(&tx.id).and_then(|row| row.tx.nonce);
    let released = writes.updates.iter().filter(|tx| tx.nonce.is_none());
    let mut left: BTreeSet<Nonce> = released.filter_map(before).collect();
    for tx in writes.updates.iter().chain(&writes.inserts) {
        let Some(nonce) = tx.nonce else { continue };
        let holder = lane.nonces.get(&nonce).filter(|id| **id != tx.id);
        if holder.is_some() && !left.contains(&nonce) {
            return Err(Conflict::Nonce(nonce));
        }
        left.extend(before(tx).filter(|before| *before != nonce));
    }
    Ok(())
}

/// Queue rows are removed first, so that a tx may be removed and added again.
fn check_queue_rows(
    lane: &LaneRow,
    writes: &Writes,
    has_tx: impl Fn(&TxId) -> bool,
) -> Result<(), Conflict> {
    let mut done: BTreeSet<TxId> = BTreeSet::new();
    for id in &writes.queued_removed {
        expect(done.insert(*id), || {
            format!("queue row {id} is removed twice")
        })?;
        expect_rows(lane.wakes.contains(id), || {
            format!("queue row {id} does not exist")
        })?;
    }
    let mut added: BTreeSet<TxId> = BTreeSet::new();
    for id in &writes.queued_added {
        let is_there = lane.wakes.contains(id) && !done.contains(id);
        expect(!is_there && added.insert(*id), || {
            format!("queue row {id} exists")
        })?;
        expect_rows(has_tx(id), || format!("queue row {id} has no tx"))?;
    }
    Ok(())
}

/// Events continue after the lane's last one; their numbers are unique.
fn check_events(lane: &LaneRow, batch: &LaneBatch) -> Result<(), Conflict> {
    let events = &batch.writes.events;
    for (seq, event) in (batch.event_seq_before..).skip(1).zip(events) {
        expect(event.seq == seq, || {
            format!("event {} where {seq} is due", event.seq)
        })?;
    }
    let follows = events.is_empty() || lane.event_seq() == batch.event_seq_before;
    expect(follows, || {
        format!("an event after {} exists", batch.event_seq_before)
    })
}

/// A count of rows that a write touches.
fn expect_rows(holds: bool, what: impl FnOnce() -> String) -> Result<(), Conflict> {
    expect(holds || mutation::is_on(Mutation::IgnoreRowCount), what)
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Result<(), Conflict> {
    if holds {
        Ok(())
    } else {
        Err(Conflict::Rows(what()))
    }
}
