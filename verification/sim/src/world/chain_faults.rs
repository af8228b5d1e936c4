//! Faults of the chain, and the production of its blocks.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::U256;
use domain::lane::ResubmitPolicy;

use super::chain_plan::{ChainPlan, FEE, FEE_HIGH, LAG_MAX};
use super::features::Feature;
use super::node_faults::span;
use super::plan::Plan;
use super::poison::{Poison, PoisonKind};
use crate::chain::{FeeReport, ForeignRoute, MemoryChain, ReorgPlacement};
use crate::rng::Rng;

/// The usual balance of an account.
const BALANCE_RICH: U256 = U256::from_limbs([0, 1_000, 0, 0]);

/// Mines blocks forever. Before each, endpoints gossip their pending transactions.
pub(super) async fn mine_blocks(chain: MemoryChain, plan: Arc<Plan>, rng: Rng) {
    let plan = &plan.chain;
    loop {
        tokio::time::sleep(plan.block_interval).await;
        chain.gossip(|| rng.permille(plan.gossip));
        chain.set_producer(pick_endpoint(&rng, plan.endpoints));
        chain.mine_if(|_| rng.permille(plan.inclusion));
    }
}

/// Configures the chain as planned.
pub(super) fn set_up(chain: &MemoryChain, plan: &Plan) {
    let plan = &plan.chain;
    chain.set_capacity(plan.block_room, plan.pool_slots);
    chain.set_reports_depth(plan.reports_depth);
    chain.set_tags(plan.safe_depth, plan.final_depth);
    (0..plan.endpoints).for_each(|endpoint| chain.set_lag(endpoint, usual_lag(plan, endpoint)));
}

/// Empties the account of a poisoned lane that must be unfunded.
pub(super) fn poison(chain: &MemoryChain, plan: &Plan) {
    if let Some(Poison { account, kind }) = plan.poison
        && kind == PoisonKind::Broke
    {
        chain.fund(account, U256::ZERO);
    }
}

/// Ends all faults. Permanent settings stay: an endpoint that lags, and a price that rose.
pub(super) fn heal(chain: &MemoryChain, plan: &Plan) {
    for endpoint in 0..plan.chain.endpoints {
        chain.set_down(endpoint, false);
        if plan.has_workload(Feature::HungSends) {
            chain.set_hangs_on_sends(endpoint, false);
        }
        if plan.hostile.is_some() {
            chain.set_hung_method(endpoint, None);
            chain.set_fee_report(endpoint, FeeReport::Right);
        }
    }
    set_up(chain, plan);
    chain.set_strict(false);
    chain.set_fees(price_in_the_end(plan), FEE);
    for signer in &plan.signers {
        chain.fund(*signer, BALANCE_RICH);
    }
    chain.drop_cheap_foreign();
    if plan.chain.forgets && plan.allows(Feature::Drops) {
        (0..plan.chain.endpoints).for_each(|endpoint| chain.lose_pool(endpoint));
    }
}

/// Injects faults into the chain.
pub(super) struct ChainFaultInjector {
    pub(super) chain: MemoryChain,
    pub(super) plan: Arc<Plan>,
    pub(super) rng: Rng,
}

impl ChainFaultInjector {
    /// Injects a fault at random intervals, until the world is healed.
    pub(super) async fn inject_faults(self) {
        let Some(interval) = self.plan.chain.fault_interval else {
            return;
        };
        let pace = u64::try_from(interval.as_millis()).expect("an interval is short");
        let mut foreign = 0;
        for _ in 0..self.plan.faults_max.unwrap_or(u64::MAX) {
            tokio::time::sleep(self.rng.millis(pace / 4, pace * 2)).await;
            if foreign < self.plan.chain.foreign_max && self.rng.permille(300) {
                foreign += 1;
                self.send_foreign_tx(foreign);
            } else {
                self.inject_fault();
            }
        }
    }

    fn inject_fault(&self) {
        let Self { chain, plan, rng } = self;
        let endpoint = pick_endpoint(rng, plan.chain.endpoints);
        let draw = rng.below(12);
        if !plan.allows(feature_of(draw)) {
            return;
        }
        chain.fire(feature_of(draw));
        match draw {
            0 => self.drop_one(),
            1 => chain.lose_pool(endpoint),
            2 => (0..plan.chain.endpoints).for_each(|endpoint| chain.lose_pool(endpoint)),
            3..=4 => {
                let after = price_after(&plan.chain);
                self.change_temporarily(
                    |chain| chain.set_fees(FEE_HIGH, FEE_HIGH),
                    move |chain| {
                        // The end of all faults may have ended this one.
                        if chain.base_fee() == FEE_HIGH {
                            chain.set_fees(after, FEE);
                        }
                    },
                );
            }
            5..=6 => {
                let account = *rng.pick(&plan.signers);
                self.change_temporarily(
                    move |chain| chain.fund(account, U256::ZERO),
                    move |chain| chain.fund(account, BALANCE_RICH),
                );
            }
            7 => self.change_temporarily(
                move |chain| chain.set_down(endpoint, true),
                move |chain| chain.set_down(endpoint, false),
            ),
            8 => {
                let (heads, usual) = (rng.between(1, LAG_MAX), usual_lag(&plan.chain, endpoint));
                self.change_temporarily(
                    move |chain| chain.set_lag(endpoint, heads),
                    move |chain| chain.set_lag(endpoint, usual),
                );
            }
            9 => self.change_temporarily(
                |chain| chain.set_strict(true),
                |chain| chain.set_strict(false),
            ),
            _ => self.fork(),
        }
    }

    /// Another owner of the key sends a transaction: through a mempool, where it may be too cheap to be
    /// mined, or privately, where it takes the nonce from any pending transaction.
    fn send_foreign_tx(&self, number: u64) {
        let Self { chain, plan, rng } = self;
        let account = *rng.pick(&plan.signers);
        let endpoint = pick_endpoint(rng, plan.chain.endpoints);
        let (kind, per_gas) = match rng.below(10) {
            0..=4 => (ForeignRoute::Private, 2 * FEE_HIGH),
            5..=7 => (ForeignRoute::Pool(endpoint), 2 * FEE_HIGH),
            8 => (ForeignRoute::Pool(endpoint), 3 * FEE),
            _ => (ForeignRoute::Pool(endpoint), FEE / 2),
        };
        let sent = chain.submit_foreign_tx(account, &format!("foreign-{number}"), per_gas, kind);
        // An endpoint may refuse it: then nothing happened.
        if sent.is_some() {
            chain.fire(Feature::Foreign);
        }
    }

    fn drop_one(&self) {
        let pool = self.chain.pool();
        if !pool.is_empty() {
            self.chain.drop_tx(self.rng.pick(&pool).hash);
        }
    }

    fn fork(&self) {
        let depth = self.rng.between(1, self.plan.chain.fork_max);
        self.chain.reorg(depth, |_| match self.rng.below(10) {
            0..=4 => ReorgPlacement::Mined,
            5..=8 => ReorgPlacement::Pooled,
            _ => ReorgPlacement::Dropped,
        });
    }

    /// Changes a setting for some time.
    fn change_temporarily(
        &self,
        begin: impl FnOnce(&MemoryChain) + Send + 'static,
        end: impl FnOnce(&MemoryChain) + Send + 'static,
    ) {
        let span: Duration = span(&self.plan, &self.rng, 3);
        let chain = self.chain.clone();
        // Detached: the task ends by itself, or with the world.
        drop(tokio::spawn(async move {
            begin(&chain);
            tokio::time::sleep(span).await;
            end(&chain);
        }));
    }
}

/// The feature that a draw of [`ChainFaultInjector::inject_fault`] belongs to.
fn feature_of(draw: u64) -> Feature {
    match draw {
        0..=2 => Feature::Drops,
        3..=4 => Feature::Fees,
        5..=6 => Feature::Funds,
        7 => Feature::Endpoints,
        8 => Feature::Lag,
        9 => Feature::Strict,
        _ => Feature::Forks,
    }
}

/// The price after a price rise.
fn price_after(plan: &ChainPlan) -> u128 {
    if plan.stays_expensive { FEE_HIGH } else { FEE }
}

/// The price that everything can end at. What was signed while the only endpoint reported a base fee of zero keeps its
/// fees under a policy that never raises them: it is mined when the chain is idle and its base fee has fallen.
fn price_in_the_end(plan: &Plan) -> u128 {
    let report = plan.hostile.map(|hostile| hostile.fee_report);
    let reports_zero = report == Some(FeeReport::Zero) && plan.has_workload(Feature::FalseFees);
    let raises = plan.lane.resubmit.policy != ResubmitPolicy::Rebroadcast;
    match reports_zero && !raises {
        true => 0,
        false => price_after(&plan.chain),
    }
}

/// How far behind an endpoint is without faults.
fn usual_lag(plan: &ChainPlan, endpoint: usize) -> u64 {
    let is_last = endpoint + 1 == plan.endpoints;
    if is_last { plan.lag_for_good } else { 0 }
}

fn pick_endpoint(rng: &Rng, count: usize) -> usize {
    let count = u64::try_from(count).expect("few endpoints");
    usize::try_from(rng.below(count)).expect("few endpoints")
}
