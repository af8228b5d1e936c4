//! Actors that commit: the keeper, and a node that becomes keeper to accept a request.

use domain::{EventKind, LaneId, LaneImage, Token, Writes};
use engine::ports::{LaneBatch, Store as _};
use store::postgres::sql::{Arguments, FENCE_HOLDS, GATE, Param};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::keeper::regrant;
use super::queue::queue_shared;
use super::takeover::{load, take};
use super::{Play, signed};
use crate::facts::{Fact, Outcome};
use crate::kit::{Memory, acceptance, event, new_grant, node, request_id};
use crate::scene::SHARED_REQUEST;
use crate::turns::Hand;

/// As the adapter and the shard do it: all in one call, which skips locked lanes. One by one when the
/// call was rolled back because of one row. A keeper whose lane was skipped has it granted anew, which waits,
/// and tries once more.
pub(super) async fn gate(play: &Play, hand: &Hand, node: &'static str, batches: &[LaneBatch]) {
    let arguments = Arguments::of(batches.iter());
    match applied(hand.write("gate", GATE, &arguments.params()).await) {
        Ok(applied) => {
            for batch in batches {
                match applied.contains(&batch.lease_grant.lane) {
                    true => record_fact(play, batch, Outcome::Applied),
                    false => resolve(play, hand, node, batch).await,
                }
            }
        }
        Err(error) if is_duplicate(&error) => {
            for batch in batches {
                gate_alone(play, hand, node, batch).await;
            }
        }
        Err(error) => play.facts.refused("gate", &error),
    }
}

async fn gate_alone(play: &Play, hand: &Hand, node: &'static str, batch: &LaneBatch) {
    let arguments = Arguments::of([batch].into_iter());
    let params = arguments.params();
    match applied(hand.write_in_one_turn("gate alone", GATE, &params).await) {
        Ok(applied) if applied.is_empty() => resolve(play, hand, node, batch).await,
        Ok(_) => record_fact(play, batch, Outcome::Applied),
        Err(error) if is_duplicate(&error) => record_fact(play, batch, Outcome::Conflict),
        Err(error) => play.facts.refused("gate alone", &error),
    }
}

/// A batch that was not taken: the lane is another's by now, or its row was locked.
async fn resolve(play: &Play, hand: &Hand, node: &'static str, batch: &LaneBatch) {
    if !is_still_ours(hand, batch).await {
        return record_fact(play, batch, Outcome::Fenced);
    }
    let grant = new_grant();
    let landed = regrant(play, hand, node, batch.lease_grant, grant, true).await;
    // More batches than memory knows of: the shard would read the lane again.
    if landed != Some(batch.batch_seq_before) {
        return record_fact(play, batch, Outcome::Fenced);
    }
    let mut again = batch.clone();
    again.lease_grant.grant = grant;
    let arguments = Arguments::of([&again].into_iter());
    match applied(hand.at_once(GATE, &arguments.params()).await) {
        Ok(applied) if applied.is_empty() => record_fact(play, &again, Outcome::Fenced),
        Ok(_) => record_fact(play, &again, Outcome::Applied),
        Err(error) if is_duplicate(&error) => record_fact(play, &again, Outcome::Conflict),
        Err(error) => play.facts.refused("gate again", &error),
    }
}

fn applied(answer: Result<Vec<Row>, Error>) -> Result<Vec<LaneId>, Error> {
    let lanes: Vec<i64> = answer?[0].try_get(0)?;
    Ok(lanes.into_iter().map(LaneId).collect())
}

/// As far as is committed, within the same turn.
async fn is_still_ours(hand: &Hand, batch: &LaneBatch) -> bool {
    let (lanes, grants) = (
        vec![batch.lease_grant.lane.0],
        vec![batch.lease_grant.grant.0],
    );
    let tokens = vec![signed(batch.lease_grant.token.0)];
    let batches = vec![signed(batch.batch_seq_before)];
    let events = vec![signed(batch.event_seq_before)];
    let params: [Param<'_>; 5] = [
        (&lanes, Type::INT8_ARRAY),
        (&tokens, Type::INT8_ARRAY),
        (&grants, Type::UUID_ARRAY),
        (&batches, Type::INT8_ARRAY),
        (&events, Type::INT8_ARRAY),
    ];
    let rows = hand.at_once(FENCE_HOLDS, &params).await;
    !rows.expect("a look").is_empty()
}

fn is_duplicate(error: &Error) -> bool {
    error.code() == Some(&SqlState::UNIQUE_VIOLATION)
}

fn record_fact(play: &Play, batch: &LaneBatch, outcome: Outcome) {
    let batch = Box::new(batch.clone());
    play.facts.record_fact(Fact::Gate { batch, outcome });
}

pub(super) async fn accept(play: &Play, hand: &Hand) {
    let scene = &play.scene;
    let loaded = match take(play, hand, "b", true).await {
        Some(lease_grant) => load(play, hand, lease_grant).await,
        None => None,
    };
    let mut batches = vec![
        scene
            .of_b
            .batch(acceptance("second", scene.of_b.next_nonce, Token(1))),
    ];
    match loaded {
        Some(image) => batches.push(acceptance_after(play, &image).await),
        None => queue_shared(play, hand).await,
    }
    gate(play, hand, "b", &batches).await;
}

/// The new keeper's batch for the shared request: a tx, unless another node has stored it already.
async fn acceptance_after(play: &Play, image: &LaneImage) -> LaneBatch {
    let memory = Memory {
        key: image.key,
        lease_grant: image.lease_grant,
        node: node("b").node,
        batch_seq: image.batch_seq,
        event_seq: image.event_seq,
        next_nonce: image.next_nonce,
    };
    let requested = [(image.key, request_id(SHARED_REQUEST))];
    let known = play
        .store
        .find_requests(&requested)
        .await
        .expect("find_requests");
    let received = event(
        &play.scene.sent,
        EventKind::TxFailed {
            reason: "b was here".into(),
        },
    );
    let writes = match known[0] {
        None => acceptance(SHARED_REQUEST, image.next_nonce, image.lease_grant.token),
        Some(_) => Writes {
            events: vec![received],
            ..Writes::default()
        },
    };
    memory.batch(writes)
}
