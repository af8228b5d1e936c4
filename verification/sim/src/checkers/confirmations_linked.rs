//! Confirmations are a chain of parent-linked headers from the tx's block upwards; `newFork` is true exactly
//! when the reported headers are replaced. Then the list is complete; otherwise it continues where the last
//! one ended.

use std::collections::{BTreeMap, BTreeSet};

use domain::{B256, Event, EventKind, Header, Timestamp, Tx, TxId};
use engine::ports::LaneBatch;

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// How many blocks an endpoint may be behind.
const BEHIND_MAX: usize = 64;

#[derive(Default)]
pub struct ConfirmationsLinked {
    /// Every header of any branch.
    headers: BTreeMap<B256, Header>,
    /// Headers below blocks that were reorged out: above them some endpoint shows, or showed, another
    /// branch.
    forked_above: BTreeSet<B256>,
    /// The newest header of the last report of each tx, unless a reorg of its block was reported since.
    reported: StoreModel<BTreeMap<TxId, B256>>,
}

/// The commit that contains an event.
#[derive(Clone, Copy)]
struct EventSource<'a> {
    batch: &'a LaneBatch,
    at: Timestamp,
}

impl EventSource<'_> {
    /// The newest header that the keeper sees, if it reports it for some tx in the same batch.
    fn tip(self) -> Option<B256> {
        let events = self.batch.writes.events.iter();
        let same_step = events.filter(|event| event.at == self.at);
        let mut tips = same_step.filter_map(|event| tip(&event.kind));
        tips.next_back()
    }
}

fn tip(kind: &EventKind) -> Option<B256> {
    if let EventKind::TxConfirmations { counted, .. } = kind {
        return Some(*counted);
    }
    None
}

impl ConfirmationsLinked {
    /// The headers from `top` down to `bottom`, if `top` descends from it.
    fn walk(&self, bottom: B256, top: B256) -> Option<Vec<B256>> {
        let floor = self.headers.get(&bottom)?.number;
        let mut header = self.headers.get(&top)?;
        let mut walked = vec![header.hash];
        while header.number > floor {
            header = self.headers.get(&header.parent_hash)?;
            walked.push(header.hash);
        }
        (header.hash == bottom).then_some(walked)
    }

    fn linked(&self, block: B256, counted: B256) -> Result<Vec<B256>, String> {
        let walk = self.walk(block, counted);
        walk.ok_or_else(|| format!("header {counted} does not descend from block {block}"))
    }

    /// Whether an earlier report is replaced for a keeper whose newest header is this one: it is on another branch. A
    /// report that is only above what the keeper sees is not replaced.
    fn is_replaced(&self, reported: B256, tip: B256) -> bool {
        self.walk(tip, reported).is_none()
    }

    /// Whether a keeper that sees the chain up to `seen` at least, and perhaps further, may know that the earlier report
    /// is replaced: some endpoint shows another branch, or could recently, because a lagging endpoint shows old ones.
    fn may_be_replaced(&self, reported: B256, seen: B256) -> bool {
        if self.is_replaced(reported, seen) {
            return true;
        }
        let parent = |hash: &B256| self.headers.get(hash).map(|header| header.parent_hash);
        let below_reported = std::iter::successors(parent(&reported), parent);
        let mut near = below_reported.take(BEHIND_MAX);
        near.any(|header| self.forked_above.contains(&header))
    }

    fn progress(&mut self, tx: TxId, kind: &EventKind) -> Result<(), String> {
        let EventKind::TxConfirmations {
            block_hash,
            counted,
            count,
            since,
            new_fork,
            ..
        } = kind
        else {
            return Ok(());
        };
        let walk = self.linked(*block_hash, *counted)?;
        if walk.len() as u64 != count.saturating_add(1) {
            let above = walk.len() - 1;
            return Err(format!(
                "tx {tx}: {count} confirmations are reported, {above} blocks are above it"
            ));
        }
        let reported = self.reported.insert(tx, *counted);
        let goes_on_at = reported.filter(|top| walk.contains(top));
        let replaced = reported.filter(|_| goes_on_at.is_none());
        let is_true = replaced.is_none_or(|reported| self.is_replaced(reported, *counted));
        if !is_true || (*since, *new_fork) != (goes_on_at, replaced.is_some()) {
            return Err(format!(
                "tx {tx}: {reported:?} was reported, {counted} now, with since {since:?} and newFork {new_fork}"
            ));
        }
        Ok(())
    }

    fn confirmed(&mut self, tx: TxId, kind: &EventKind, by: EventSource<'_>) -> Result<(), String> {
        let EventKind::TxConfirmed {
            block_hash,
            counted,
            new_fork,
            ..
        } = kind
        else {
            return Ok(());
        };
        let walk = self.linked(*block_hash, *counted)?;
        let reported = self.reported.remove(&tx);
        let is_right = match reported.filter(|reported| !walk.contains(reported)) {
            None => !*new_fork,
            Some(reported) => self.is_new_fork_right(reported, *counted, *new_fork, by),
        };
        if !is_right {
            return Err(format!(
                "tx {tx}: {reported:?} was reported, final with {counted}, newFork is {new_fork}"
            ));
        }
        Ok(())
    }

    /// Whether `newFork` is right for a final result where the reported header is not among the counted ones: it
    /// is replaced, or it is only above them.
    fn is_new_fork_right(
        &self,
        reported: B256,
        counted: B256,
        new_fork: bool,
        by: EventSource<'_>,
    ) -> bool {
        if self.is_replaced(reported, counted) {
            return new_fork;
        }
        // A keeper that sees less than was reported, or does not know of a reorg yet, does not set it.
        let is_before = |tip: B256| self.walk(tip, reported).is_some();
        let sees_it = |tip: B256| self.walk(reported, tip).is_some();
        match (by.tip(), new_fork) {
            (None, false) => true,
            (Some(tip), false) => sees_it(tip) || is_before(tip),
            (None, true) => self.may_be_replaced(reported, counted),
            (Some(tip), true) => !sees_it(tip) && self.is_replaced(reported, tip),
        }
    }

    /// The list of a row is read from its newest counted header down to its block: it never names a header of a block
    /// that was reorged out.
    fn row(&self, tx: &Tx) -> Result<(), String> {
        match (&tx.inclusion, tx.counted) {
            (_, None) => Ok(()),
            (None, Some(counted)) => Err(format!(
                "tx {} is in no block and still counts header {counted}",
                tx.id
            )),
            (Some(inclusion), Some(counted)) => {
                self.linked(inclusion.block_hash, counted).map(drop)
            }
        }
    }

    fn read(&mut self, event: &Event, by: EventSource<'_>) -> Result<(), String> {
        let Some(tx) = event.tx_id else { return Ok(()) };
        if let EventKind::TxReorged { .. } = event.kind {
            self.reported.remove(&tx);
        }
        self.progress(tx, &event.kind)?;
        self.confirmed(tx, &event.kind, by)
    }
}

impl Checker for ConfirmationsLinked {
    fn name(&self) -> &'static str {
        "confirmations are linked"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.reported.follow(event);
        if let WorldEvent::Mined { header, .. } = event {
            self.headers.insert(header.hash, *header);
        }
        if let WorldEvent::Forked { dropped, .. } = event {
            self.forked_above
                .extend(dropped.iter().map(|header| header.parent_hash));
        }
        let Some((_, batch)) = applied(event) else {
            return Ok(());
        };
        // All events are processed, also after a wrong one: later events build on them.
        let events = batch.writes.events.iter();
        let read = events.map(|event| {
            self.read(
                event,
                EventSource {
                    batch,
                    at: event.at,
                },
            )
        });
        let read: Vec<_> = read.collect();
        read.into_iter().collect::<Result<(), String>>()?;
        let mut rows = batch.writes.inserts.iter().chain(&batch.writes.updates);
        rows.try_for_each(|tx| self.row(tx))
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied_by, block, forked, lane, lane_event, tx};
    use super::*;

    /// The block of every tx here.
    const BLOCK: u8 = 1;

    fn hash(number: u8) -> B256 {
        B256::with_last_byte(number)
    }

    /// A tx in block 1, with `top` as the newest header.
    fn progress(tx: u128, top: u8, since: Option<u8>, new_fork: bool) -> Event {
        let on_other_branch = if top > 10 { 10 } else { 0 };
        let kind = EventKind::TxConfirmations {
            block_number: 1,
            block_hash: hash(BLOCK),
            counted: hash(top),
            count: u64::from(top - on_other_branch - BLOCK),
            since: since.map(hash),
            new_fork,
        };
        lane_event(1, tx, kind)
    }

    fn reported(count: u8, since: Option<u8>, new_fork: bool) -> WorldEvent {
        by(1, vec![progress(1, BLOCK + count, since, new_fork)])
    }

    /// The tx is final with block 2.
    fn confirmed(new_fork: bool) -> Event {
        let kind = EventKind::TxConfirmed {
            tx_hash: hash(100),
            block_number: 1,
            block_hash: hash(BLOCK),
            counted: hash(2),
            new_fork,
        };
        lane_event(2, 1, kind)
    }

    fn by(token: u64, events: Vec<Event>) -> WorldEvent {
        applied_by(lane(1), token, |w| w.events = events)
    }

    /// Blocks 13 and 14 stand on 2 instead of 3 and what is above.
    fn other_branch() -> Vec<WorldEvent> {
        let mined = [(13, 2), (14, 13)].map(|(number, parent)| {
            let WorldEvent::Mined {
                chain_id,
                header,
                txs,
            } = block(number, Vec::new())
            else {
                unreachable!("block makes one")
            };
            let header = Header {
                number: u64::from(number) - 10,
                parent_hash: hash(parent),
                ..header
            };
            WorldEvent::Mined {
                chain_id,
                header,
                txs,
            }
        });
        let drops = [forked(5), forked(4), forked(3)];
        drops.into_iter().chain(mined).collect()
    }

    fn run(events: &[WorldEvent]) -> Result<(), String> {
        let mut checker = ConfirmationsLinked::default();
        for number in 1..=5 {
            checker.after(&block(number, Vec::new()))?;
        }
        events.iter().try_for_each(|event| checker.after(event))
    }

    fn after_fork(events: &[WorldEvent]) -> Result<(), String> {
        let before = [reported(3, None, false)];
        let all = before.into_iter().chain(other_branch());
        run(&all.chain(events.iter().cloned()).collect::<Vec<_>>())
    }

    #[test]
    fn confirmation_lists_continue_where_they_ended() {
        assert_eq!(
            run(&[reported(1, None, false), reported(3, Some(2), false)]),
            Ok(())
        );
        assert!(run(&[reported(1, None, false), reported(3, None, false)]).is_err());
        assert!(run(&[reported(1, None, false), reported(3, Some(2), true)]).is_err());
        assert!(
            run(&[reported(1, None, true)]).is_err(),
            "nothing was reported before"
        );
        assert!(run(&[reported(1, None, false), reported(3, Some(3), false)]).is_err());
        assert!(
            run(&[reported(9, None, false)]).is_err(),
            "there is no such header"
        );
    }

    #[test]
    fn reorg_must_set_new_fork() {
        assert_eq!(
            after_fork(&[by(1, vec![progress(1, 14, None, true)])]),
            Ok(())
        );
        assert!(after_fork(&[by(1, vec![progress(1, 14, None, false)])]).is_err());
        // Final below the reorg, by a keeper that may not know of it yet.
        assert_eq!(after_fork(&[by(1, vec![confirmed(true)])]), Ok(()));
        assert_eq!(after_fork(&[by(1, vec![confirmed(false)])]), Ok(()));
        // But not by a keeper that reports the other branch of another tx in the same batch.
        let in_step =
            |new_fork, tip| by(1, vec![confirmed(new_fork), progress(2, tip, None, false)]);
        assert_eq!(after_fork(&[in_step(true, 14)]), Ok(()));
        assert!(after_fork(&[in_step(false, 14)]).is_err(), "a missed reorg");
        assert_eq!(after_fork(&[in_step(false, 5)]), Ok(()));
        assert!(
            after_fork(&[in_step(true, 5)]).is_err(),
            "the keeper sees the reported header"
        );
    }

    #[test]
    fn row_without_a_block_counts_no_header() {
        let row = |counted: Option<B256>| {
            let tx = Tx {
                counted,
                ..tx(1, Some(0))
            };
            run(&[applied_by(lane(1), 1, |w| w.updates = vec![tx])])
        };
        assert_eq!(row(None), Ok(()));
        assert!(row(Some(hash(2))).is_err());
    }

    #[test]
    fn keeper_that_lags_reports_no_fork() {
        let before = reported(3, None, false);
        let after = |event: WorldEvent| run(&[before.clone(), event]);
        for token in [1, 2] {
            assert_eq!(after(by(token, vec![confirmed(false)])), Ok(()));
            assert!(after(by(token, vec![confirmed(true)])).is_err());
            assert!(after(by(token, vec![progress(1, 2, None, true)])).is_err());
            let sees_more = [progress(2, 5, None, false), confirmed(true)];
            assert!(after(by(token, sees_more.to_vec())).is_err());
        }
    }
}
