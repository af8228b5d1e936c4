//! The calls in a request's body.

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718 as _;
use alloy_primitives::{B256, Bytes, keccak256};
use serde_json::Value;

/// The method that sends a transaction.
pub(super) const SEND: &str = "eth_sendRawTransaction";
/// Methods whose first parameter is a transaction's hash.
const BY_HASH: &[&str] = &["eth_getTransactionReceipt", "eth_getTransactionByHash"];

/// One call, a batch, or a body that is not JSON-RPC and is passed to the node unchanged.
#[derive(Debug)]
pub(super) struct Message {
    calls: Vec<Call>,
    pub(super) is_batch: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Unchanged.
    pub(super) body: Value,
    pub(super) id: Value,
    pub(super) method: String,
    /// The transaction that it sends or queries.
    pub(super) hash: Option<B256>,
    /// The nonce that it sends.
    pub(super) nonce: Option<u64>,
}

impl Message {
    pub(super) fn parse(body: &[u8]) -> Self {
        let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
        // If a batch contains anything else, only the node itself can answer it correctly.
        let calls: Option<Vec<Call>> = match parsed.as_array() {
            Some(batch) => batch.iter().map(Call::from_json).collect(),
            None => Call::from_json(&parsed).map(|call| vec![call]),
        };
        Self {
            calls: calls.unwrap_or_default(),
            is_batch: parsed.is_array(),
        }
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }
}

impl Call {
    pub(super) fn from_json(body: &Value) -> Option<Self> {
        let method = body.get("method")?.as_str()?.to_owned();
        let first = body.get("params").and_then(|params| params.get(0));
        let raw = match method == SEND {
            true => first.and_then(|raw| raw.as_str()?.parse::<Bytes>().ok()),
            false => None,
        };
        let queried = match BY_HASH.contains(&method.as_str()) {
            true => first.and_then(|hash| hash.as_str()?.parse().ok()),
            false => None,
        };
        let envelope = raw
            .as_ref()
            .and_then(|raw| TxEnvelope::decode_2718(&mut raw.as_ref()).ok());
        Some(Self {
            body: body.clone(),
            id: body.get("id").cloned().unwrap_or_default(),
            method,
            hash: raw.map(keccak256).or(queried),
            nonce: envelope.map(|envelope| envelope.nonce()),
        })
    }

    /// `null` when it is missing.
    pub(super) fn param(&self, index: usize) -> &Value {
        &self.body["params"][index]
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::hex;
    use serde_json::json;

    use super::*;

    #[test]
    fn transactions_are_recognized_in_sends_and_queries() {
        // The worked example of EIP-155: nonce 9.
        let raw = "0xf86c098504a817c800825208943535353535353535353535353535353535353535880de0b6b3a76400008025a028ef61340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276a067cbe9d8997f761aecb703304b3800ccf555c9f3dc64214b297fb1966a3b6d83";
        let hash = keccak256(hex::decode(raw).unwrap());
        let batch = json!([
            { "id": 1, "method": SEND, "params": [raw] },
            { "id": "x", "method": "eth_getTransactionReceipt", "params": [hash] },
            { "id": 3, "method": "eth_getBlockByHash", "params": [hash, false] },
            { "id": 4, "method": SEND, "params": ["0x00"] },
        ]);
        let message = Message::parse(batch.to_string().as_bytes());
        assert!(message.is_batch);
        let seen: Vec<_> = message.calls().iter().map(|c| (c.hash, c.nonce)).collect();
        let zero = Some(keccak256([0]));
        assert_eq!(
            seen,
            [
                (Some(hash), Some(9)),
                (Some(hash), None),
                (None, None),
                (zero, None)
            ]
        );
        assert_eq!(message.calls()[1].id, json!("x"));
    }

    #[test]
    fn other_bodies_are_left_to_the_node() {
        for body in ["", "{", "7", "{}", "[7]", r#"[{"method":"a"},{}]"#] {
            assert!(Message::parse(body.as_bytes()).calls().is_empty(), "{body}");
        }
    }
}
