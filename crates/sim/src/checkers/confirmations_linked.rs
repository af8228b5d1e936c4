//! Confirmations are a chain of headers linked by their parents, from the tx's block upwards; `newFork` is
//! true exactly when what was told before is replaced, and then the list is complete, otherwise it goes
//! on where it ended.

use std::collections::{BTreeMap, BTreeSet};

use domain::{B256, Event, EventKind, Header, TxId};

use super::books::Books;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct ConfirmationsLinked {
    /// Every header there ever was, of whatever branch.
    headers: BTreeMap<B256, Header>,
    /// Those that a fork took out of the chain.
    dropped: BTreeSet<B256>,
    /// The newest header that was told of each tx, as long as no fork of its block was told.
    told: Books<BTreeMap<TxId, B256>>,
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
            return Err(format!("tx {tx}: {count} are told, {above} stand on it"));
        }
        let told = self.told.insert(tx, *counted);
        let goes_on_at = told.filter(|told| walk.contains(told));
        let is_replaced = told.is_some() && goes_on_at.is_none();
        if (*since, *new_fork) != (goes_on_at, is_replaced) {
            return Err(format!(
                "tx {tx}: told {told:?} before, {counted} now, with since {since:?} and newFork {new_fork}"
            ));
        }
        Ok(())
    }

    fn confirmed(&mut self, tx: TxId, kind: &EventKind) -> Result<(), String> {
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
        let is_right = match told.filter(|told| !walk.contains(told)) {
            None => !*new_fork,
            // What was told may lie above what makes it final: that alone replaces nothing. But there it
            // may have been replaced, and then who knows it says so; and a new keeper that has not seen yet what
            // its predecessor told takes it for replaced (docs/proofs.md, open points).
            Some(told) if self.walk(*counted, told).is_some() => true,
            Some(_) => *new_fork,
        };
        if !is_right {
            return Err(format!(
                "tx {tx}: told {told:?} before, final with {counted}, newFork is {new_fork}"
            ));
        }
        Ok(())
    }

    fn read(&mut self, event: &Event) -> Result<(), String> {
        let Some(tx) = event.tx_id else { return Ok(()) };
        if let EventKind::TxReorged { .. } = event.kind {
            self.told.remove(&tx);
        }
        self.progress(tx, &event.kind)?;
        self.confirmed(tx, &event.kind)
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
            self.dropped
                .extend(dropped.iter().map(|header| header.hash));
        }
        let Some((_, batch)) = applied(event) else {
            return Ok(());
        };
        // All are read, also after one that is wrong: what follows builds on them.
        let read: Vec<_> = batch.writes.events.iter().map(|e| self.read(e)).collect();
        read.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{applied, block, lane, story};
    use super::*;

    fn hash(number: u8) -> B256 {
        B256::with_last_byte(number)
    }

    /// A tx in block 1, with so many headers on it.
    fn told(count: u8, since: Option<u8>, new_fork: bool) -> WorldEvent {
        let kind = EventKind::TxConfirmations {
            block_number: 1,
            block_hash: hash(1),
            counted: hash(1 + count),
            count: u64::from(count),
            since: since.map(hash),
            new_fork,
        };
        applied(lane(1), |w| w.events = vec![story(1, 1, kind)])
    }

    fn run(events: &[WorldEvent]) -> Result<(), String> {
        let mut checker = ConfirmationsLinked::default();
        for number in 1..=5 {
            checker.after(&block(number, Vec::new()))?;
        }
        events.iter().try_for_each(|event| checker.after(event))
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
}
