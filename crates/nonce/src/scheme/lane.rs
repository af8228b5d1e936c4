//! Scheme 4: the lane's keeper issues and reserves, under its lease and fence.
//!
//! A lent nonce is a tx of its lane whose bytes somebody else makes: what protects a tx protects it. The lane
//! itself looks after time-outs, receipts and forks, so there is nothing to sweep here.

use async_trait::async_trait;
use domain::lane::lend::Loan;
use domain::{Holder, LaneKey, Mark, Nonce, Reservation};
use engine::lending::MarkCall;
use engine::node::NodeHandle;
use engine::ports::{LendError, Lent};

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

    async fn allocate(&self, lane: LaneKey, borrow: Borrow) -> Result<Reservation, LendError> {
        let loan = Loan {
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
    ) -> Result<Reservation, LendError> {
        let call = MarkCall {
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
    ) -> Result<Option<Reservation>, LendError> {
        self.node.lent_to(lane, holder, nonce).await
    }

    async fn lent(&self, lane: LaneKey) -> Result<Lent, LendError> {
        self.node.lent(lane).await
    }

    async fn to_watch(&self, _limit: usize) -> Result<Vec<Watched>, LendError> {
        Ok(Vec::new())
    }

    async fn settle(&self, _settlements: &[Settlement]) -> Result<(), LendError> {
        Ok(())
    }

    /// Nothing is in this process that the store does not have.
    async fn close(&self) -> Result<(), LendError> {
        Ok(())
    }
}
