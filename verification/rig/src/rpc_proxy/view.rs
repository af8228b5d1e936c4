//! A node that is behind: it answers as of an older block and has none of the newer.
//!
//! Sends still reach the pool, and `eth_getLogs`, `eth_estimateGas` and filters are not held back.

use serde_json::{Value, json};

use super::message::Call;
use super::node::{Node, Unreachable};

/// What of the chain is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All of it.
    Live,
    /// So many blocks are missing at the top; it moves on with the chain.
    Behind(u64),
    /// Nothing above this height: the node stands still.
    Until(u64),
}

impl View {
    /// The newest height that is shown; `None` when there is no limit.
    pub(super) async fn visible(self, node: &Node) -> Result<Option<u64>, Unreachable> {
        match self {
            Self::Live => Ok(None),
            Self::Until(height) => Ok(Some(height)),
            Self::Behind(blocks) => {
                let answer = node.ask("eth_blockNumber", json!([])).await?;
                let height = number(&answer["result"]).ok_or(Unreachable)?;
                Ok(Some(height.saturating_sub(blocks)))
            }
        }
    }
}

/// The `result` or `error` of a call as of a height; `None` where the height does not matter.
pub(super) async fn answer(
    node: &Node,
    call: &Call,
    visible: u64,
) -> Result<Option<Value>, Unreachable> {
    let answer = match call.method.as_str() {
        "eth_blockNumber" => json!({ "result": hex_of(visible) }),
        "eth_getBlockByNumber" => block_by_number(node, call, visible).await?,
        "eth_getBlockReceipts" => {
            let params = with_tag(call, 0, visible);
            let answer = node.ask(&call.method, params).await?;
            let newest = answer["result"][0]["blockNumber"].clone();
            unless_newer(answer, &newest, visible)
        }
        "eth_getBlockByHash" => {
            let answer = node.ask(&call.method, call.body["params"].clone()).await?;
            let height = answer["result"]["number"].clone();
            unless_newer(answer, &height, visible)
        }
        "eth_getTransactionReceipt" => {
            let answer = node.ask(&call.method, call.body["params"].clone()).await?;
            let height = answer["result"]["blockNumber"].clone();
            unless_newer(answer, &height, visible)
        }
        "eth_getTransactionByHash" => transaction(node, call, visible).await?,
        "eth_getTransactionCount"
        | "eth_getBalance"
        | "eth_getCode"
        | "eth_call"
        | "eth_feeHistory" => at_tag(node, call, 1, visible).await?,
        "eth_getStorageAt" => at_tag(node, call, 2, visible).await?,
        _ => return Ok(None),
    };
    Ok(Some(answer))
}

async fn block_by_number(node: &Node, call: &Call, visible: u64) -> Result<Value, Unreachable> {
    let asked = number(call.param(0));
    let params = with_tag(call, 0, visible);
    let answer = node.ask(&call.method, params).await?;
    let height = answer["result"]["number"].clone();
    let is_newer = number(&height).is_some_and(|height| height > visible);
    if is_newer && asked.is_none() {
        // `safe` or `finalized`, which the node has higher than we show.
        let params = json!([hex_of(visible), call.param(1)]);
        return node.ask(&call.method, params).await;
    }
    Ok(unless_newer(answer, &height, visible))
}

/// A transaction that is mined above is one that still waits.
async fn transaction(node: &Node, call: &Call, visible: u64) -> Result<Value, Unreachable> {
    let mut answer = node.ask(&call.method, call.body["params"].clone()).await?;
    let tx = &mut answer["result"];
    if number(&tx["blockNumber"]).is_some_and(|height| height > visible) {
        for field in ["blockNumber", "blockHash", "transactionIndex"] {
            tx[field] = Value::Null;
        }
    }
    Ok(answer)
}

/// State as of a height, where the call asks for the newest.
async fn at_tag(
    node: &Node,
    call: &Call,
    index: usize,
    visible: u64,
) -> Result<Value, Unreachable> {
    if number(call.param(index)).is_some_and(|asked| asked > visible) {
        let error = json!({ "code": -32_000, "message": "header not found" });
        return Ok(json!({ "error": error }));
    }
    node.ask(&call.method, with_tag(call, index, visible)).await
}

/// The call's parameters, with the height in the place of "latest" and "pending".
fn with_tag(call: &Call, index: usize, visible: u64) -> Value {
    let mut params = call.body["params"].clone();
    let tag = call.param(index);
    let is_newest = tag.is_null() || matches!(tag.as_str(), Some("latest" | "pending"));
    if let (true, Value::Array(list)) = (is_newest, &mut params) {
        list.resize(list.len().max(index.saturating_add(1)), Value::Null);
        list[index] = json!(hex_of(visible));
    }
    params
}

fn unless_newer(answer: Value, height: &Value, visible: u64) -> Value {
    if number(height).is_some_and(|height| height > visible) {
        return json!({ "result": null });
    }
    answer
}

fn number(value: &Value) -> Option<u64> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok()
}

fn hex_of(number: u64) -> String {
    format!("{number:#x}")
}
