//! Queries of an account's balance, and the requests that wait for them: before a request is refused because the account
//! cannot pay, its balance is queried after the request has come. One query at a time per lane serves all that wait.
//!
//! A query is not an effect of the lane: its end releases the requests, whatever became of the lane meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::lane::AccountBalance;
use domain::{Input, LaneKey, MonotonicTime};

use super::turn::TurnInputs;
use super::{Message, PendingCreate, Shard, refuse_creates};
use crate::core::Core;
use crate::node::Refusal;
use crate::ports::Quorum;

/// How long requests wait for a balance before they are accepted without one.
const BALANCE_PATIENCE: Duration = Duration::from_secs(2);
/// After so many queries whose answers could not be used, a request is accepted without one.
pub(crate) const BALANCE_QUERIES_MAX: u32 = 3;

/// The queries under way, and the requests that wait for each.
#[derive(Default)]
pub(super) struct BalanceQueries(BTreeMap<LaneKey, Vec<PendingCreate>>);

impl Shard {
    /// Has the balance of a lane's account queried, and holds requests until it is known.
    pub(super) fn query_balance(&mut self, lane: LaneKey, waiting: Vec<PendingCreate>) {
        let bound = self.core.config.inbox;
        if let Some(held) = self.balance_queries.0.get_mut(&lane) {
            for create in waiting {
                if held.len() < bound {
                    held.push(create);
                } else {
                    refuse_creates([create], &Refusal::Busy);
                }
            }
            return;
        }
        // One endpoint alone must not refuse what the account can pay for.
        let quorum = match waiting.iter().any(|create| create.is_shortfall_confirmed) {
            true => Quorum::Two,
            false => Quorum::One,
        };
        self.balance_queries.0.insert(lane, waiting);
        let core = Arc::clone(&self.core);
        self.core.tasks.spawn("query balance", async move {
            let queried_at = core.ports.clock.monotonic();
            let answer = account_balance(&core, lane, quorum).await;
            let message = Message::BalanceQueried {
                lane,
                queried_at,
                answer,
            };
            core.send_to_shard(lane, message).await;
        });
    }

    /// A query has ended: its lane learns the balance, and decides on the requests that waited for it.
    pub(super) fn sort_balance(
        &mut self,
        lane: LaneKey,
        queried_at: MonotonicTime,
        answer: Option<AccountBalance>,
        turn: &mut TurnInputs,
    ) {
        let waiting = self.balance_queries.0.remove(&lane).unwrap_or_default();
        if self.is_in_memory(lane) {
            let input = turn.entry(lane).or_default();
            input.inputs.push(Input::Balance { queried_at, answer });
            input.creates.extend(waiting);
            return;
        }
        for create in waiting {
            self.hold_create(lane, create);
        }
    }

    /// The requests that wait for a balance; the queries go on.
    pub(super) fn take_waiting_for_balance(&mut self) -> Vec<PendingCreate> {
        let held = self.balance_queries.0.values_mut();
        held.flat_map(std::mem::take).collect()
    }
}

/// Queries the balance of a lane's account for the lane itself: no request waits for it.
pub(super) async fn query_balance_for_lane(core: Arc<Core>, lane: LaneKey) -> Vec<Input> {
    let queried_at = core.ports.clock.monotonic();
    let answer = account_balance(&core, lane, Quorum::One).await;
    vec![Input::Balance { queried_at, answer }]
}

/// The balance of a lane's account; `None` when no endpoint answers in time.
async fn account_balance(core: &Core, lane: LaneKey, quorum: Quorum) -> Option<AccountBalance> {
    let chain_state = core.chain(lane.chain_id);
    let view = chain_state.view.get();
    let followed = view.and_then(|view| Some(view.headers.tip()?.number));
    let not_below = followed.unwrap_or(0);
    let queried = chain_state
        .chain
        .account_balance(lane.signer, not_below, quorum);
    let answer = tokio::select! {
        biased;
        answer = queried => answer.map_err(|error| error.to_string()),
        () = core.ports.clock.sleep(BALANCE_PATIENCE) => Err("no answer in time".to_owned()),
    };
    answer
        .inspect_err(|error| {
            tracing::warn!(%lane, %error, "the account's balance could not be read; what waits for it goes on without it");
        })
        .ok()
}
