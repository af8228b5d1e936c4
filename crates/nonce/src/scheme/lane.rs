//! Scheme 4: the lane's keeper issues and reserves, under its lease and fence.
//!
//! A lent nonce is a tx of its lane whose bytes somebody else makes: what protects a tx protects it. The lane
//! itself looks after time-outs, receipts and forks, so there is nothing to sweep here.

use async_trait::async_trait;
use domain::lane::reserve::ReservationTerms;
use domain::{Holder, LaneKey, Mark, Nonce, Reservation};
use engine::node::NodeHandle;
use engine::ports::{LaneReservations, ReservationError};
use engine::reservations::MarkRequest;

use super::{Borrow, Scheme, SchemeKind, Settlement, Watched};

/// Lends through the nodes of a cluster; any of them will do.
pub struct LaneScheme {
    node: NodeHandle,
}

impl LaneScheme {
    /// Through this node, or whichever keeps the lane.
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

    async fn allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        let loan = ReservationTerms {
            timeout: borrow.timeout,
            at_least: borrow.at_least,
        };
        self.node.lend(lane, borrow.holder, loan).await
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        let call = MarkRequest {
            lane,
            nonce,
            holder,
            mark,
        };
        self.node.mark(call).await
    }

    async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError> {
        self.node.reservation_of(lane, holder, nonce).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.node.list_reservations(lane).await
    }

    async fn to_watch(&self, _limit: usize) -> Result<Vec<Watched>, ReservationError> {
        Ok(Vec::new())
    }

    async fn settle(&self, _settlements: &[Settlement]) -> Result<(), ReservationError> {
        Ok(())
    }

    /// Nothing is in this process that the store does not have.
    async fn close(&self) -> Result<(), ReservationError> {
        Ok(())
    }
}
