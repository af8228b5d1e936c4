//! A chain without cost: it answers every call immediately, never produces a block, and does not decode
//! sent transactions.
//!
//! The dev chain recovers a signature and writes to disk for every transaction, on the cores that the
//! benchmark measures. The null chain does neither. Its height is fixed and far above every block that
//! [`super::row_writer`] makes up, so that the nodes have nothing to follow.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{B256, Bytes, keccak256};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use clap::ValueEnum;
use cli::process::{ChildProcess, program_command, reduce_logs, write_private_file};
use cli::{Failure, Signals, listener, print_line};
use serde_json::{Value, json};

/// Its EIP-155 id.
pub(crate) const CHAIN_ID: u64 = 31_337;
/// Its height, which never changes.
const HEAD: u64 = 10_000_000;
/// The first bytes of every block hash; the rest is the block number.
const HASH_PREFIX: [u8; 24] = [0xbe; 24];

/// What happens to sent transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SendMode {
    /// Calls are not answered during the run: only accepting is measured
    Held,
    /// Calls are answered immediately: the node also records that it has sent
    Taken,
}

impl SendMode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Taken => "taken",
        }
    }
}

pub(crate) fn block_hash(number: u64) -> B256 {
    let mut hash = [0; 32];
    let (prefix, rest) = hash.split_at_mut(HASH_PREFIX.len());
    prefix.copy_from_slice(&HASH_PREFIX);
    rest.copy_from_slice(&number.to_be_bytes());
    B256::from(hash)
}

/// The nonces of accounts that are not at 0, by address in lower case.
pub(crate) type AccountNonces = BTreeMap<String, u64>;

struct NullChain {
    nonces: AccountNonces,
    sends: SendMode,
}

/// Starts a null chain in a process of its own, and returns its URL.
pub(super) async fn start_process(
    folder: &Path,
    nonces: &AccountNonces,
    sends: SendMode,
) -> Result<(ChildProcess, String), Failure> {
    let file = folder.join("nonces.json");
    let text = serde_json::to_string(nonces).expect("numbers by address are JSON");
    write_private_file(&file, &text)?;
    let mut command = program_command()?;
    command.args(["bench", "null-chain", "--sends", sends.as_str()]);
    command.arg("--nonces").arg(&file);
    reduce_logs(&mut command);
    let (child, ready) = ChildProcess::start(command, "the null chain", None).await?;
    let url = ready.get("chain").and_then(Value::as_str);
    let url = url.ok_or_else(|| {
        Failure::Refused("the ready line of the null chain contains no URL".into())
    })?;
    Ok((child, url.to_owned()))
}

/// Serves until standard input ends.
pub(crate) async fn serve(nonces: Option<&Path>, sends: SendMode) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    signals.stop_when_stdin_ends();
    let nonces = match nonces {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|e| Failure::refused(&path.display().to_string(), &e))?;
            serde_json::from_str(&text)
                .map_err(|e| Failure::refused(&path.display().to_string(), &e))?
        }
        None => AccountNonces::new(),
    };
    let listener = listener::bind(([127, 0, 0, 1], 0).into(), "--port").await?;
    let address = listener
        .local_addr()
        .map_err(|e| Failure::refused("cannot read the address of the listener", &e))?;
    let chain = Arc::new(NullChain { nonces, sends });
    let router = axum::Router::new()
        .route("/", post(handle_call))
        .with_state(chain);
    let (closing, closed) = tokio::sync::watch::channel(false);
    let server = tokio::spawn(api::serve(listener, router, api::CONNECTIONS_MAX, closed));
    print_line!(
        "{}",
        json!({ "ready": true, "chain": format!("http://{address}") })
    );
    signals.wait_for_stop().await;
    // Held calls would block a graceful shutdown.
    server.abort();
    drop(closing);
    Ok(())
}

async fn handle_call(State(chain): State<Arc<NullChain>>, Json(request): Json<Value>) -> Response {
    if chain.sends == SendMode::Held && is_send(&request) {
        return std::future::pending().await;
    }
    let answers = match request.as_array() {
        Some(calls) => calls.iter().map(|call| chain.answer(call)).collect(),
        None => chain.answer(&request),
    };
    Json(answers).into_response()
}

/// Whether a call or batch sends transactions. All calls of a batch have the same method.
fn is_send(request: &Value) -> bool {
    let first = request.get(0).unwrap_or(request);
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
            "eth_getBlockByNumber" => block(parse_block_tag(param(0))),
            "eth_getBlockByHash" => block(parse_block_hash(param(0))),
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

fn parse_block_tag(tag: &str) -> Option<u64> {
    match tag.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => Some(HEAD),
    }
}

fn parse_block_hash(hash: &str) -> Option<u64> {
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
    fn blocks_are_linked_and_found_by_hash() {
        let head = block(parse_block_tag("latest"));
        assert_eq!(head["number"], format!("{HEAD:#x}"));
        let parent = block(parse_block_hash(head["parentHash"].as_str().unwrap()));
        assert_eq!(parent["number"], format!("{:#x}", HEAD - 1));
        assert_eq!(
            block(parse_block_hash(&B256::ZERO.to_string())),
            Value::Null
        );
        assert_eq!(
            block(parse_block_tag(&format!("{:#x}", HEAD + 1))),
            Value::Null
        );
    }

    #[test]
    fn sends_are_recognized_alone_and_in_batches() {
        let send = json!({ "method": "eth_sendRawTransaction", "params": ["0x01"], "id": 7 });
        assert!(is_send(&send) && is_send(&json!([send])));
        assert!(!is_send(&json!([])) && !is_send(&json!({ "method": "eth_chainId" })));
        let chain = NullChain {
            nonces: AccountNonces::from([("0xab".to_owned(), 9)]),
            sends: SendMode::Taken,
        };
        assert_eq!(chain.answer(&send)["result"], json!(keccak256([1])));
        let count = json!({ "method": "eth_getTransactionCount", "params": ["0xAB", "latest"] });
        assert_eq!(chain.answer(&count)["result"], "0x9");
    }
}
