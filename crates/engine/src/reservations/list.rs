//! The open reservations of a lane, and its free nonces.

use std::collections::BTreeSet;

use domain::lane::reservations::ReservationRules;
use domain::{Holder, LaneKey, Nonce, Reservation, ReservationState, TxState};
use uuid::Uuid;

use super::{reservation_from_record, reservation_rules};
use crate::core::Core;
use crate::node::NodeHandle;
use crate::ports::{LaneReservations, Quorum, ReservationError, TxFilter};

/// The most reservations of one list.
const LISTED_MAX: usize = 1_000;
/// Rows of one page, and how many pages are read.
const PAGE: usize = 500;
const PAGES_MAX: usize = 40;

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
        let next_nonce = status.map_or(Nonce(0), |status| status.record.next_nonce);
        let mut open = match has_more {
            true => Vec::new(), // a nonce that is not listed may be held
            false => self.free_nonces(lane, &held, next_nonce).await,
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

    /// Nonces below the cursor that no reservation holds and that the chain has not seen: they are reserved next. None
    /// where the chain does not answer.
    async fn free_nonces(
        &self,
        lane: LaneKey,
        held: &[Reservation],
        next: Nonce,
    ) -> Vec<Reservation> {
        if next == Nonce(0) {
            return Vec::new(); // never used: its cursor means nothing
        }
        let chain_state = self.core.chain(lane.chain_id);
        let nonces = chain_state.chain.account_nonces(
            lane.signer,
            chain_state.rules.lane.nonce.chain_query,
            Quorum::One,
        );
        let Ok(nonces) = nonces.await else {
            return Vec::new();
        };
        let used = nonces.first.latest.max(nonces.first.pending);
        let held: BTreeSet<u64> = held.iter().map(|one| one.nonce.0).collect();
        let free = (used.0..next.0).filter(|nonce| !held.contains(nonce));
        let now = self.core.ports.clock.now();
        let free_nonce = |nonce| Reservation {
            lane,
            nonce: Nonce(nonce),
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
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = core.ports.store.txs(&filter).await?;
        let records = page.txs.iter();
        found.extend(records.filter_map(|record| reservation_from_record(record, None, rules)));
        if page.next.is_none() || found.len() >= LISTED_MAX {
            return Ok((found, page.next.is_some()));
        }
        filter.after = page.next;
    }
    Ok((found, true))
}
