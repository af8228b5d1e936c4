//! The invariants that hold when all actors are done, whatever the order.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneId, LaneKey, LeaseGrant, TxId};
use engine::ports::{LaneBatch, Store as _};
use uuid::Uuid;

use crate::actors::{Play, read_on};
use crate::facts::{Fact, Outcome, TxRow};
use crate::kit::Memory;
use crate::scene::Base;
use crate::snapshots::{Ending, Snapshots};

/// The violations: none, when the order was safe. Where an actor read the feed, the rest of it is read
/// too, up to the end that is returned.
pub(crate) async fn check(play: &Play, snapshots: &Snapshots) -> (Vec<String>, Option<String>) {
    let mut violations = Violations::default();
    let end = match play.feed_from.is_some() {
        true => Some(check_feed(play, &mut violations).await),
        false => None,
    };
    let endings = snapshots.endings(&play.scene.lanes()).await;
    let facts = play.facts.all();
    for memory in play.scene.memories() {
        check_rows(
            memory,
            &endings[&memory.lease_grant.lane],
            &facts,
            &mut violations,
        );
    }
    let (contested, ending) = (&play.scene.contested, &endings[&play.scene.lane()]);
    check_hands(play, ending, &facts, &mut violations);
    check_views(contested, ending, &facts, &mut violations);
    check_queue(ending, &facts, &mut violations);
    for fact in facts.iter() {
        if let Fact::Refused { what, why } = fact {
            violations.note(false, || format!("{what} was refused: {why}"));
        }
    }
    (violations.0, end)
}

#[derive(Default)]
pub(crate) struct Violations(pub(crate) Vec<String>);

impl Violations {
    fn note(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.0.push(text());
        }
    }
}

/// The batches of a lane, with what came of them.
fn batches(facts: &[Fact], lane: LaneId) -> impl Iterator<Item = (&LaneBatch, Outcome)> {
    facts.iter().filter_map(move |fact| match fact {
        Fact::Gate { batch, outcome } if batch.lease_grant.lane == lane => {
            Some((&**batch, *outcome))
        }
        Fact::Gate { .. }
        | Fact::Granted { .. }
        | Fact::Loaded { .. }
        | Fact::Renewed(_)
        | Fact::Released(_)
        | Fact::Queued { .. }
        | Fact::Read { .. }
        | Fact::Refused { .. } => None,
    })
}

/// Applied batches are there whole, the others not at all; counters, nonces and events have no hole.
fn check_rows(memory: &Memory, ending: &Ending, facts: &[Fact], violations: &mut Violations) {
    let lane = memory.lease_grant.lane;
    let applied: Vec<&LaneBatch> = batches(facts, lane)
        .filter(|(_, outcome)| *outcome == Outcome::Applied)
        .map(|(batch, _)| batch)
        .collect();
    let is_applied = |batch: &LaneBatch| applied.contains(&batch);
    for (batch, outcome) in batches(facts, lane) {
        // Of one batch that is sent twice one lands.
        let is_there = outcome == Outcome::Applied || is_applied(batch);
        for tx in &batch.writes.inserts {
            let found = ending.tx(tx.id).is_some();
            violations.note(found == is_there, || {
                format!("{outcome:?}, and whether tx {} is there: {found}", tx.id)
            });
        }
        for attempt in &batch.writes.attempts {
            let found = ending.attempts.contains(attempt.hash.as_slice());
            violations.note(found == is_there, || {
                format!(
                    "{outcome:?}, and whether attempt {} is there: {found}",
                    attempt.hash
                )
            });
        }
    }
    let cursor = &ending.cursor;
    let count = |n: u64| i64::try_from(n).expect("a handful");
    let batches = count(memory.batch_seq) + count(applied.len() as u64);
    violations.note(cursor.batch_seq == batches, || {
        format!("{} batches counted, {batches} applied", cursor.batch_seq)
    });
    let received: usize = applied.iter().map(|batch| batch.writes.events.len()).sum();
    let events = count(memory.event_seq) + count(received as u64);
    violations.note(cursor.event_seq == events, || {
        format!(
            "event {} is the last, {events} were written",
            cursor.event_seq
        )
    });
    let mut next = 1;
    for (first, length) in &ending.events {
        violations.note(*first == next, || {
            format!("event {first} follows on {}", next - 1)
        });
        next = first + i64::from(*length);
    }
    violations.note(next == events + 1, || {
        format!("events end before {next}, not with {events}")
    });
    let nonces: Vec<i64> = ending.txs.iter().filter_map(|tx| tx.nonce).collect();
    let allocated: BTreeSet<i64> = nonces.iter().copied().collect();
    let all: BTreeSet<i64> = (0..cursor.next_nonce).collect();
    violations.note(nonces.len() == allocated.len() && allocated == all, || {
        format!("nonces {nonces:?} below {}", cursor.next_nonce)
    });
    violations.note(cursor.is_busy, || {
        "open nonces, and not marked as busy".into()
    });
}

/// Every grant of the contested lane, in order, with its holder.
fn lease_grants<'a>(memory: &Memory, facts: &'a [Fact]) -> Vec<(&'a str, LeaseGrant)> {
    let granted = facts.iter().filter_map(|fact| match fact {
        Fact::Granted {
            node, lease_grant, ..
        } => Some((&**node, *lease_grant)),
        Fact::Gate { .. }
        | Fact::Loaded { .. }
        | Fact::Renewed(_)
        | Fact::Released(_)
        | Fact::Queued { .. }
        | Fact::Read { .. }
        | Fact::Refused { .. } => None,
    });
    [("a", memory.lease_grant)]
        .into_iter()
        .chain(granted)
        .collect()
}

/// The token rises by one with every takeover, and both rows agree.
fn check_hands(play: &Play, ending: &Ending, facts: &[Fact], violations: &mut Violations) {
    let lease_grants = lease_grants(&play.scene.contested, facts);
    for pair in lease_grants.windows(2) {
        let ((before, old), (after, new)) = (pair[0], pair[1]);
        let due = if before == after {
            old.token
        } else {
            old.token.next()
        };
        violations.note(new.token == due, || {
            format!(
                "{after} has token {} after {before} had {}",
                new.token, old.token
            )
        });
    }
    let (owner, last) = lease_grants.last().expect("a had it");
    let token = i64::try_from(last.token.0).expect("a handful");
    let lease = &ending.lease;
    violations.note((lease.token, ending.cursor.token) == (token, token), || {
        let rows = (lease.token, ending.cursor.token);
        format!("token {token} was granted last, and the rows have {rows:?}")
    });
    violations.note(lease.owner == *owner, || {
        format!(
            "{owner} had the last grant, and {} has the lease",
            lease.owner
        )
    });
    let is_reported = |what: &dyn Fn(&Fact) -> bool| facts.iter().any(what);
    let was_released = is_reported(&|fact| matches!(fact, Fact::Released(true)));
    let was_renewed = is_reported(&|fact| matches!(fact, Fact::Renewed(true)));
    let is_taken = lease_grants.iter().any(|(node, _)| *node != "a");
    if !is_taken {
        violations.note((lease.expires_at == 0) == was_released, || {
            "given back and running, or the other way round".into()
        });
        violations.note(!was_renewed || was_released || lease.expires_at > 1, || {
            "renewed, and over".into()
        });
    }
    if play.scene.base == Base::Live && !was_released {
        violations.note(!is_taken, || "a lease that runs was taken".into());
    }
}

/// Nothing of an earlier right is there that a later one did not find when it loaded the lane.
pub(crate) fn check_views(
    memory: &Memory,
    ending: &Ending,
    facts: &[Fact],
    violations: &mut Violations,
) {
    let lease_grants: Vec<LeaseGrant> = lease_grants(memory, facts)
        .into_iter()
        .map(|(_, lease_grant)| lease_grant)
        .collect();
    let landed_under = |lease_grants: &[LeaseGrant]| {
        let applied = batches(facts, memory.lease_grant.lane).filter(|(batch, outcome)| {
            *outcome == Outcome::Applied && lease_grants.contains(&batch.lease_grant)
        });
        memory.batch_seq + applied.count() as u64
    };
    for fact in facts {
        match fact {
            Fact::Loaded {
                lease_grant,
                image,
                rows,
            } => {
                let token = i64::try_from(lease_grant.token.0).expect("a handful");
                // A request that was queued meanwhile has no owner, and a queue row.
                let of_keepers = |tx: &&TxRow| tx.token > 0 && tx.token < token;
                for tx in ending.txs.iter().filter(of_keepers) {
                    violations.note(rows.contains(tx), || {
                        format!(
                            "token {token} did not find what is there under an older one: {tx:?}"
                        )
                    });
                }
                let rank = lease_grants.iter().position(|other| other == lease_grant);
                if let (Some(rank), Some(image)) = (rank, image) {
                    let landed = landed_under(&lease_grants[..rank]);
                    violations.note(image.batch_seq == landed, || {
                        format!(
                            "token {token} found {} batches, {landed} landed",
                            image.batch_seq
                        )
                    });
                }
            }
            Fact::Granted {
                lease_grant,
                landed: Some(found),
                ..
            } => {
                let rank = lease_grants.iter().position(|other| other == lease_grant);
                let landed = landed_under(&lease_grants[..rank.unwrap_or_default()]);
                violations.note(*found == landed, || {
                    format!("granted anew after {found} batches, and {landed} landed")
                });
            }
            Fact::Gate { .. }
            | Fact::Granted { .. }
            | Fact::Renewed(_)
            | Fact::Released(_)
            | Fact::Queued { .. }
            | Fact::Read { .. }
            | Fact::Refused { .. } => {}
        }
    }
}

/// Every tx that waits for a nonce has a queue row, and every request has the tx that was returned.
fn check_queue(ending: &Ending, facts: &[Fact], violations: &mut Violations) {
    let waiting = ending.txs.iter().filter(|tx| tx.nonce.is_none());
    let waiting: BTreeSet<TxId> = waiting.map(|tx| tx.id).collect();
    violations.note(waiting == ending.queue_rows, || {
        format!(
            "{waiting:?} wait, and {:?} have wake rows",
            ending.queue_rows
        )
    });
    for fact in facts {
        if let Fact::Queued { request, tx } = fact {
            let found = ending
                .txs
                .iter()
                .find(|row| row.request == request.as_str());
            violations.note(found.is_some_and(|row| row.id == *tx), || {
                format!("{request} was answered with {tx}, and is {found:?}")
            });
        }
    }
}

/// A reader that reads to the end has received every event once, in the order of its lane.
async fn check_feed(play: &Play, violations: &mut Violations) -> String {
    let fed = play.store.extend_feed(&play.scene.lanes()).await;
    fed.expect("extend_feed");
    // Where each reader stopped, and a reader that starts now.
    let mut readers = BTreeMap::from([(Uuid::nil(), play.feed_from.clone())]);
    for fact in play.facts.all().iter() {
        if let Fact::Read { reader, next, .. } = fact {
            readers.insert(*reader, Some(next.clone()));
        }
    }
    let mut end = String::new();
    for (reader, after) in readers {
        end = read_on(play, reader, after).await;
        let facts = play.facts.all();
        for memory in play.scene.memories() {
            let of_lane = batches(&facts, memory.lease_grant.lane);
            let applied = of_lane.filter(|(_, outcome)| *outcome == Outcome::Applied);
            let written: usize = applied.map(|(batch, _)| batch.writes.events.len()).sum();
            let first = memory.event_seq + 1;
            let due: Vec<u64> = (first..first + written as u64).collect();
            let received = received(&facts, reader, memory.key);
            violations.note(received == due, || {
                format!("events {due:?} were written, {received:?} were read")
            });
        }
    }
    end
}

/// The events of a lane that a reader received.
fn received(facts: &[Fact], reader: Uuid, lane: LaneKey) -> Vec<u64> {
    let mut received = Vec::new();
    for fact in facts {
        match fact {
            Fact::Read {
                reader: by, events, ..
            } if *by == reader => {
                let of_lane = events.iter().filter(|(key, _)| *key == lane);
                received.extend(of_lane.map(|(_, seq)| *seq));
            }
            Fact::Read { .. }
            | Fact::Gate { .. }
            | Fact::Granted { .. }
            | Fact::Loaded { .. }
            | Fact::Renewed(_)
            | Fact::Released(_)
            | Fact::Queued { .. }
            | Fact::Refused { .. } => {}
        }
    }
    received
}
