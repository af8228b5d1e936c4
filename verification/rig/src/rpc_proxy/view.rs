//! A lagging node: it answers as of an older block and hides newer ones.
//!
//! Sends still reach the pool; `eth_getLogs`, `eth_estimateGas` and filters are not limited.

use serde_json::{Value, json};

use super::message::Call;
use super::node::{Node, Unreachable};

/// Which part of the chain is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Live,
    /// This many newest blocks are hidden; the view advances with the chain.
    Behind(u64),
    /// Nothing above this height: the node does not advance.
    Until(u64),
}

impl View {
    /// The newest visible height; `None` without a limit.
    pub(super) async fn visible(self, node: &Node) -> Result<Option<u64>, Unreachable> {
        match self {
            Self::Live => Ok(None),
            Self::Until(height) => Ok(Some(height)),
            Self::Behind(blocks) => {
                let answer = node.call("eth_blockNumber", json!([])).await?;
                let height = number(&answer["result"]).ok_or(Unreachable)?;
                Ok(Some(height.saturating_sub(blocks)))
            }
        }
    }
}

/// The `result` or `error` of a call as of a height; `None` where the height does not matter.
pub(super) async fn answer_at_height(
    node: &Node,
    call: &Call,
    visible: u64,
) -> Result<Option<Value>, Unreachable> {
    let answer = match call.method.as_str() {
        "eth_blockNumber" => json!({ "result": to_hex(visible) }),
        "eth_getBlockByNumber" => block_by_number(node, call, visible).await?,
        "eth_getBlockReceipts" => {
            let params = with_tag(call, 0, visible);
            let answer = node.call(&call.method, params).await?;
            let newest = answer["result"][0]["blockNumber"].clone();
            null_if_newer(answer, &newest, visible)
        }
        "eth_getBlockByHash" => {
            let answer = node.call(&call.method, call.body["params"].clone()).await?;
            let height = answer["result"]["number"].clone();
            null_if_newer(answer, &height, visible)
        }
        "eth_getTransactionReceipt" => {
            let answer = node.call(&call.method, call.body["params"].clone()).await?;
            let height = answer["result"]["blockNumber"].clone();
            null_if_newer(answer, &height, visible)
        }
        "eth_getTransactionByHash" => transaction(node, call, visible).await?,
        "eth_getTransactionCount"
        | "eth_getBalance"
        | "eth_getCode"
        | "eth_call"
        | "eth_feeHistory" => state_at_height(node, call, 1, visible).await?,
        "eth_getStorageAt" => state_at_height(node, call, 2, visible).await?,
        _ => return Ok(None),
    };
    Ok(Some(answer))
}

async fn block_by_number(node: &Node, call: &Call, visible: u64) -> Result<Value, Unreachable> {
    let asked = number(call.param(0));
    let params = with_tag(call, 0, visible);
    let answer = node.call(&call.method, params).await?;
    let height = answer["result"]["number"].clone();
    let is_newer = number(&height).is_some_and(|height| height > visible);
    if is_newer && asked.is_none() {
        // `safe` or `finalized` is above the visible height.
        let params = json!([to_hex(visible), call.param(1)]);
        return node.call(&call.method, params).await;
    }
    Ok(null_if_newer(answer, &height, visible))
}

/// A transaction that is mined above the visible height is shown as pending.
async fn transaction(node: &Node, call: &Call, visible: u64) -> Result<Value, Unreachable> {
    let mut answer = node.call(&call.method, call.body["params"].clone()).await?;
    let tx = &mut answer["result"];
    if number(&tx["blockNumber"]).is_some_and(|height| height > visible) {
        for field in ["blockNumber", "blockHash", "transactionIndex"] {
            tx[field] = Value::Null;
        }
    }
    Ok(answer)
}

/// State as of the visible height, where the call requests the newest.
async fn state_at_height(
    node: &Node,
    call: &Call,
    index: usize,
    visible: u64,
) -> Result<Value, Unreachable> {
    if number(call.param(index)).is_some_and(|asked| asked > visible) {
        let error = json!({ "code": -32_000, "message": "header not found" });
        return Ok(json!({ "error": error }));
    }
    node.call(&call.method, with_tag(call, index, visible))
        .await
}

/// The call's parameters, with the height instead of "latest" and "pending".
fn with_tag(call: &Call, index: usize, visible: u64) -> Value {
    let mut params = call.body["params"].clone();
    let tag = call.param(index);
    let is_newest = tag.is_null() || matches!(tag.as_str(), Some("latest" | "pending"));
    if let (true, Value::Array(list)) = (is_newest, &mut params) {
        list.resize(list.len().max(index.saturating_add(1)), Value::Null);
        list[index] = json!(to_hex(visible));
    }
    params
}

fn null_if_newer(answer: Value, height: &Value, visible: u64) -> Value {
    if number(height).is_some_and(|height| height > visible) {
        return json!({ "result": null });
    }
    answer
}

fn number(value: &Value) -> Option<u64> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok()
}

fn to_hex(number: u64) -> String {
    format!("{number:#x}")
}
