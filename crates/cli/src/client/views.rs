//! The parts of the node's answers that are shown to people. `--json` prints the answer unchanged.

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TxView {
    pub tx_id: String,
    pub chain_id: u64,
    pub signer: String,
    pub request_id: String,
    pub nonce: Option<u64>,
    pub state: String,
    pub sub_state: Option<String>,
    pub reason: Option<String>,
    pub waiting_for: Option<String>,
    pub tx_hash: Option<String>,
    pub payload: PayloadView,
    pub attempts: Vec<AttemptView>,
    pub receipt: Option<ReceiptView>,
    pub confirmations: Vec<HeaderView>,
    pub created_at: String,
    pub confirmed_at: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PayloadView {
    pub to: Option<String>,
    pub value: String,
    pub data: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptView {
    pub tx_hash: String,
    pub kind: String,
    pub first_sent_at: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptView {
    pub block_number: u64,
    pub block_hash: String,
    pub status: String,
    pub gas_used: serde_json::Value,
    pub revert_reason: Option<String>,
}

/// The block of a tx, or one of its descendants.
#[derive(Clone, Debug, Deserialize)]
pub struct HeaderView {
    pub number: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneView {
    pub chain_id: u64,
    pub signer: String,
    pub keeper: Option<KeeperView>,
    pub next_nonce: u64,
    pub chain_nonce: Option<ChainNonceView>,
    pub in_flight: u64,
    pub queued: u64,
    pub gaps: Vec<u64>,
    pub paused: bool,
    pub waiting_for: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeeperView {
    pub node: String,
    pub token: u64,
    pub expires_at: String,
}

/// A node of the cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberView {
    pub node: String,
    pub advertise: Option<String>,
    pub started_at: String,
    pub seen_at: String,
    pub draining: bool,
    #[serde(default)]
    pub this_node: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ChainNonceView {
    pub latest: u64,
    pub pending: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    pub r#type: String,
    pub signer: String,
    pub tx_id: Option<String>,
    pub at: String,
    pub data: serde_json::Value,
}

impl TxView {
    /// Whether nothing more is to be waited for.
    pub fn is_settled(&self) -> bool {
        matches!(self.state.as_str(), "CONFIRMED" | "FAILED_FINAL" | "STUCK")
    }
}
