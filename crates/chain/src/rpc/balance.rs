//! An account's balance and nonce of one block.

use alloy_primitives::U256;
use domain::lane::AccountBalance;
use domain::{Address, Nonce};
use futures::future::try_join;
use serde_json::json;

use super::answers::Quantity;
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::limits::BALANCE_TRIES_MAX;
use super::read::quantity;
use super::wire::Outcome;
use crate::classify::NodeErrorKind;

/// Of the endpoint's newest block. By its height: what `latest` names may change between two calls.
pub(super) async fn account_balance(
    endpoint: &Endpoint,
    account: Address,
    not_below: u64,
) -> Result<AccountBalance, Failure> {
    let mut tries = 1;
    loop {
        let Quantity(block) = endpoint.call("eth_blockNumber", &json!([])).await?;
        if block < not_below {
            let text = format!("it is at block {block}, and {not_below} is followed");
            return Err(Failure::Malformed(text));
        }
        match balance_at(endpoint, account, block).await? {
            Ok(found) => return Ok(found),
            // Nodes that keep the newest state only may have a newer block by now.
            Err(error) if tries < BALANCE_TRIES_MAX && !is_rate_limit(error.kind()) => tries += 1,
            Err(error) => return Err(Failure::Node(error)),
        }
    }
}

fn is_rate_limit(kind: NodeErrorKind) -> bool {
    kind == NodeErrorKind::RateLimited
}

async fn balance_at(
    endpoint: &Endpoint,
    account: Address,
    block: u64,
) -> Result<Outcome<AccountBalance>, Failure> {
    let at = json!([account, quantity(block)]);
    let balance = endpoint.query::<U256>("eth_getBalance", &at);
    let count = endpoint.query::<Quantity>("eth_getTransactionCount", &at);
    let (balance, count) = match try_join(balance, count).await? {
        (Ok(balance), Ok(count)) => (balance, count),
        (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
    };
    // No account reaches such a nonce, and arithmetic on it could overflow.
    if i64::try_from(count.0).is_err() {
        let text = "an impossible transaction count".to_owned();
        return Err(Failure::Malformed(text));
    }
    Ok(Ok(AccountBalance {
        block,
        nonce: Nonce(count.0),
        balance,
    }))
}
