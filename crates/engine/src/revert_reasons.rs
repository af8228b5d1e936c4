//! Why mined attempts reverted: fetched in the background, after their receipts are delivered.
//!
//! A reason costs a call per tx, and may cost seconds. Nothing waits for it: neither receipts, nor the next block, nor
//! another lane.

use std::sync::Arc;

use domain::{Inclusion, Input, LaneKey};
use tokio::sync::Semaphore;

use crate::core::Core;

/// How many reasons are fetched at once from one chain.
const FETCHES_MAX: usize = 8;
/// How many reasons wait to be fetched from one chain; those beyond are left out.
const WAITING_MAX: usize = 2_000;

/// The bounds of one chain.
pub(crate) struct RevertReasons {
    waiting: Arc<Semaphore>,
    fetches: Semaphore,
}

impl Default for RevertReasons {
    fn default() -> Self {
        Self {
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            fetches: Semaphore::new(FETCHES_MAX),
        }
    }
}

/// Sends inputs to a lane, and then has the reasons of reverted attempts among them fetched.
pub(crate) async fn send_with_revert_reasons(
    core: &Arc<Core>,
    lane: LaneKey,
    epoch: Option<u64>,
    inputs: Vec<Input>,
) {
    let mut reverted: Vec<Inclusion> = Vec::new();
    for input in &inputs {
        if let Input::Receipts(receipts) = input {
            let mined = receipts.iter().map(|receipt| &receipt.inclusion);
            let unexplained =
                |mined: &&Inclusion| !mined.succeeded && mined.revert_reason.is_none();
            reverted.extend(mined.filter(unexplained).cloned());
        }
    }
    core.send_inputs(lane, epoch, inputs).await;
    for inclusion in reverted {
        let bounds = &core.chain(lane.chain_id).revert_reasons;
        let Ok(place) = Arc::clone(&bounds.waiting).try_acquire_owned() else {
            tracing::debug!(%lane, hash = %inclusion.tx_hash, "too many reverts at once: this reason is not read");
            continue;
        };
        let core_of_task = Arc::clone(core);
        core.tasks.spawn("explain revert", async move {
            explain_revert(&core_of_task, lane, &inclusion).await;
            drop(place);
        });
    }
}

async fn explain_revert(core: &Core, lane: LaneKey, inclusion: &Inclusion) {
    let chain_state = core.chain(lane.chain_id);
    let fetch = chain_state.revert_reasons.fetches.acquire().await;
    let _fetch = fetch.expect("this semaphore is never closed");
    match chain_state.chain.revert_reason(inclusion).await {
        Ok(Some(reason)) => {
            let tx_hash = inclusion.tx_hash;
            let input = Input::RevertReason { tx_hash, reason };
            core.send_inputs(lane, None, vec![input]).await;
        }
        Ok(None) => {}
        Err(error) => tracing::debug!(%lane, %error, "the revert reason could not be read"),
    }
}
