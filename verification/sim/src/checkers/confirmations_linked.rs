//! Confirmations are a chain of headers linked by their parents, from the tx's block upwards; `newFork` is
//! true exactly when what was told before is replaced, and then the list is complete, otherwise it goes
//! on where it ended.

use std::collections::{BTreeMap, BTreeSet};

use domain::{B256, Event, EventKind, Header, Timestamp, Token, TxId};
use engine::ports::LaneBatch;

use super::books::Books;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// How many blocks an endpoint may be behind.
const BEHIND_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub struct ConfirmationsLinked {
    /// Every header there ever was, of whatever branch.
    headers: BTreeMap<B256, Header>,
    /// Headers on which blocks stood that a fork took out: from there on some node shows, or showed, another
    /// branch.
    forked_above: BTreeSet<B256>,
    /// What was told of each tx last, as long as no fork of its block was told.
    told: Books<BTreeMap<TxId, Told>>,
}

/// What a keeper told of a tx.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// The newest header on its block.
    top: B256,
    /// Who said it.
    token: Token,
}

/// Who tells something, and when.
#[derive(Clone, Copy)]
struct Teller<'a> {
    batch: &'a LaneBatch,
    at: Timestamp,
}

impl Teller<'_> {
    fn token(self) -> Token {
        self.batch.lease_grant.token
    }

    /// The newest header that he sees, if he tells it of some tx in the same step.
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
    /// The headers from `top` down to `bottom`, if it stands on it.
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
        walk.ok_or_else(|| format!("header {counted} does not stand on block {block}"))
    }

    /// Whether this keeper, who sees the chain up to `seen` at least, may say that what was told is replaced.
    ///
    /// It may where he can see another branch, or could a moment ago: an endpoint that is behind shows old ones, and
    /// who has followed it comes back step by step. What was told may also just lie above what he sees: then
    /// nothing is replaced, but a new keeper who is behind his predecessor cannot know that and says it
    /// once (docs/proofs.md, open points).
    fn may_be_replaced(&self, told: Told, seen: B256, by: Token) -> bool {
        if self.walk(seen, told.top).is_none() {
            return true; // it lies on another branch than what he sees
        }
        let parent = |hash: &B256| self.headers.get(hash).map(|header| header.parent_hash);
        let below_told = std::iter::successors(parent(&told.top), parent);
        let mut near = below_told.take(BEHIND_MAX);
        near.any(|header| self.forked_above.contains(&header)) || told.token != by
    }

    fn progress(&mut self, tx: TxId, kind: &EventKind, by: Teller<'_>) -> Result<(), String> {
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
            return Err(format!("tx {tx}: {count} are told, {above} stand on it"));
        }
        let now = Told {
            top: *counted,
            token: by.token(),
        };
        let told = self.told.insert(tx, now);
        let goes_on_at = told.map(|told| told.top).filter(|top| walk.contains(top));
        let replaced = told.filter(|_| goes_on_at.is_none());
        let may_be = replaced.is_none_or(|told| self.may_be_replaced(told, *counted, by.token()));
        if !may_be || (*since, *new_fork) != (goes_on_at, replaced.is_some()) {
            return Err(format!(
                "tx {tx}: told {told:?} before, {now:?} now, with since {since:?} and newFork {new_fork}"
            ));
        }
        Ok(())
    }

    fn confirmed(&mut self, tx: TxId, kind: &EventKind, by: Teller<'_>) -> Result<(), String> {
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
        let told = self.told.remove(&tx);
        let is_right = match told.filter(|told| !walk.contains(&told.top)) {
            None => !*new_fork,
            Some(told) => self.is_said_of(told, *counted, *new_fork, by),
        };
        if !is_right {
            return Err(format!(
                "tx {tx}: told {told:?} before, final with {counted}, newFork is {new_fork}"
            ));
        }
        Ok(())
    }

    /// Whether `newFork` is right of a final result, where what was told is not among what makes it final: it
    /// is replaced, or it only lies above that.
    fn is_said_of(&self, told: Told, counted: B256, new_fork: bool, by: Teller<'_>) -> bool {
        if self.walk(counted, told.top).is_none() {
            return new_fork;
        }
        // Whoever sees less than what was told, or has not heard of a fork yet, says nothing of it.
        let is_before = |tip: B256| self.walk(tip, told.top).is_some();
        let sees_it = |tip: B256| self.walk(told.top, tip).is_some();
        match (by.tip(), new_fork) {
            (None, false) => true,
            (Some(tip), false) => sees_it(tip) || is_before(tip),
            (None, true) => self.may_be_replaced(told, counted, by.token()),
            (Some(tip), true) => !sees_it(tip) && self.may_be_replaced(told, tip, by.token()),
        }
    }

    fn read(&mut self, event: &Event, by: Teller<'_>) -> Result<(), String> {
        let Some(tx) = event.tx_id else { return Ok(()) };
        if let EventKind::TxReorged { .. } = event.kind {
            self.told.remove(&tx);
        }
        self.progress(tx, &event.kind, by)?;
        self.confirmed(tx, &event.kind, by)
    }
}

impl Checker for ConfirmationsLinked {
    fn name(&self) -> &'static str {
        "confirmations are linked"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.told.follow(event);
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
        // All are read, also after one that is wrong: what follows builds on them.
        let events = batch.writes.events.iter();
        let read = events.map(|event| {
            self.read(
                event,
                Teller {
                    batch,
                    at: event.at,
                },
            )
        });
        let read: Vec<_> = read.collect();
        read.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{applied_by, block, forked, lane, story};
    use super::*;

    /// The block of every tx here.
    const BLOCK: u8 = 1;

    fn hash(number: u8) -> B256 {
        B256::with_last_byte(number)
    }

    /// A tx in block 1, with so many headers on it.
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
        story(1, tx, kind)
    }

    fn told(count: u8, since: Option<u8>, new_fork: bool) -> WorldEvent {
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
        story(2, 1, kind)
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
        let before = [told(3, None, false)];
        let all = before.into_iter().chain(other_branch());
        run(&all.chain(events.iter().cloned()).collect::<Vec<_>>())
    }

    #[test]
    fn lists_go_on_where_they_ended() {
        assert_eq!(
            run(&[told(1, None, false), told(3, Some(2), false)]),
            Ok(())
        );
        assert!(run(&[told(1, None, false), told(3, None, false)]).is_err());
        assert!(run(&[told(1, None, false), told(3, Some(2), true)]).is_err());
        assert!(
            run(&[told(1, None, true)]).is_err(),
            "nothing was told before"
        );
        assert!(run(&[told(1, None, false), told(3, Some(3), false)]).is_err());
        assert!(
            run(&[told(9, None, false)]).is_err(),
            "there is no such header"
        );
    }

    #[test]
    fn a_fork_is_told() {
        assert_eq!(
            after_fork(&[by(1, vec![progress(1, 14, None, true)])]),
            Ok(())
        );
        assert!(after_fork(&[by(1, vec![progress(1, 14, None, false)])]).is_err());
        // Final below the fork, by somebody who may not have heard of it yet.
        assert_eq!(after_fork(&[by(1, vec![confirmed(true)])]), Ok(()));
        assert_eq!(after_fork(&[by(1, vec![confirmed(false)])]), Ok(()));
        // But not by one who tells the other branch of another tx in the same step.
        let in_step =
            |new_fork, tip| by(1, vec![confirmed(new_fork), progress(2, tip, None, false)]);
        assert_eq!(after_fork(&[in_step(true, 14)]), Ok(()));
        assert!(after_fork(&[in_step(false, 14)]).is_err(), "a missed fork");
        assert_eq!(after_fork(&[in_step(false, 5)]), Ok(()));
        assert!(
            after_fork(&[in_step(true, 5)]).is_err(),
            "he sees what was told"
        );
    }

    #[test]
    fn only_a_new_keeper_who_is_behind_takes_what_was_told_for_replaced() {
        let before = told(3, None, false);
        let after = |event: WorldEvent| run(&[before.clone(), event]);
        assert_eq!(after(by(2, vec![confirmed(true)])), Ok(()));
        assert_eq!(after(by(2, vec![confirmed(false)])), Ok(()));
        assert_eq!(after(by(2, vec![progress(1, 2, None, true)])), Ok(()));
        assert!(after(by(1, vec![confirmed(true)])).is_err());
        assert!(after(by(1, vec![progress(1, 2, None, true)])).is_err());
        // Once: after that it is what he told himself.
        let again = [progress(1, 3, None, true), progress(1, 2, None, true)];
        assert!(after(by(2, again.to_vec())).is_err());
        // And not one who sees more than what was told.
        let sees_more = [progress(2, 5, None, false), confirmed(true)];
        assert!(after(by(2, sees_more.to_vec())).is_err());
    }
}
