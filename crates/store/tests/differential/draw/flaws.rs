//! One thing wrong with a batch that was right, or one that is only odd: its author was deposed, or
//! remembers wrongly. A flaw that finds nothing to spoil leaves the batch as it is.

use domain::{Attempt, B256, Nonce, Tx, TxId};
use engine::ports::LaneBatch;
use sim::rng::Rng;

use crate::model::{Lane, Model};
use crate::universe::{LANES, NO_LANE};

/// Given new ids, the lanes as they are before the commit, and the place of the batch's own. (What the
/// commit itself writes in another lane is not contested: see [`crate::masks`].)
type Flaw = fn(&Rng, &mut Model, &Model, usize, &mut LaneBatch) -> Option<()>;

const FLAWS: [Flaw; 32] = [
    // The fence.
    |_, _, _, _, batch| {
        batch.lease_grant.token = batch.lease_grant.token.next();
        Some(())
    },
    |_, names, _, _, batch| {
        batch.lease_grant.grant = names.grant();
        Some(())
    },
    |rng, _, before, place, batch| {
        let past = &before.lanes[place].past;
        (!past.is_empty()).then(|| batch.lease_grant = *rng.pick(past))
    },
    |_, _, _, _, batch| {
        batch.lease_grant.lane = NO_LANE;
        Some(())
    },
    |_, _, _, _, batch| {
        batch.batch_seq_before = batch.batch_seq_before.checked_sub(1)?;
        Some(())
    },
    |_, _, _, _, batch| {
        batch.batch_seq_before += 1;
        Some(())
    },
    |_, _, _, _, batch| renumber(batch, batch.event_seq_before + 1),
    |_, _, _, _, batch| renumber(batch, batch.event_seq_before.checked_sub(1)?),
    // Keys and nonces.
    |rng, _, before, place, batch| {
        let taken = any_tx(rng, &before.lanes[place])?
            .request
            .request_id
            .clone();
        batch.writes.inserts.first_mut()?.request.request_id = taken;
        Some(())
    },
    |_, _, _, _, batch| {
        let [first, .., last] = &mut batch.writes.inserts[..] else {
            return None;
        };
        last.request.request_id = first.request.request_id.clone();
        Some(())
    },
    |rng, _, before, place, batch| {
        let taken = any_nonce(rng, &before.lanes[place], batch)?;
        allocate_nonce(rng, batch, taken)
    },
    |rng, _, _, _, batch| {
        let nonce = batch.writes.inserts.iter().find_map(|tx| tx.nonce)?;
        allocate_nonce(rng, batch, nonce)
    },
    // Two txs change places, as the lane is when this batch comes.
    |rng, now, _, place, batch| swap(rng, &now.lanes[place], batch),
    // Rows of txs.
    |rng, _, before, place, batch| {
        batch.writes.inserts.first_mut()?.id = any_tx(rng, &before.lanes[place])?.id;
        Some(())
    },
    |rng, _, before, place, batch| {
        batch.writes.inserts.first_mut()?.id = neighbours_tx(rng, before, place)?;
        Some(())
    },
    |rng, _, _, _, batch| {
        let again = written(rng, batch)?.clone();
        batch.writes.updates.push(Tx {
            nonce: None,
            ..again
        });
        Some(())
    },
    |rng, names, _, _, batch| {
        let id = names.tx_id(rng);
        batch.writes.updates.first_mut()?.id = id;
        Some(())
    },
    |rng, _, before, place, batch| {
        let id = neighbours_tx(rng, before, place)?;
        batch.writes.updates.first_mut()?.id = id;
        Some(())
    },
    // An event that does not exist.
    |rng, _, _, _, batch| {
        let seq = batch.event_seq_before + 50;
        written(rng, batch)?.history.event_seqs.push(seq);
        Some(())
    },
    // Attempts.
    |rng, _, before, place, batch| {
        let (hash, _) = any_attempt(rng, &before.lanes[place])?;
        batch.writes.attempts.first_mut()?.hash = hash;
        Some(())
    },
    |rng, _, before, place, batch| {
        let (hash, _) = any_attempt(rng, neighbour(rng, before, place))?;
        batch.writes.attempts.first_mut()?.hash = hash;
        Some(())
    },
    |_, _, _, _, batch| {
        let again: Attempt = batch.writes.attempts.first()?.clone();
        batch.writes.attempts.push(again);
        Some(())
    },
    |rng, names, _, _, batch| {
        batch.writes.attempts.first_mut()?.tx_id = names.tx_id(rng);
        Some(())
    },
    |rng, _, before, place, batch| {
        let id = neighbours_tx(rng, before, place)?;
        batch.writes.attempts.first_mut()?.tx_id = id;
        Some(())
    },
    |_, names, _, _, batch| {
        let hash = names.hash();
        batch.writes.first_sent.push((hash, batch.at));
        Some(())
    },
    |rng, _, before, place, batch| {
        let (hash, _) = any_attempt(rng, neighbour(rng, before, place))?;
        batch.writes.first_sent.push((hash, batch.at));
        Some(())
    },
    // A second yes of a node, later: the first counts.
    |_, _, _, _, batch| {
        let (hash, at) = *batch.writes.first_sent.first()?;
        let later = domain::Timestamp(at.0 + 5);
        batch.writes.first_sent.push((hash, later));
        Some(())
    },
    // Events and the cursor.
    |_, _, _, _, batch| {
        batch.writes.events.last_mut()?.seq += 1;
        Some(())
    },
    |_, _, before, place, batch| {
        let before = before.lanes[place].next_nonce;
        batch.next_nonce = Nonce(before.0.checked_sub(1)?);
        Some(())
    },
    // Wake rows.
    |rng, names, before, place, batch| {
        let id = match rng.below(3) {
            0 => any_tx(rng, &before.lanes[place])?.id,
            1 => neighbours_tx(rng, before, place)?,
            _ => names.tx_id(rng),
        };
        batch.writes.queued_added.push(id);
        Some(())
    },
    |rng, _, before, place, batch| {
        let id = match rng.below(2) {
            0 => any_tx(rng, &before.lanes[place])?.id,
            _ => neighbours_tx(rng, before, place)?,
        };
        batch.writes.queued_removed.push(id);
        Some(())
    },
    // Taken out and put back.
    |_, _, before, place, batch| {
        let id = *before.lanes[place].queue_rows.first()?;
        let writes = &mut batch.writes;
        if !writes.queued_removed.contains(&id) {
            writes.queued_removed.push(id);
        }
        writes.queued_added.push(id);
        Some(())
    },
];

/// Spoils a batch.
pub(super) fn spoil(
    rng: &Rng,
    names: &mut Model,
    before: &Model,
    place: usize,
    batch: &mut LaneBatch,
) {
    let flaw = rng.pick(&FLAWS);
    // Nothing to spoil there: then the batch stays right.
    flaw(rng, names, before, place, batch).unwrap_or_default();
}

/// Lets memory know of another number of events, and count on from there.
fn renumber(batch: &mut LaneBatch, before: u64) -> Option<()> {
    batch.event_seq_before = before;
    for (seq, event) in (before + 1..).zip(&mut batch.writes.events) {
        event.seq = seq;
    }
    Some(())
}

fn swap(rng: &Rng, lane: &Lane, batch: &mut LaneBatch) -> Option<()> {
    let (mut a, mut b) = two_with_nonces(rng, lane, batch)?;
    std::mem::swap(&mut a.nonce, &mut b.nonce);
    batch.writes.updates.extend([a, b]);
    Some(())
}

/// Two open txs that the batch leaves alone, without their attempts.
fn two_with_nonces(rng: &Rng, lane: &Lane, batch: &LaneBatch) -> Option<(Tx, Tx)> {
    let is_free = |tx: &&Tx| {
        let writes = &batch.writes;
        tx.is_open() && tx.nonce.is_some() && !writes.updates.iter().any(|other| other.id == tx.id)
    };
    let mut rows: Vec<&Tx> = lane.txs.values().filter(is_free).collect();
    if rows.len() < 2 {
        return None;
    }
    let first = usize::try_from(rng.below(rows.len() as u64)).expect("a place in it");
    let unsigned = |tx: &Tx| Tx {
        tx_hash: None,
        inclusion: None,
        counted: None,
        ..tx.clone()
    };
    let a = unsigned(rows.swap_remove(first));
    let b = unsigned(rng.pick::<&Tx>(&rows));
    Some((a, b))
}

/// Gives one of the rows that the batch writes a nonce, and its new attempts with it.
fn allocate_nonce(rng: &Rng, batch: &mut LaneBatch, nonce: Nonce) -> Option<()> {
    let tx = written(rng, batch)?;
    tx.nonce = Some(nonce);
    let id = tx.id;
    let attempts = batch.writes.attempts.iter_mut();
    for attempt in attempts.filter(|attempt| attempt.tx_id == id) {
        attempt.nonce = nonce;
    }
    Some(())
}

/// One of the rows that the batch writes.
fn written<'a>(rng: &Rng, batch: &'a mut LaneBatch) -> Option<&'a mut Tx> {
    let writes = &mut batch.writes;
    let rows = writes.inserts.iter_mut().chain(&mut writes.updates);
    let mut rows: Vec<&mut Tx> = rows.collect();
    if rows.is_empty() {
        return None;
    }
    let row = usize::try_from(rng.below(rows.len() as u64)).expect("a place in it");
    Some(rows.swap_remove(row))
}

fn any_tx<'a>(rng: &Rng, lane: &'a Lane) -> Option<&'a Tx> {
    let rows: Vec<&Tx> = lane.txs.values().collect();
    (!rows.is_empty()).then(|| *rng.pick(&rows))
}

fn any_nonce(rng: &Rng, lane: &Lane, batch: &LaneBatch) -> Option<Nonce> {
    // Of txs that stay where they are: see [`crate::masks`].
    let stays = |tx: &&Tx| batch.writes.updates.iter().all(|other| other.id != tx.id);
    let staying = lane.txs.values().filter(stays);
    let nonces: Vec<Nonce> = staying.filter_map(|tx| tx.nonce).collect();
    (!nonces.is_empty()).then(|| *rng.pick(&nonces))
}

fn any_attempt(rng: &Rng, lane: &Lane) -> Option<(B256, TxId)> {
    let attempts = lane.attempts.iter().map(|(hash, (id, _))| (*hash, *id));
    let attempts: Vec<(B256, TxId)> = attempts.collect();
    (!attempts.is_empty()).then(|| *rng.pick(&attempts))
}

fn neighbour<'a>(rng: &Rng, model: &'a Model, place: usize) -> &'a Lane {
    let by = usize::try_from(rng.between(1, LANES as u64 - 1)).expect("few lanes");
    &model.lanes[(place + by) % LANES]
}

fn neighbours_tx(rng: &Rng, model: &Model, place: usize) -> Option<TxId> {
    any_tx(rng, neighbour(rng, model, place)).map(|tx| tx.id)
}
