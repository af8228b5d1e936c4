//! The node's answers, as far as people are shown them. Programs get the JSON as it came.

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TxView {
    pub(crate) tx_id: String,
    pub(crate) chain_id: u64,
    pub(crate) signer: String,
    pub(crate) request_id: String,
    pub(crate) nonce: Option<u64>,
    pub(crate) state: String,
    pub(crate) sub_state: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) waiting_for: Option<String>,
    pub(crate) tx_hash: Option<String>,
    pub(crate) payload: PayloadView,
    pub(crate) attempts: Vec<AttemptView>,
    pub(crate) receipt: Option<ReceiptView>,
    pub(crate) confirmations: Vec<HeaderView>,
    pub(crate) created_at: String,
    pub(crate) confirmed_at: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PayloadView {
    pub(crate) to: Option<String>,
    pub(crate) value: String,
    pub(crate) data: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttemptView {
    pub(crate) tx_hash: String,
    pub(crate) kind: String,
    pub(crate) first_sent_at: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReceiptView {
    pub(crate) block_number: u64,
    pub(crate) block_hash: String,
    pub(crate) status: String,
    pub(crate) gas_used: serde_json::Value,
    pub(crate) revert_reason: Option<String>,
}

/// A block that stands on a tx's block, or is it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct HeaderView {
    pub(crate) number: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LaneView {
    pub(crate) chain_id: u64,
    pub(crate) signer: String,
    pub(crate) keeper: Option<KeeperView>,
    pub(crate) next_nonce: u64,
    pub(crate) chain_nonce: Option<ChainNonceView>,
    pub(crate) in_flight: u64,
    pub(crate) queued: u64,
    pub(crate) gaps: Vec<u64>,
    pub(crate) paused: bool,
    pub(crate) waiting_for: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeeperView {
    pub(crate) node: String,
    pub(crate) token: u64,
    pub(crate) expires_at: String,
}

/// A node of the cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemberView {
    pub(crate) node: String,
    pub(crate) advertise: Option<String>,
    pub(crate) started_at: String,
    pub(crate) seen_at: String,
    pub(crate) draining: bool,
    #[serde(default)]
    pub(crate) this_node: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ChainNonceView {
    pub(crate) latest: u64,
    pub(crate) pending: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventView {
    pub(crate) r#type: String,
    pub(crate) signer: String,
    pub(crate) tx_id: Option<String>,
    pub(crate) at: String,
    pub(crate) data: serde_json::Value,
}

impl TxView {
    /// Whether it has come so far that nothing more is to be waited for.
    pub(crate) fn is_reconciled(&self) -> bool {
        matches!(self.state.as_str(), "CONFIRMED" | "FAILED_FINAL" | "STUCK")
    }
}
