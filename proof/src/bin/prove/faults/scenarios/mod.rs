//! The scenarios, one per fault. Each verifies that its fault was effective, and ends with the audit.

mod endpoints;
mod foreign;
mod frozen;
mod pool;
mod rejections;
mod sends;
mod unreachable;
mod views;

use std::time::Duration;

use proof::Outcome;
use proof::audit::AuditCounts;
use proof::network::NodeKind;
use serde_json::Value;

/// The parameters of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) fault: Fault,
    pub(crate) node_kind: NodeKind,
    /// Fewer payments, for a quick run.
    pub(crate) is_short: bool,
}

pub(crate) struct ScenarioResult {
    pub(crate) counted: AuditCounts,
    /// The evidence that the fault was effective.
    pub(crate) facts: Value,
}

impl Run {
    /// For logs and reports.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.fault.letter(), self.node_kind.name())
    }

    /// The number of payments, reduced in a short run and on a slow node.
    pub(crate) fn size(&self, full: usize) -> usize {
        if self.is_short || self.is_slow() {
            full / 3
        } else {
            full
        }
    }

    /// The pause of a client between two payments.
    pub(crate) fn rest(&self, millis: u64) -> Duration {
        Duration::from_millis(if self.is_slow() { 8 * millis } else { millis })
    }

    /// Ganache forgets transactions that arrive while it mines: they and all later ones stay queued forever, and
    /// each must be sent again when it is next. That is one per block, so it gets fewer payments.
    fn is_slow(&self) -> bool {
        self.node_kind == NodeKind::GANACHE
    }

    pub(crate) async fn run(&self) -> Outcome<ScenarioResult> {
        // Boxed, because each future is large and only one runs.
        match self.fault {
            Fault::LostAnswers => Box::pin(sends::lost_answers(self)).await,
            Fault::PoolForgotten => Box::pin(pool::forgotten(self)).await,
            Fault::Dropped => Box::pin(pool::dropped(self)).await,
            Fault::ForeignBefore => Box::pin(foreign::consumed_before_send(self)).await,
            Fault::ForeignAfter => Box::pin(foreign::outbid_after_send(self)).await,
            Fault::OldNonce => Box::pin(views::old_nonce(self)).await,
            Fault::ReceiptGone => Box::pin(views::receipt_gone(self)).await,
            Fault::Storms => Box::pin(sends::storms(self)).await,
            Fault::DeadAndLagging => Box::pin(endpoints::dead_and_lagging(self)).await,
            Fault::Rejection => Box::pin(rejections::in_the_middle(self)).await,
            Fault::RejectedAndTaken => Box::pin(rejections::and_taken(self)).await,
            Fault::OtherChain => Box::pin(endpoints::other_chain(self)).await,
            Fault::ForeignPending => Box::pin(foreign::pending_at_next_nonce(self)).await,
            Fault::FrozenKeeper => Box::pin(frozen::keeper(self)).await,
            Fault::UnreachableEndpoints => Box::pin(unreachable::keeper(self)).await,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    LostAnswers,
    PoolForgotten,
    Dropped,
    ForeignBefore,
    ForeignAfter,
    OldNonce,
    ReceiptGone,
    Storms,
    DeadAndLagging,
    Rejection,
    RejectedAndTaken,
    OtherChain,
    ForeignPending,
    FrozenKeeper,
    UnreachableEndpoints,
}

impl Fault {
    pub(crate) const ALL: [Self; 15] = [
        Self::LostAnswers,
        Self::PoolForgotten,
        Self::Dropped,
        Self::ForeignBefore,
        Self::ForeignAfter,
        Self::OldNonce,
        Self::ReceiptGone,
        Self::Storms,
        Self::DeadAndLagging,
        Self::Rejection,
        Self::RejectedAndTaken,
        Self::OtherChain,
        Self::ForeignPending,
        Self::FrozenKeeper,
        Self::UnreachableEndpoints,
    ];

    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::LostAnswers => "a",
            Self::PoolForgotten => "b",
            Self::Dropped => "c",
            Self::ForeignBefore => "d",
            Self::ForeignAfter => "e",
            Self::OldNonce => "f",
            Self::ReceiptGone => "g",
            Self::Storms => "h",
            Self::DeadAndLagging => "i",
            Self::Rejection => "j",
            Self::RejectedAndTaken => "k",
            Self::OtherChain => "l",
            Self::ForeignPending => "m",
            Self::FrozenKeeper => "n",
            Self::UnreachableEndpoints => "o",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::LostAnswers => "30 % of the answers to sends are lost",
            Self::PoolForgotten => "the node restarts and forgets its pool",
            Self::Dropped => "transactions are dropped from the pool",
            Self::ForeignBefore => "nonces are consumed by others before ours are out",
            Self::ForeignAfter => "nonces are consumed by others after ours are out",
            Self::OldNonce => "the node answers with a nonce of ten blocks ago",
            Self::ReceiptGone => "receipts are there, then gone, then there",
            Self::Storms => "429 and 5xx storms",
            Self::DeadAndLagging => "of three endpoints one is dead, one 20 blocks behind",
            Self::Rejection => "a deterministic rejection amid 100 pipelined txs",
            Self::RejectedAndTaken => "one endpoint rejects the bytes that another has taken",
            Self::OtherChain => "an endpoint of another chain",
            Self::ForeignPending => "a foreign transaction is pending at our next nonce",
            Self::FrozenKeeper => "the keeper is frozen between claim and send",
            Self::UnreachableEndpoints => {
                "the keeper reaches none of its endpoints, the other node does"
            }
        }
    }

    /// Why a kind of node is not capable of this fault; `None` if it is.
    pub(crate) fn impossible_on(self, node_kind: NodeKind) -> Option<&'static str> {
        match (self, node_kind) {
            (Self::PoolForgotten, NodeKind::HARDHAT) => {
                Some("hardhat keeps no blocks over a restart")
            }
            (Self::PoolForgotten, NodeKind::Devchain) => {
                Some("the dev chain's restarts are in 02-2-kill-nine")
            }
            (Self::Dropped, NodeKind::GANACHE) => Some("ganache cannot drop one transaction"),
            _ => None,
        }
    }
}
