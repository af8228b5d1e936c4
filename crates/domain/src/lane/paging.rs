//! The txs that wait in the store: the backlog, which has nonces and waits for room in nodes' pools, and the
//! queue, which waits for nonces. They are read a page at a time, so that memory is bounded by the in-flight txs.
//!
//! Invariants: at most one page of each kind is being read, and a page is accepted only while it is awaited:
//! another could allocate a second nonce to a tx. Only txs below the backlog's start may be in memory, so that a
//! page that was read long ago never brings back a tx that has left memory since.

use std::collections::BTreeSet;

use super::LOAD_MAX;
use crate::{Nonce, Tx, TxId};

/// The reading of backlog and queue from the store.
#[derive(Clone, Debug)]
pub(super) struct Paging {
    backlog: Option<Backlog>,
    /// How many txs wait in the store for a nonce: at least one when it is not zero.
    queued: u64,
    /// While a page of the queue is being read: the txs that joined since, and may not be on it.
    queue_page: Option<JoinedSince>,
}

#[derive(Clone, Copy, Debug)]
struct Backlog {
    /// The lowest nonce whose tx waits for its signature.
    from: Nonce,
    /// While a page is being read: the lowest nonce that was allocated since it was requested. From there on the
    /// page may be incomplete.
    page_complete_below: Option<Nonce>,
}

/// Txs that joined the queue while a page of it was being read.
#[derive(Clone, Debug, Default)]
struct JoinedSince {
    /// Those that this keeper accepted, oldest first; at most [`LOAD_MAX`].
    known: Vec<Tx>,
    /// How many others there are, at least.
    others: u64,
}

impl Paging {
    pub(super) fn new(backlog_from: Option<Nonce>, queued: u64) -> Self {
        Self {
            backlog: backlog_from.map(Backlog::new),
            queued,
            queue_page: None,
        }
    }

    /// The lowest nonce whose tx waits in the store for its signature.
    pub(super) fn backlog_from(&self) -> Option<Nonce> {
        self.backlog.map(|backlog| backlog.from)
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.backlog.is_some()
    }

    pub(super) fn has_queued(&self) -> bool {
        self.queued > 0
    }

    /// How many nonces the backlog may hold.
    pub(super) fn backlog_len(&self, cursor: Nonce) -> u64 {
        self.backlog_from().map_or(0, |from| from.until(cursor))
    }

    /// Whether no page of the backlog can bring this nonce.
    pub(super) fn is_before_backlog(&self, nonce: Nonce) -> bool {
        self.backlog_from().is_none_or(|from| nonce < from)
    }

    /// A tx with a nonce stays in the store until it can be signed.
    pub(super) fn defer(&mut self, nonce: Nonce) {
        let backlog = self.backlog.get_or_insert(Backlog::new(nonce));
        backlog.from = backlog.from.min(nonce);
        backlog.page_complete_below = backlog.page_complete_below.map(|below| below.min(nonce));
    }

    /// Where the next page of the backlog starts, unless one is being read.
    pub(super) fn next_backlog_page(&self) -> Option<Nonce> {
        let backlog = self.backlog?;
        let is_idle = backlog.page_complete_below.is_none();
        is_idle.then_some(backlog.from)
    }

    /// A page of the backlog is requested; nonces from the cursor on are allocated later.
    pub(super) fn await_backlog_page(&mut self, cursor: Nonce) {
        if let Some(backlog) = &mut self.backlog {
            backlog.page_complete_below = Some(cursor);
        }
    }

    /// Takes a page of the backlog: the txs up to which it is complete. Those above are read again.
    pub(super) fn receive_backlog_page(
        &mut self,
        mut txs: Vec<Tx>,
        has_more: bool,
        cursor: Nonce,
    ) -> Vec<Tx> {
        let awaited = self.backlog.and_then(|backlog| backlog.page_complete_below);
        let Some(complete_below) = awaited else {
            return Vec::new();
        };
        let last = txs.last().and_then(|tx| tx.nonce).filter(|_| has_more);
        let rest = last.map_or(complete_below, |last| last.next().min(complete_below));
        self.backlog = (rest < cursor).then_some(Backlog::new(rest));
        txs.retain(|tx| tx.nonce.is_some_and(|nonce| nonce < rest));
        txs
    }

    /// Takes a page of reservations. Nothing is reserved before all of them are in memory, so it is complete.
    pub(super) fn receive_reserved_page(&mut self, txs: Vec<Tx>, has_more: bool) -> Vec<Tx> {
        if self.next_backlog_page().is_some() || self.backlog.is_none() {
            return Vec::new();
        }
        let last = txs.last().and_then(|tx| tx.nonce).filter(|_| has_more);
        self.backlog = last.map(Nonce::next).map(Backlog::new);
        txs
    }

    /// The rest of a page has to wait: it is read again from this nonce on.
    pub(super) fn restart_backlog_at(&mut self, nonce: Nonce) {
        self.backlog = Some(Backlog::new(nonce));
    }

    /// One more tx waits in the store for a nonce; `tx` if this keeper accepted it.
    pub(super) fn enqueue(&mut self, tx: Option<&Tx>) {
        self.queued = self.queued.saturating_add(1);
        let Some(since) = &mut self.queue_page else {
            return;
        };
        match tx {
            Some(tx) if (since.known.len() as u64) < LOAD_MAX => since.known.push(tx.clone()),
            Some(_) | None => since.others = since.others.saturating_add(1),
        }
    }

    /// Whether a page of the queue should be read: txs wait, and none is being read.
    pub(super) fn needs_queue_page(&self) -> bool {
        self.has_queued() && self.queue_page.is_none()
    }

    pub(super) fn await_queue_page(&mut self) {
        self.queue_page = Some(JoinedSince::default());
    }

    /// Takes a page of the queue. After the last page the txs that joined meanwhile follow at once: otherwise,
    /// under a steady load, the queue would never end.
    pub(super) fn receive_queue_page(&mut self, mut txs: Vec<Tx>, has_more: bool) -> Vec<Tx> {
        let Some(JoinedSince { known, others }) = self.queue_page.take() else {
            return Vec::new();
        };
        let on_page: BTreeSet<TxId> = txs.iter().map(|tx| tx.id).collect();
        let missed = known.into_iter().filter(|tx| !on_page.contains(&tx.id));
        let left = match has_more {
            true => (missed.count() as u64).saturating_add(1),
            false => {
                txs.extend(missed);
                0
            }
        };
        self.queued = others.saturating_add(left);
        txs
    }
}

impl Backlog {
    fn new(from: Nonce) -> Self {
        Self {
            from,
            page_complete_below: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::tests::request;
    use crate::{Timestamp, Token};

    fn tx(number: u64) -> Tx {
        let mut tx = Tx::created(request(number), Token(1), Timestamp(0));
        tx.nonce = Some(Nonce(number));
        tx
    }

    fn nonces(txs: &[Tx]) -> Vec<u64> {
        txs.iter().filter_map(|tx| Some(tx.nonce?.0)).collect()
    }

    #[test]
    fn page_that_nothing_awaits_is_ignored() {
        let mut paging = Paging::new(Some(Nonce(2)), 1);
        let page = paging.receive_backlog_page(vec![tx(2)], false, Nonce(5));
        assert!(page.is_empty());
        assert!(paging.receive_queue_page(vec![tx(9)], false).is_empty());
        assert_eq!(
            (paging.backlog_from(), paging.has_queued()),
            (Some(Nonce(2)), true)
        );
    }

    #[test]
    fn page_is_complete_only_below_what_was_allocated_since() {
        let mut paging = Paging::new(Some(Nonce(2)), 0);
        paging.await_backlog_page(Nonce(6));
        assert_eq!(paging.next_backlog_page(), None, "one at a time");
        paging.defer(Nonce(4)); // a gap was allocated while the page was being read
        let page = paging.receive_backlog_page(vec![tx(2), tx(3), tx(5)], false, Nonce(6));
        assert_eq!(nonces(&page), [2, 3]);
        assert_eq!(paging.next_backlog_page(), Some(Nonce(4)));
    }

    #[test]
    fn txs_that_join_while_the_last_page_is_read_follow_it() {
        let mut paging = Paging::new(None, 1);
        paging.await_queue_page();
        paging.enqueue(Some(&tx(1)));
        paging.enqueue(Some(&tx(2)));
        paging.enqueue(None);
        let page = paging.receive_queue_page(vec![tx(0), tx(1)], false);
        assert_eq!(nonces(&page), [0, 1, 2]);
        assert!(paging.needs_queue_page(), "the one from elsewhere");
    }
}
