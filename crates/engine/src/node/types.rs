//! What goes into a node and what comes out: requests, acceptances, and the state of its parts.

use domain::lane::AccountNonces;
use domain::{ChainId, LaneKey, Nonce, Payload, RequestId, SubState, TxState};

use crate::ports::{LaneRecord, TxRecord};

/// The caller and its trace; kept when a request is forwarded to another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The name of the caller's key, where keys are used.
    pub caller: Option<String>,
    /// The caller's trace or request id.
    pub trace: Option<String>,
}

/// A request as it reaches the ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTx {
    /// The account and chain to send from.
    pub lane: LaneKey,
    /// The idempotency key.
    pub request_id: RequestId,
    /// What to send.
    pub payload: Payload,
    /// The gas limit that the first node estimated, for the node that it forwards the request to.
    pub estimated_gas: Option<u64>,
    /// The caller.
    pub origin: Origin,
}

/// A request that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedTx {
    /// The tx; with nonce and hash where they were assigned at once.
    pub record: TxRecord,
    /// Whether this request created it; `false` for a repeated request id.
    pub is_new: bool,
}

/// The progress of a tx that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitFor {
    /// Until it is durable.
    Accepted,
    /// Until an endpoint has accepted its bytes.
    Submitted,
    /// Until it is in a block.
    Mined,
    /// Until it is final.
    Confirmed,
}

/// A lane as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// The lane in the store.
    pub record: LaneRecord,
    /// The account's nonces as last queried, when this node keeps the lane.
    pub chain_nonces: Option<AccountNonces>,
    /// Nonces that the chain waits for and no tx holds, when this node keeps the lane.
    pub gaps: Vec<Nonce>,
    /// Why it makes no progress.
    pub waiting_for: Option<String>,
}

/// A chain's endpoints as people see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainStatus {
    /// Which chain.
    pub chain_id: ChainId,
    /// Height of the newest followed block.
    pub head: Option<u64>,
    /// The endpoints, and whether each answers.
    pub endpoints: Vec<(String, bool)>,
}

/// Whether a load balancer should send requests here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The store answers.
    pub store: Result<(), String>,
    /// Whether the node drains.
    pub draining: bool,
    /// Information only: does not decide.
    pub chains: Vec<ChainStatus>,
}

impl WaitFor {
    /// Whether a tx got this far, or cannot get further.
    pub(super) fn is_reached(self, record: &TxRecord) -> bool {
        let tx = &record.tx;
        if tx.state.is_terminal() || tx.state == TxState::Stuck {
            return true;
        }
        match self {
            Self::Accepted => true,
            Self::Submitted => {
                tx.inclusion.is_some() || matches!(tx.sub_state, Some(SubState::Submitted))
            }
            Self::Mined => tx.inclusion.is_some(),
            Self::Confirmed => false,
        }
    }
}
