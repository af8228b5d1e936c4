//! A store as the rules may expect one: whole batches, unique keys, rows that must be there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use alloy_primitives::B256;

use crate::lane::reservations::RESERVATION_PREFIX;
use crate::lane::{
    AdmittedRequest, FinalTx, HeadWait, LaneImage, MinedRows, OpenCost, OpenSummary,
    UNRECORDED_PREFIX, Writes,
};
use crate::{
    Attempt, Event, EventKind, GrantId, Header, LaneId, LeaseGrant, Nonce, RequestId, Timestamp,
    Token, Tx, TxId, TxState,
};

use super::KEY;

#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    pub(super) rows: BTreeMap<TxId, Tx>,
    pub(super) attempts: BTreeMap<B256, Attempt>,
    pub(super) events: Vec<Event>,
    pub(super) queued: BTreeSet<TxId>,
    pub(super) next_nonce: Nonce,
    pub(super) paused: bool,
    /// The lane's row: what its head waits for.
    pub(super) head: Option<HeadWait>,
    /// Stored before the commit that names them.
    pub(super) headers: BTreeMap<B256, Header>,
    by_nonce: BTreeMap<Nonce, TxId>,
    by_request: BTreeMap<RequestId, TxId>,
}

impl Store {
    /// Applies one batch the way a database with these constraints does; panics where it refuses.
    pub(super) fn apply(&mut self, writes: &Writes, next_nonce: Nonce) {
        assert!(next_nonce >= self.next_nonce, "the cursor went back");
        self.next_nonce = next_nonce;
        for tx in &writes.inserts {
            assert!(
                !self.rows.contains_key(&tx.id),
                "tx {} is inserted twice",
                tx.id
            );
            let before = self.by_request.insert(tx.request.request_id.clone(), tx.id);
            assert_eq!(
                before, None,
                "request {} has two txs",
                tx.request.request_id
            );
            self.put(tx);
        }
        for tx in &writes.updates {
            let before = self.rows.get(&tx.id).expect("an update must hit a row");
            check_change(before, tx, writes);
            self.put(tx);
        }
        for attempt in &writes.attempts {
            assert!(
                self.rows.contains_key(&attempt.tx_id),
                "an attempt without its tx"
            );
            let before = self.attempts.insert(attempt.hash, attempt.clone());
            assert_eq!(before, None, "attempt {} is stored twice", attempt.hash);
        }
        for (hash, at) in &writes.first_sent {
            let attempt = self
                .attempts
                .get_mut(hash)
                .expect("sent, so it was stored before");
            assert_eq!(attempt.first_sent_at.replace(*at), None, "first sent twice");
        }
        for event in &writes.events {
            assert_eq!(event.seq, self.event_seq() + 1, "events have no hole");
            self.events.push(event.clone());
        }
        for id in &writes.queued_added {
            assert!(self.queued.insert(*id), "tx {id} is woken twice");
        }
        for id in &writes.queued_removed {
            assert!(self.queued.remove(id), "tx {id} did not wait");
        }
        self.paused = writes.paused.unwrap_or(self.paused);
    }

    fn put(&mut self, tx: &Tx) {
        if let Some(nonce) = self.rows.get(&tx.id).and_then(|row| row.nonce) {
            self.by_nonce.remove(&nonce);
        }
        if let Some(nonce) = tx.nonce {
            let before = self.by_nonce.insert(nonce, tx.id);
            assert_eq!(before, None, "nonce {nonce} is held by two rows");
            assert!(
                nonce < self.next_nonce,
                "nonce {nonce} is not below the cursor"
            );
        }
        self.rows.insert(tx.id, tx.clone());
    }

    /// The one unfenced write: a node that is not keeper leaves a request here.
    pub(super) fn queue(&mut self, request: AdmittedRequest, now: Timestamp) {
        let tx = Tx::created(request, Token(0), now);
        self.by_request.insert(tx.request.request_id.clone(), tx.id);
        self.queued.insert(tx.id);
        self.rows.insert(tx.id, tx);
    }

    pub(super) fn image(&self, token: Token) -> LaneImage {
        let open = || {
            self.by_nonce
                .iter()
                .filter(|(_, id)| self.rows[*id].is_open())
        };
        let in_flight = open()
            .filter(|(_, id)| self.rows[*id].tx_hash.is_some())
            .map(|(_, id)| (self.rows[id].clone(), self.attempts_of(*id)))
            .collect();
        let mut held: Vec<Range<u64>> = Vec::new();
        for (nonce, _) in open() {
            match held.last_mut() {
                Some(range) if range.end == nonce.0 => range.end += 1,
                Some(_) | None => held.push(nonce.0..nonce.0 + 1),
            }
        }
        LaneImage {
            key: KEY,
            lease_grant: LeaseGrant {
                lane: LaneId(1),
                token,
                grant: GrantId(uuid::Uuid::nil()),
            },
            next_nonce: self.next_nonce,
            event_seq: self.event_seq(),
            batch_seq: 0,
            paused: self.paused,
            in_flight,
            backlog_from: self.backlog(Nonce(0)).next().and_then(|tx| tx.nonce),
            held,
            consumed_below: self.consumed_below(),
            open: OpenSummary {
                queued: self.queued.len() as u64,
                cost: self.open_cost(),
                head: self.head.clone(),
                reported: self.reported(),
            },
            mined: MinedRows {
                finals: self.finals(),
                unrecorded: self.unrecorded(),
            },
        }
    }

    /// The headers from the blocks of txs in flight up to those that they count.
    fn reported(&self) -> Vec<Header> {
        let mut reported = BTreeMap::new();
        for tx in self.rows.values().filter(|tx| tx.is_open()) {
            let block = tx.inclusion.as_ref().map(|mined| mined.block_hash);
            let mut next = tx.counted.filter(|counted| Some(*counted) != block);
            while let Some(header) = next.and_then(|hash| self.headers.get(&hash)) {
                reported.insert(header.hash, *header);
                next = (Some(header.hash) != block).then_some(header.parent_hash);
            }
        }
        reported.into_values().collect()
    }

    /// The row of a transaction at this nonce that no tx recorded.
    pub(super) fn unrecorded_at(&self, nonce: Nonce) -> Option<&Tx> {
        let id = RequestId::parse(format!("{UNRECORDED_PREFIX}{nonce}")).expect("a valid id");
        self.rows.get(self.by_request.get(&id)?)
    }

    fn unrecorded(&self) -> Vec<Tx> {
        let rows = self.rows.values();
        let is_one = |tx: &&Tx| {
            let id = tx.request.request_id.as_str();
            id.starts_with(UNRECORDED_PREFIX)
        };
        rows.filter(is_one).cloned().collect()
    }

    /// What the open txs can cost that a keeper has seen: those have events.
    pub(super) fn open_cost(&self) -> OpenCost {
        let open = self.rows.values().filter(|tx| tx.is_open());
        let seen = open.filter(|tx| !tx.history.event_seqs.is_empty());
        seen.fold(OpenCost::default(), |sum, tx| {
            sum.plus(OpenCost::of_tx(tx, &self.attempts_of(tx.id)))
        })
    }

    /// One above the highest nonce of a finished tx.
    pub(super) fn consumed_below(&self) -> Nonce {
        let mut nonces = self.by_nonce.iter();
        let finished = nonces.rfind(|(_, id)| !self.rows[*id].is_open());
        finished.map_or(Nonce(0), |(nonce, _)| nonce.next())
    }

    /// All of them: the lane itself lets go of those that are deep enough.
    fn finals(&self) -> Vec<FinalTx> {
        let rows = self.by_nonce.iter().map(|(at, id)| (*at, &self.rows[id]));
        let finals = rows.filter(|(_, tx)| !tx.is_open());
        let finals = finals.filter_map(|(nonce, tx)| {
            let mined = tx.inclusion.as_ref()?;
            Some(FinalTx {
                id: tx.id,
                nonce,
                block_number: mined.block_number,
                block_hash: mined.block_hash,
            })
        });
        finals.collect()
    }

    pub(super) fn event_seq(&self) -> u64 {
        self.events.len() as u64
    }

    pub(super) fn attempts_of(&self, id: TxId) -> Vec<Attempt> {
        self.attempts
            .values()
            .filter(|attempt| attempt.tx_id == id)
            .cloned()
            .collect()
    }

    /// Open txs with a nonce and without an attempt, in nonce order.
    pub(super) fn backlog(&self, from: Nonce) -> impl Iterator<Item = &Tx> {
        self.by_nonce
            .range(from..)
            .map(|(_, id)| &self.rows[id])
            .filter(|tx| tx.state == TxState::Allocated)
    }

    /// A page of the backlog, and whether there is more.
    pub(super) fn backlog_page(&self, from: Nonce, limit: u64) -> (Vec<Tx>, bool) {
        page(self.backlog(from), limit)
    }

    /// A page of the txs that wait for a nonce, oldest first, and whether there is more.
    pub(super) fn queued_page(&self, limit: u64) -> (Vec<Tx>, bool) {
        let mut waiting: Vec<&Tx> = self.queued.iter().map(|id| &self.rows[id]).collect();
        waiting.sort_by_key(|tx| (tx.request.created_at, tx.id));
        page(waiting.into_iter(), limit)
    }

    pub(super) fn holder(&self, nonce: Nonce) -> Option<&Tx> {
        self.by_nonce.get(&nonce).map(|id| &self.rows[id])
    }

    /// The kinds of a tx's events, in order.
    pub(super) fn story(&self, id: TxId) -> Vec<&'static str> {
        let of_tx = self.events.iter().filter(|event| event.tx_id == Some(id));
        of_tx.map(|event| event.kind.as_str()).collect()
    }
}

fn page<'a>(rows: impl Iterator<Item = &'a Tx>, limit: u64) -> (Vec<Tx>, bool) {
    let limit = usize::try_from(limit).expect("small");
    let mut txs: Vec<Tx> = rows.take(limit + 1).cloned().collect();
    let more = txs.len() > limit;
    txs.truncate(limit);
    (txs, more)
}

/// What may become of a row.
fn check_change(before: &Tx, after: &Tx, writes: &Writes) {
    assert!(
        before.state == after.state || before.state.may_become(after.state),
        "tx {}: {} became {}",
        after.id,
        before.state.as_str(),
        after.state.as_str()
    );
    let is_reopened = before.state.is_terminal() && after.is_open();
    if is_reopened {
        let reported = writes.events.iter().any(|event| {
            event.tx_id == Some(after.id)
                && matches!(
                    event.kind,
                    EventKind::TxReorged {
                        after_final: true,
                        ..
                    }
                )
        });
        assert!(
            reported,
            "tx {} is open again and no event reports it",
            after.id
        );
    }
    let claimed = before.state == TxState::Tracking || before.state == TxState::Confirmed;
    let foreign = |event: &Event| {
        let gone = |nonce: &Nonce| before.nonce == Some(*nonce);
        matches!(&event.kind, EventKind::LaneForeignNonce { nonce, .. } if gone(nonce))
    };
    let is_given_up = after.nonce.is_none() && writes.events.iter().any(foreign);
    let is_given_back = after.nonce.is_none()
        && after.state.is_terminal()
        && after
            .request
            .request_id
            .as_str()
            .starts_with(RESERVATION_PREFIX);
    assert!(
        !claimed || before.nonce == after.nonce || is_given_up || is_given_back,
        "tx {} changed a claimed nonce",
        after.id
    );
}
