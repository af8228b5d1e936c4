//! Everything that is ever read from a store, through its port, and shown as callers see it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use domain::{GrantId, Incarnation, LeaseGrant, NodeName, Nonce, RequestId, TxId};
use engine::ports::{
    AcquireOutcome, EventFilter, EventPage, LeaseRequest, Store as _, StoreError, TxFilter,
    TxRecord,
};
use store::sqlite::SqliteStore;
use uuid::Uuid;

use super::LANE;

/// How deep finals are watched.
const WATCH_DEPTH: u64 = 64;
/// Events or txs of one page.
const PAGE: usize = 100;

pub(super) struct Reading {
    store: Arc<SqliteStore>,
    ids: Vec<TxId>,
    lease_grant: LeaseGrant,
    lease_request: LeaseRequest,
}

impl Reading {
    /// Takes the lane, so that it may be loaded.
    pub(super) async fn new(store: Arc<SqliteStore>, ids: Vec<TxId>) -> Self {
        let lease_request = LeaseRequest {
            node: NodeName("reader".into()),
            incarnation: Incarnation(Uuid::from_u128(1)),
            duration: Duration::from_hours(24),
            skew: Duration::ZERO,
            alive: Vec::new(),
            silent: Vec::new(),
        };
        let grant = GrantId(Uuid::from_u128(2));
        let answers = store.acquire(&lease_request, &[(LANE, grant)]).await;
        let answers = answers.expect("the store answers");
        let Some(AcquireOutcome::Granted { lease_grant, .. }) = answers.into_iter().next() else {
            panic!("a lane that was given back is free");
        };
        Self {
            store,
            ids,
            lease_grant,
            lease_request,
        }
    }

    /// Reads everything. What cannot be decoded is an error of the store, never a panic.
    pub(super) async fn read_all(&self, cursor: Option<String>) {
        self.read_feed(cursor).await;
        let store = &self.store;
        for id in &self.ids {
            show_tx(&store.tx(*id).await);
            match store.tx_events(*id).await {
                Ok(Some(events)) => events
                    .iter()
                    .for_each(|event| json(&api_types::Event::from(event))),
                other => show(&other),
            }
        }
        match store
            .txs(&TxFilter {
                limit: PAGE,
                ..TxFilter::default()
            })
            .await
        {
            Ok(page) => page
                .txs
                .iter()
                .for_each(|tx| json(&api_types::Tx::from(tx))),
            Err(error) => show(&error),
        }
        show(&store.lanes(&[LANE]).await);
        show(&store.load(LANE, self.lease_grant, WATCH_DEPTH).await);
        show(
            &store
                .load_backlog(self.lease_grant.lane, Nonce(0), PAGE)
                .await,
        );
        show(&store.load_queued(self.lease_grant.lane, PAGE).await);
        let request = RequestId::parse("request-1").expect("a good id");
        show_tx(&store.tx_by_request(LANE, &request).await);
        show(&store.find_requests(&[(LANE, request)]).await);
        show(&store.lanes_with_work(&self.lease_request).await);
        show(&store.unwatched_lanes(&self.lease_request, None, PAGE).await);
        show(&store.members().await);
    }

    async fn read_feed(&self, after: Option<String>) {
        let filter = EventFilter {
            after,
            limit: PAGE,
            ..EventFilter::default()
        };
        let page: Result<EventPage, StoreError> = self.store.events(&filter).await;
        match page {
            Ok(page) => page
                .events
                .iter()
                .for_each(|event| json(&api_types::Event::from(event))),
            Err(error) => show(&error),
        }
    }
}

fn show_tx(found: &Result<Option<TxRecord>, StoreError>) {
    match found {
        Ok(Some(record)) => json(&api_types::Tx::from(record)),
        other => show(other),
    }
}

fn json(view: &impl serde::Serialize) {
    let text = serde_json::to_string(view).expect("the public views write texts and numbers");
    std::hint::black_box(text);
}

fn show(what: &impl Debug) {
    std::hint::black_box(format!("{what:?}"));
}
