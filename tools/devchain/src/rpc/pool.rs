//! `txpool_status` and `txpool_content`, for debugging.

use std::collections::BTreeMap;

use alloy_primitives::{Address, U64};
use alloy_rpc_types_eth::Transaction;
use serde::Serialize;
use serde_json::json as value;

use super::params::Params;
use super::{Answer, json, render};
use crate::{Inner, limits};

pub(super) fn call(chain: &Inner, method: &str, _params: &Params) -> Option<Answer> {
    Some(match method {
        "txpool_status" => {
            let status = chain.node.pool().status();
            json(&value!({
                "pending": U64::from(status.pending),
                "queued": U64::from(status.queued),
            }))
        }
        "txpool_content" => content(chain),
        _ => return None,
    })
}

type BySenderAndNonce = BTreeMap<Address, BTreeMap<String, Transaction>>;

#[derive(Default, Serialize)]
struct Content {
    pending: BySenderAndNonce,
    queued: BySenderAndNonce,
}

/// At most `POOL_SHOWN_MAX` of them.
fn content(chain: &Inner) -> Answer {
    let txs = chain.node.pool().content(limits::POOL_SHOWN_MAX);
    let mut content = Content::default();
    for (executable, tx) in txs {
        let place = if executable {
            &mut content.pending
        } else {
            &mut content.queued
        };
        let nonce = tx.nonce().to_string();
        place
            .entry(tx.sender)
            .or_default()
            .insert(nonce, render::pending_transaction(&tx));
    }
    json(&content)
}
