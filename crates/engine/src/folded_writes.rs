//! The writes of a lane's turn, folded: one write per row, because inserting and updating one row in one statement would
//! lose the update.

use std::collections::{BTreeMap, BTreeSet};

use domain::{B256, Header, Tx, TxId, Writes};

/// What a turn writes for one lane so far.
#[derive(Default)]
pub(crate) struct FoldedWrites {
    writes: Writes,
    headers: BTreeMap<B256, Header>,
    rows: BTreeMap<TxId, RowIndex>,
}

/// Where a tx's image lies in the writes.
#[derive(Clone, Copy)]
enum RowIndex {
    Insert(usize),
    Update(usize),
}

/// How much was written before the requests of the turn were accepted.
#[derive(Clone, Copy)]
pub(crate) struct FoldedLength {
    inserts: usize,
    updates: usize,
    attempts: usize,
    events: usize,
    queued_added: usize,
}

impl FoldedWrites {
    pub(crate) fn fold(&mut self, writes: Writes) {
        for tx in writes.inserts {
            let index = RowIndex::Insert(self.writes.inserts.len());
            let before = self.rows.insert(tx.id, index);
            assert!(
                before.is_none(),
                "tx {} is inserted twice in one turn",
                tx.id
            );
            self.writes.inserts.push(tx);
        }
        for tx in writes.updates {
            match self.rows.get(&tx.id) {
                Some(RowIndex::Insert(at)) => self.writes.inserts[*at] = tx,
                Some(RowIndex::Update(at)) => self.writes.updates[*at] = tx,
                None => {
                    let index = RowIndex::Update(self.writes.updates.len());
                    self.rows.insert(tx.id, index);
                    self.writes.updates.push(tx);
                }
            }
        }
        for id in writes.queued_removed {
            // Added and removed in one turn: no row at all.
            let mut added = self.writes.queued_added.iter();
            match added.position(|added| *added == id) {
                Some(at) => drop(self.writes.queued_added.swap_remove(at)),
                None => self.writes.queued_removed.push(id),
            }
        }
        self.writes.attempts.extend(writes.attempts);
        self.writes.first_sent.extend(writes.first_sent);
        self.writes.events.extend(writes.events);
        self.writes.queued_added.extend(writes.queued_added);
        self.writes.paused = writes.paused.or(self.writes.paused);
    }

    pub(crate) fn add_headers(&mut self, headers: Vec<Header>) {
        self.headers
            .extend(headers.into_iter().map(|header| (header.hash, header)));
    }

    /// The headers that the writes name and that are not known to be stored.
    pub(crate) fn take_headers(&mut self, stored: &BTreeSet<B256>) -> Vec<Header> {
        let headers = std::mem::take(&mut self.headers).into_values();
        headers
            .filter(|header| !stored.contains(&header.hash))
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes == Writes::default()
    }

    /// The writes for the store. Where they are not applied, [`FoldedWrites::restore`] gets them again.
    pub(crate) fn take_writes(&mut self) -> Writes {
        std::mem::take(&mut self.writes)
    }

    /// The row of a tx that this turn inserts, in the writes that were taken.
    pub(crate) fn inserted_row<'a>(&self, id: TxId, taken: &'a Writes) -> Option<&'a Tx> {
        match self.rows.get(&id)? {
            RowIndex::Insert(at) => taken.inserts.get(*at),
            RowIndex::Update(_) => None,
        }
    }

    pub(crate) fn length(&self) -> FoldedLength {
        let writes = &self.writes;
        FoldedLength {
            inserts: writes.inserts.len(),
            updates: writes.updates.len(),
            attempts: writes.attempts.len(),
            events: writes.events.len(),
            queued_added: writes.queued_added.len(),
        }
    }

    /// Restores writes that were not applied, without what was folded since they had this length: new rows, and what
    /// belongs to them. Returns the rows that are dropped.
    pub(crate) fn restore(&mut self, mut writes: Writes, length: FoldedLength) -> Vec<Tx> {
        assert_eq!(
            writes.updates.len(),
            length.updates,
            "accepting a request changes no other row"
        );
        writes.attempts.truncate(length.attempts);
        writes.events.truncate(length.events);
        writes.queued_added.truncate(length.queued_added);
        let dropped = writes.inserts.split_off(length.inserts);
        for tx in &dropped {
            self.rows.remove(&tx.id);
        }
        self.writes = writes;
        dropped
    }
}

#[cfg(test)]
mod tests {
    use domain::lane::AdmittedRequest;
    use domain::{Address, Nonce, Payload, RequestId, Timestamp, Token, U256};
    use uuid::Uuid;

    use super::*;

    fn tx(number: u128, nonce: Option<u64>) -> Tx {
        let payload = Payload::transfer(Address::repeat_byte(2), U256::from(1));
        let request = AdmittedRequest {
            id: TxId(Uuid::from_u128(number)),
            request_id: RequestId::parse(format!("r{number}")).expect("valid"),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
        };
        let mut tx = Tx::created(request, Token(1), Timestamp(1_000));
        tx.nonce = nonce.map(Nonce);
        tx
    }

    fn ids<const N: usize>(numbers: [u128; N]) -> [TxId; N] {
        numbers.map(|number| TxId(Uuid::from_u128(number)))
    }

    #[test]
    fn rows_are_written_once_with_their_last_image() {
        let mut folded = FoldedWrites::default();
        folded.fold(Writes {
            inserts: vec![tx(1, None)],
            updates: vec![tx(2, Some(3))],
            ..Writes::default()
        });
        folded.fold(Writes {
            updates: vec![tx(1, Some(5)), tx(2, Some(4))],
            ..Writes::default()
        });
        let writes = folded.take_writes();
        assert_eq!(writes.inserts, [tx(1, Some(5))]);
        assert_eq!(writes.updates, [tx(2, Some(4))]);
    }

    #[test]
    #[should_panic(expected = "inserted twice in one turn")]
    fn inserting_a_tx_twice_panics() {
        let mut folded = FoldedWrites::default();
        for _ in 0..2 {
            folded.fold(Writes {
                inserts: vec![tx(1, None)],
                ..Writes::default()
            });
        }
    }

    #[test]
    fn queue_row_added_and_removed_in_one_turn_is_not_written() {
        let mut folded = FoldedWrites::default();
        let ids = ids([1, 2, 3]);
        folded.fold(Writes {
            queued_added: ids[..2].to_vec(),
            ..Writes::default()
        });
        folded.fold(Writes {
            queued_removed: vec![ids[0], ids[2]],
            ..Writes::default()
        });
        let writes = folded.take_writes();
        assert_eq!(writes.queued_added, [ids[1]]);
        assert_eq!(writes.queued_removed, [ids[2]]);
    }

    #[test]
    fn restored_writes_lack_the_rows_of_retracted_requests() {
        let mut folded = FoldedWrites::default();
        folded.fold(Writes {
            inserts: vec![tx(1, None)],
            updates: vec![tx(2, Some(3))],
            ..Writes::default()
        });
        let length = folded.length();
        folded.fold(Writes {
            inserts: vec![tx(3, Some(4)), tx(4, None)],
            queued_added: ids([4]).to_vec(),
            ..Writes::default()
        });
        let taken = folded.take_writes();
        let dropped = folded.restore(taken, length);
        assert_eq!(dropped, [tx(3, Some(4)), tx(4, None)]);
        // The same request may be accepted once more.
        folded.fold(Writes {
            inserts: vec![tx(4, Some(4))],
            ..Writes::default()
        });
        let writes = folded.take_writes();
        assert_eq!(writes.inserts, [tx(1, None), tx(4, Some(4))]);
        assert_eq!(writes.updates, [tx(2, Some(3))]);
        assert_eq!(writes.queued_added, []);
    }

    #[test]
    fn headers_that_are_stored_already_are_not_written_again() {
        let mut folded = FoldedWrites::default();
        let [stored, fresh] = [1, 2].map(|number| Header {
            number,
            hash: B256::with_last_byte(u8::try_from(number).expect("small")),
            parent_hash: B256::ZERO,
            timestamp: 0,
        });
        for header in [stored, fresh, fresh] {
            folded.add_headers(vec![header]);
        }
        let taken = folded.take_headers(&BTreeSet::from([stored.hash]));
        assert_eq!(taken, [fresh]);
        assert_eq!(folded.take_headers(&BTreeSet::new()), [], "taken once");
    }
}
