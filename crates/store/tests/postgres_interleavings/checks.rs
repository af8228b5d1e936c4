//! What must be true when all actors are done, whatever the order.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneId, LaneKey, LeaseGrant, TxId};
use engine::ports::{LaneBatch, Store as _};
use uuid::Uuid;

use crate::actors::{Play, read_on};
use crate::facts::{Fact, Outcome, TxRow};
use crate::kit::Memory;
use crate::looks::{Ending, Looks};
use crate::scene::Base;

/// What is wrong: nothing, when the order was safe. Where somebody read the feed, the rest of it is read
/// too, up to the end that is given back.
pub(crate) async fn check(play: &Play, looks: &Looks) -> (Vec<String>, Option<String>) {
    let mut wrong = Wrong::default();
    let end = match play.feed_from.is_some() {
        true => Some(check_feed(play, &mut wrong).await),
        false => None,
    };
    let endings = looks.endings(&play.scene.lanes()).await;
    let facts = play.facts.all();
    for memory in play.scene.memories() {
        check_rows(
            memory,
            &endings[&memory.lease_grant.lane],
            &facts,
            &mut wrong,
        );
    }
    let (contested, ending) = (&play.scene.contested, &endings[&play.scene.lane()]);
    check_hands(play, ending, &facts, &mut wrong);
    check_views(contested, ending, &facts, &mut wrong);
    check_queue(ending, &facts, &mut wrong);
    for fact in facts.iter() {
        if let Fact::Refused { what, why } = fact {
            wrong.note(false, || format!("{what} was refused: {why}"));
        }
    }
    (wrong.0, end)
}

#[derive(Default)]
pub(crate) struct Wrong(pub(crate) Vec<String>);

impl Wrong {
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
fn check_rows(memory: &Memory, ending: &Ending, facts: &[Fact], wrong: &mut Wrong) {
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
            wrong.note(found == is_there, || {
                format!("{outcome:?}, and whether tx {} is there: {found}", tx.id)
            });
        }
        for attempt in &batch.writes.attempts {
            let found = ending.attempts.contains(attempt.hash.as_slice());
            wrong.note(found == is_there, || {
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
    wrong.note(cursor.last_batch == batches, || {
        format!("{} batches counted, {batches} applied", cursor.last_batch)
    });
    let told: usize = applied.iter().map(|batch| batch.writes.events.len()).sum();
    let events = count(memory.event_seq) + count(told as u64);
    wrong.note(cursor.event_seq == events, || {
        format!(
            "event {} is the last, {events} were written",
            cursor.event_seq
        )
    });
    let mut next = 1;
    for (first, length) in &ending.events {
        wrong.note(*first == next, || {
            format!("event {first} follows on {}", next - 1)
        });
        next = first + i64::from(*length);
    }
    wrong.note(next == events + 1, || {
        format!("events end before {next}, not with {events}")
    });
    let nonces: Vec<i64> = ending.txs.iter().filter_map(|tx| tx.nonce).collect();
    let dealt: BTreeSet<i64> = nonces.iter().copied().collect();
    let all: BTreeSet<i64> = (0..cursor.next_nonce).collect();
    wrong.note(nonces.len() == dealt.len() && dealt == all, || {
        format!("nonces {nonces:?} below {}", cursor.next_nonce)
    });
    wrong.note(cursor.is_busy, || {
        "open nonces, and not marked as busy".into()
    });
}

/// Every right to the contested lane, in the order of granting, and who had it.
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

/// The token rises by one with every change of hands, and both rows tell the same.
fn check_hands(play: &Play, ending: &Ending, facts: &[Fact], wrong: &mut Wrong) {
    let lease_grants = lease_grants(&play.scene.contested, facts);
    for pair in lease_grants.windows(2) {
        let ((before, old), (after, new)) = (pair[0], pair[1]);
        let due = if before == after {
            old.token
        } else {
            old.token.next()
        };
        wrong.note(new.token == due, || {
            format!(
                "{after} has token {} after {before} had {}",
                new.token, old.token
            )
        });
    }
    let (owner, last) = lease_grants.last().expect("a had it");
    let token = i64::try_from(last.token.0).expect("a handful");
    let lease = &ending.lease;
    wrong.note((lease.token, ending.cursor.token) == (token, token), || {
        let rows = (lease.token, ending.cursor.token);
        format!("token {token} was granted last, and the rows have {rows:?}")
    });
    wrong.note(lease.owner == *owner, || {
        format!(
            "{owner} had the last grant, and {} has the lease",
            lease.owner
        )
    });
    let is_told = |what: &dyn Fn(&Fact) -> bool| facts.iter().any(what);
    let was_released = is_told(&|fact| matches!(fact, Fact::Released(true)));
    let was_renewed = is_told(&|fact| matches!(fact, Fact::Renewed(true)));
    let is_taken = lease_grants.iter().any(|(node, _)| *node != "a");
    if !is_taken {
        wrong.note((lease.expires_at == 0) == was_released, || {
            "given back and running, or the other way round".into()
        });
        wrong.note(!was_renewed || was_released || lease.expires_at > 1, || {
            "renewed, and over".into()
        });
    }
    if play.scene.base == Base::Live && !was_released {
        wrong.note(!is_taken, || "a lease that runs was taken".into());
    }
}

/// Nothing of an earlier right is there that a later one did not find when it loaded the lane.
pub(crate) fn check_views(memory: &Memory, ending: &Ending, facts: &[Fact], wrong: &mut Wrong) {
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
                // What was queued meanwhile is nobody's, and has a wake row.
                let of_keepers = |tx: &&TxRow| tx.token > 0 && tx.token < token;
                for tx in ending.txs.iter().filter(of_keepers) {
                    wrong.note(rows.contains(tx), || {
                        format!(
                            "token {token} did not find what is there under an older one: {tx:?}"
                        )
                    });
                }
                let rank = lease_grants.iter().position(|other| other == lease_grant);
                if let (Some(rank), Some(image)) = (rank, image) {
                    let landed = landed_under(&lease_grants[..rank]);
                    wrong.note(image.batch_seq == landed, || {
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
                wrong.note(*found == landed, || {
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

/// Whoever waits for a nonce is woken one day, and every request has the tx that was answered.
fn check_queue(ending: &Ending, facts: &[Fact], wrong: &mut Wrong) {
    let waiting = ending.txs.iter().filter(|tx| tx.nonce.is_none());
    let waiting: BTreeSet<TxId> = waiting.map(|tx| tx.id).collect();
    wrong.note(waiting == ending.wakes, || {
        format!("{waiting:?} wait, and {:?} have wake rows", ending.wakes)
    });
    for fact in facts {
        if let Fact::Queued { request, tx } = fact {
            let found = ending
                .txs
                .iter()
                .find(|row| row.request == request.as_str());
            wrong.note(found.is_some_and(|row| row.id == *tx), || {
                format!("{request} was answered with {tx}, and is {found:?}")
            });
        }
    }
}

/// A reader that goes on to the end has been told every event once, in the order of its lane.
async fn check_feed(play: &Play, wrong: &mut Wrong) -> String {
    let fed = play.store.extend_feed(&play.scene.lanes()).await;
    fed.expect("extend_feed");
    // Where each reader stopped, and one who reads only now.
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
            let told = told(&facts, reader, memory.key);
            wrong.note(told == due, || {
                format!("events {due:?} were written, {told:?} were told")
            });
        }
    }
    end
}

/// What a reader was told of a lane.
fn told(facts: &[Fact], reader: Uuid, lane: LaneKey) -> Vec<u64> {
    let mut told = Vec::new();
    for fact in facts {
        match fact {
            Fact::Read {
                reader: by, events, ..
            } if *by == reader => {
                let of_lane = events.iter().filter(|(key, _)| *key == lane);
                told.extend(of_lane.map(|(_, seq)| *seq));
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
    told
}
