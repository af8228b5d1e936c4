//! A chain that costs nothing: it answers every question at once, never makes a block, and does not look
//! at what it is sent.
//!
//! The dev chain recovers a signature and writes to a disk for every transaction, on the same cores as
//! the store that is to be measured. Here nothing of the kind happens. Its height is fixed and far above
//! every block that [`super::filler`] invents, so that the nodes have nothing to follow.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{B256, Bytes, keccak256};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::server::be_quiet;
use crate::failure::Failure;
use crate::fleet::{Child, private_file, this_program};
use crate::open;
use crate::output::say;
use crate::signals::Signals;

/// Its EIP-155 id.
pub(crate) const CHAIN_ID: u64 = 31_337;
/// Its height, for ever.
const HEAD: u64 = 10_000_000;
/// What the blocks' hashes begin with; the rest is the number.
const HASH_PREFIX: [u8; 24] = [0xbe; 24];

/// What becomes of signed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sends {
    /// They are not answered while the run lasts: nothing but accepting is measured
    Held,
    /// They are taken at once: the node also writes down that they were sent
    Taken,
}

impl Sends {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Taken => "taken",
        }
    }
}

/// The hash of a block.
pub(crate) fn block_hash(number: u64) -> B256 {
    let mut hash = [0; 32];
    let (prefix, rest) = hash.split_at_mut(HASH_PREFIX.len());
    prefix.copy_from_slice(&HASH_PREFIX);
    rest.copy_from_slice(&number.to_be_bytes());
    B256::from(hash)
}

/// The nonces of accounts that are not at 0, by address in lower case.
pub(crate) type EndpointNonces = BTreeMap<String, u64>;

struct NullChain {
    nonces: EndpointNonces,
    sends: Sends,
}

/// Starts one in a process of its own, and says where it is.
pub(super) async fn start(
    folder: &Path,
    nonces: &EndpointNonces,
    sends: Sends,
) -> Result<(Child, String), Failure> {
    let file = folder.join("nonces.json");
    let text = serde_json::to_string(nonces).expect("numbers by address are JSON");
    private_file(&file, &text)?;
    let mut command = this_program()?;
    command.args(["bench", "null-chain", "--sends", sends.as_str()]);
    command.arg("--nonces").arg(&file);
    be_quiet(&mut command);
    let (child, ready) = Child::start(command, "the null chain", None).await?;
    let url = ready.get("chain").and_then(Value::as_str);
    let url = url.ok_or_else(|| Failure::Refused("the null chain has no address".into()))?;
    Ok((child, url.to_owned()))
}

/// Serves until standard input ends.
pub(crate) async fn serve(nonces: Option<&Path>, sends: Sends) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    signals.also_when_stdin_ends();
    let nonces = match nonces {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|e| Failure::refused(&path.display().to_string(), &e))?;
            serde_json::from_str(&text)
                .map_err(|e| Failure::refused(&path.display().to_string(), &e))?
        }
        None => EndpointNonces::new(),
    };
    let listener = open::bind(([127, 0, 0, 1], 0).into(), "nothing").await?;
    let address = listener
        .local_addr()
        .map_err(|e| Failure::refused("the listener", &e))?;
    let chain = Arc::new(NullChain { nonces, sends });
    let router = axum::Router::new()
        .route("/", post(answer))
        .with_state(chain);
    let (closing, closed) = tokio::sync::watch::channel(false);
    let server = tokio::spawn(api::serve(listener, router, closed));
    say!(
        "{}",
        json!({ "ready": true, "chain": format!("http://{address}") })
    );
    signals.stop().await;
    // Held sends would keep it from ending in order, and nobody waits for them.
    server.abort();
    drop(closing);
    Ok(())
}

async fn answer(State(chain): State<Arc<NullChain>>, Json(question): Json<Value>) -> Response {
    if chain.sends == Sends::Held && is_send(&question) {
        return std::future::pending().await;
    }
    let answers = match question.as_array() {
        Some(calls) => calls.iter().map(|call| chain.answer(call)).collect(),
        None => chain.answer(&question),
    };
    Json(answers).into_response()
}

/// Calls of one batch have one method.
fn is_send(question: &Value) -> bool {
    let first = question.get(0).unwrap_or(question);
    first.get("method").and_then(Value::as_str) == Some("eth_sendRawTransaction")
}

impl NullChain {
    fn answer(&self, call: &Value) -> Value {
        let id = call.get("id").cloned().unwrap_or_default();
        let method = call
            .get("method")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let param = |index: usize| {
            let param = call.get("params").and_then(|params| params.get(index));
            param.and_then(Value::as_str).unwrap_or_default()
        };
        let result = match method {
            "eth_chainId" => json!(format!("{CHAIN_ID:#x}")),
            "eth_blockNumber" => json!(format!("{HEAD:#x}")),
            "eth_getBlockByNumber" => block(number(param(0))),
            "eth_getBlockByHash" => block(number_of(param(0))),
            "eth_getTransactionCount" => {
                let nonce = self.nonces.get(&param(0).to_lowercase());
                json!(format!("{:#x}", nonce.copied().unwrap_or(0)))
            }
            "eth_feeHistory" => json!({
                "oldestBlock": format!("{HEAD:#x}"),
                "baseFeePerGas": ["0x3b9aca00", "0x3b9aca00"], "gasUsedRatio": [0.5],
                "reward": [["0x3b9aca00"]],
            }),
            "eth_gasPrice" | "eth_maxPriorityFeePerGas" => json!("0x3b9aca00"),
            "eth_getBlockReceipts" => json!([]),
            "eth_getTransactionReceipt" | "eth_getTransactionByHash" => Value::Null,
            "eth_sendRawTransaction" => {
                let raw: Bytes = param(0).parse().unwrap_or_default();
                json!(keccak256(&raw))
            }
            _ => {
                let error = json!({ "code": -32601, "message": "method not found" });
                return json!({ "jsonrpc": "2.0", "id": id, "error": error });
            }
        };
        json!({ "jsonrpc": "2.0", "id": id, "result": result })
    }
}

fn number(tag: &str) -> Option<u64> {
    match tag.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => Some(HEAD),
    }
}

fn number_of(hash: &str) -> Option<u64> {
    let hash: B256 = hash.parse().ok()?;
    let (prefix, rest) = hash.split_at(HASH_PREFIX.len());
    let number = u64::from_be_bytes(rest.try_into().ok()?);
    (prefix == HASH_PREFIX).then_some(number)
}

fn block(number: Option<u64>) -> Value {
    let Some(number) = number.filter(|number| *number <= HEAD) else {
        return Value::Null;
    };
    json!({
        "number": format!("{number:#x}"), "hash": block_hash(number),
        "parentHash": block_hash(number.saturating_sub(1)), "timestamp": format!("{number:#x}"),
        "baseFeePerGas": "0x3b9aca00", "transactions": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_linked_and_found_again_by_hash() {
        let head = block(number("latest"));
        assert_eq!(head["number"], format!("{HEAD:#x}"));
        let parent = block(number_of(head["parentHash"].as_str().unwrap()));
        assert_eq!(parent["number"], format!("{:#x}", HEAD - 1));
        assert_eq!(block(number_of(&B256::ZERO.to_string())), Value::Null);
        assert_eq!(block(number(&format!("{:#x}", HEAD + 1))), Value::Null);
    }

    #[test]
    fn sends_are_seen_alone_and_in_batches() {
        let send = json!({ "method": "eth_sendRawTransaction", "params": ["0x01"], "id": 7 });
        assert!(is_send(&send) && is_send(&json!([send])));
        assert!(!is_send(&json!([])) && !is_send(&json!({ "method": "eth_chainId" })));
        let chain = NullChain {
            nonces: EndpointNonces::from([("0xab".to_owned(), 9)]),
            sends: Sends::Taken,
        };
        assert_eq!(chain.answer(&send)["result"], json!(keccak256([1])));
        let count = json!({ "method": "eth_getTransactionCount", "params": ["0xAB", "latest"] });
        assert_eq!(chain.answer(&count)["result"], "0x9");
    }
}
