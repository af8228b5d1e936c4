//! The open reservations of a lane, and its free nonces.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::lane::reservations::ReservationRules;
use domain::{Holder, LaneKey, Nonce, Reservation, ReservationState, TxState};
use uuid::Uuid;

use super::{reservation_from_record, reservation_rules};
use crate::core::Core;
use crate::node::{LaneStatus, NodeHandle};
use crate::ports::{LaneReservations, Quorum, ReservationError, TxFilter};

/// The most reservations of one list.
const LISTED_MAX: usize = 1_000;
/// Rows of one page, and how many pages are read.
const PAGE: usize = 500;
const PAGES_MAX: usize = 8;
/// How long a node that does not keep the lane waits for its chain: the read takes a place of others.
const QUERY_MAX: Duration = Duration::from_secs(2);

impl NodeHandle {
    /// The open reservations of a lane, as the store has them, and its free nonces.
    pub async fn list_reservations(
        &self,
        lane: LaneKey,
    ) -> Result<LaneReservations, ReservationError> {
        let rules = reservation_rules(&self.core, lane)?;
        let mut has_more = false;
        let mut held = Vec::new();
        for state in [TxState::Allocated, TxState::Tracking, TxState::Stuck] {
            let (found, is_truncated) = open_reservations(&self.core, lane, state, rules).await?;
            held.extend(found);
            has_more |= is_truncated;
        }
        let status = self.lane(lane).await?;
        let next_nonce = status
            .as_ref()
            .map_or(Nonce(0), |status| status.record.next_nonce);
        let mut open = match status {
            Some(status) if !has_more => free_nonces(&self.core, &status, &held).await,
            Some(_) | None => Vec::new(), // a nonce that is not listed may be held
        };
        open.extend(held); // also those reported as used, until the chain shows it
        open.sort_by_key(|reservation| reservation.nonce);
        has_more |= open.len() > LISTED_MAX;
        open.truncate(LISTED_MAX);
        Ok(LaneReservations {
            next_nonce,
            open,
            has_more,
        })
    }
}

/// Nonces below the cursor that no reservation holds and that the chain has not seen: they are reserved next. The lane's
/// keeper knows them; another node queries the chain, as one of the reads of customers, of which only so many are made at
/// once. None where it does not answer.
async fn free_nonces(core: &Core, status: &LaneStatus, held: &[Reservation]) -> Vec<Reservation> {
    let lane = status.record.key;
    let held: BTreeSet<Nonce> = held.iter().map(|one| one.nonce).collect();
    let free = match core.leases.holds(lane) {
        true => status.gaps.clone(),
        false => query_unused(core, lane, status.record.next_nonce).await,
    };
    let free = free.into_iter().filter(|nonce| !held.contains(nonce));
    let now = core.ports.clock.now();
    let free_nonce = |nonce| Reservation {
        lane,
        nonce,
        holder: Holder(Uuid::nil()),
        state: ReservationState::Recyclable,
        tx_hash: None,
        was_replaced: false,
        expires_at: now,
        reason: None,
    };
    free.take(LISTED_MAX.saturating_add(1))
        .map(free_nonce)
        .collect()
}

/// The nonces below the cursor that the chain has not seen, up to a bound.
async fn query_unused(core: &Core, lane: LaneKey, next: Nonce) -> Vec<Nonce> {
    if next == Nonce(0) {
        return Vec::new(); // never used: its cursor means nothing
    }
    let state = core.chain(lane.chain_id);
    let rule = state.rules.lane.nonce.chain_query;
    let query = async {
        let nonces = state.chain.account_nonces(lane.signer, rule, Quorum::One);
        tokio::select! {
            biased;
            nonces = nonces => Ok(nonces.ok()),
            () = core.ports.clock.sleep(QUERY_MAX) => Ok(None),
        }
    };
    let Ok(Some(nonces)) = core.customers.read(query).await else {
        return Vec::new();
    };
    let used = nonces.first.latest.max(nonces.first.pending);
    let most = PAGE.saturating_mul(PAGES_MAX);
    (used.0..next.0).take(most).map(Nonce).collect()
}

/// Reads a lane's open reservations, newest first, up to a bound. Returns whether there are more.
async fn open_reservations(
    core: &Core,
    lane: LaneKey,
    state: TxState,
    rules: ReservationRules,
) -> Result<(Vec<Reservation>, bool), ReservationError> {
    let mut filter = TxFilter {
        chain_id: Some(lane.chain_id),
        signer: Some(lane.signer),
        state: Some(state),
        after: None,
        limit: PAGE,
    };
    let customers = &core.customers;
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = customers.read(customers.store.txs(&filter)).await?;
        let records = page.txs.iter();
        found.extend(records.filter_map(|record| reservation_from_record(record, None, rules)));
        if page.next.is_none() || found.len() >= LISTED_MAX {
            return Ok((found, page.next.is_some()));
        }
        filter.after = page.next;
    }
    Ok((found, true))
}
