//! Scheme `lane`: the lane's keeper allocates and reserves nonces under its lease and fencing token.
//!
//! A reservation is a tx of its lane whose bytes are made outside of Lanekeeper, so the lane's commit gate protects it
//! like any other tx. Every node accepts calls and forwards them to the keeper. The keeper itself handles expiry, receipts and
//! reorgs, so this scheme leaves nothing to the sweep. A takeover starts the expiry of open reservations again. It works
//! on every store and needs neither Redis nor the nonce tables.

use async_trait::async_trait;
use domain::lane::reservations::ReservationTerms;
use domain::{LaneKey, Mark, Reservation};
use engine::node::NodeHandle;
use engine::ports::LaneReservations;
use engine::reservations::MarkRequest;

use super::{
    ConditionalVerdict, ReservationKey, ReserveRequest, Scheme, SchemeKind, WatchedReservation,
};
use crate::Result;

/// Reserves nonces through a node of the cluster; any node works.
pub struct LaneScheme {
    node: NodeHandle,
}

impl LaneScheme {
    /// Uses this node, which forwards to the lane's keeper.
    #[must_use]
    pub fn new(node: NodeHandle) -> Self {
        Self { node }
    }
}

#[async_trait]
impl Scheme for LaneScheme {
    fn kind(&self) -> SchemeKind {
        SchemeKind::Lane
    }

    async fn allocate(&self, lane: LaneKey, request: ReserveRequest) -> Result<Reservation> {
        let terms = ReservationTerms {
            timeout: request.timeout,
            at_least: request.at_least,
        };
        self.node.reserve_nonce(lane, request.holder, terms).await
    }

    async fn mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation> {
        let call = MarkRequest {
            lane: key.lane,
            nonce: key.nonce,
            holder: key.holder,
            mark,
        };
        self.node.mark(call).await
    }

    async fn find_reservation(&self, key: ReservationKey) -> Result<Option<Reservation>> {
        self.node
            .reservation_of(key.lane, key.holder, key.nonce)
            .await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations> {
        self.node.list_reservations(lane).await
    }

    async fn list_watched(&self, _limit: usize) -> Result<Vec<WatchedReservation>> {
        Ok(Vec::new())
    }

    async fn list_overdue(&self, _limit: usize) -> Result<Vec<WatchedReservation>> {
        Ok(Vec::new())
    }

    async fn apply_verdicts(&self, _settlements: &[ConditionalVerdict]) -> Result<()> {
        Ok(())
    }

    /// The store has everything already.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
