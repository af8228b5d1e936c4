//! Actors that queue requests without being keeper.

use domain::TxId;
use engine::ports::QueuedRequest;
use store::postgres::sql::{Param, QUEUE};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{Play, key_columns, signed};
use crate::facts::Fact;
use crate::kit::{new_queued, request_id};
use crate::scene::SHARED_REQUEST;
use crate::turns::Hand;

pub(super) async fn queue(play: &Play, hand: &Hand) {
    let key = play.scene.contested.key;
    let requests = [SHARED_REQUEST, "alone"].map(|request| new_queued(key, request));
    queue_all(play, hand, &requests).await;
}

pub(super) async fn queue_shared(play: &Play, hand: &Hand) {
    let key = play.scene.contested.key;
    queue_all(play, hand, &[new_queued(key, SHARED_REQUEST)]).await;
}

async fn queue_all(play: &Play, hand: &Hand, requests: &[QueuedRequest]) {
    let columns = QueueColumns::of(requests);
    match hand.write("queue", QUEUE, &columns.params()).await {
        Ok(rows) => {
            for row in rows {
                let request = request_id(row.get::<_, String>(9));
                let tx = TxId(row.get(2));
                play.facts.record_fact(Fact::Queued { request, tx });
            }
        }
        Err(error) => play.facts.refused("queue", &error),
    }
}

/// The parameters of the queue: only what a plain transfer has.
struct QueueColumns {
    chains: Vec<i64>,
    signers: Vec<Vec<u8>>,
    created: Vec<i64>,
    gas: Vec<i64>,
    ids: Vec<Uuid>,
    requests: Vec<String>,
    fingerprints: Vec<Vec<u8>>,
    to: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
    data: Vec<Vec<u8>>,
    states: Vec<i16>,
    sub_states: Vec<i16>,
    event_seqs: Vec<Vec<u8>>,
    no_numbers: Vec<i16>,
    no_bytes: Vec<Vec<u8>>,
}

impl QueueColumns {
    fn of(requests: &[QueuedRequest]) -> Self {
        let (chains, signers) = key_columns(requests.iter().map(|queued| queued.lane));
        let all = || requests.iter().map(|queued| &queued.request);
        Self {
            chains,
            signers,
            created: requests.iter().map(|queued| signed(queued.at.0)).collect(),
            gas: all().map(|request| signed(request.gas)).collect(),
            ids: all().map(|request| request.id.0).collect(),
            requests: all()
                .map(|request| request.request_id.to_string())
                .collect(),
            fingerprints: all()
                .map(|request| request.fingerprint.0.to_vec())
                .collect(),
            to: all()
                .map(|request| request.payload.to.expect("a transfer").to_vec())
                .collect(),
            values: all().map(|_| vec![1]).collect(),
            data: all().map(|_| Vec::new()).collect(),
            states: all().map(|_| 0).collect(),
            sub_states: all().map(|_| 0).collect(),
            event_seqs: all().map(|_| Vec::new()).collect(),
            no_numbers: Vec::new(),
            no_bytes: Vec::new(),
        }
    }

    fn params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.chains, Type::INT8_ARRAY),
            (&self.signers, Type::BYTEA_ARRAY),
            (&self.created, Type::INT8_ARRAY),
            (&self.gas, Type::INT8_ARRAY),
            (&self.ids, Type::UUID_ARRAY),
            (&self.no_numbers, Type::INT2_ARRAY),
            (&self.requests, Type::TEXT_ARRAY),
            (&self.fingerprints, Type::BYTEA_ARRAY),
            (&self.to, Type::BYTEA_ARRAY),
            (&self.values, Type::BYTEA_ARRAY),
            (&self.no_bytes, Type::BYTEA_ARRAY),
            (&self.no_bytes, Type::BYTEA_ARRAY),
            (&self.no_bytes, Type::BYTEA_ARRAY),
            (&self.no_bytes, Type::BYTEA_ARRAY),
            (&self.data, Type::BYTEA_ARRAY),
            (&self.states, Type::INT2_ARRAY),
            (&self.sub_states, Type::INT2_ARRAY),
            (&self.event_seqs, Type::BYTEA_ARRAY),
        ]
    }
}
