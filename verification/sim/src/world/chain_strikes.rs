//! What goes wrong with the chain, and the blocks that come all the same.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::U256;

use super::chain_plan::{ChainPlan, FEE, FEE_DEAR, LAG_MAX};
use super::parts::Part;
use super::plan::Plan;
use super::poison::{Poison, PoisonWay};
use super::strikes::span;
use crate::chain::{Fate, ForeignWay, MemoryChain};
use crate::rng::Rng;

/// What an account owns as a rule.
const RICH: U256 = U256::from_limbs([0, 1_000, 0, 0]);

/// A block, again and again. Before each, nodes have told each other what waits.
pub(super) async fn mine_for_ever(chain: MemoryChain, plan: Arc<Plan>, rng: Rng) {
    let plan = &plan.chain;
    loop {
        tokio::time::sleep(plan.block_interval).await;
        chain.gossip(|| rng.permille(plan.gossip));
        chain.set_producer(some_endpoint(&rng, plan.endpoints));
        chain.mine_if(|_| rng.permille(plan.inclusion));
    }
}

/// Makes the chain as its plan says.
pub(super) fn set_up(chain: &MemoryChain, plan: &Plan) {
    let plan = &plan.chain;
    chain.set_room(plan.block_room, plan.pool_slots);
    chain.tell_room(plan.tells_slots);
    chain.set_tags(plan.safe_depth, plan.final_depth);
    (0..plan.endpoints).for_each(|endpoint| chain.set_lag(endpoint, usual_lag(plan, endpoint)));
}

/// Takes everything from a lane that is to own nothing.
pub(super) fn poison(chain: &MemoryChain, plan: &Plan) {
    if let Some(Poison { account, way }) = plan.poison
        && way == PoisonWay::Broke
    {
        chain.fund(account, U256::ZERO);
    }
}

/// Makes good what strikes did. What is so for good stays: a node that lags, and a price that rose.
pub(super) fn heal(chain: &MemoryChain, plan: &Plan) {
    (0..plan.chain.endpoints).for_each(|endpoint| chain.set_down(endpoint, false));
    set_up(chain, plan);
    chain.set_strict(false);
    chain.set_fees(price_after(&plan.chain), FEE);
    for signer in &plan.signers {
        chain.fund(*signer, RICH);
    }
    chain.drop_cheap_foreign();
    if plan.chain.forgets && plan.lets(Part::Drops) {
        (0..plan.chain.endpoints).for_each(|endpoint| chain.lose_pool(endpoint));
    }
}

/// Whoever strikes the chain.
pub(super) struct ChainStriker {
    pub(super) chain: MemoryChain,
    pub(super) plan: Arc<Plan>,
    pub(super) rng: Rng,
}

impl ChainStriker {
    /// Something bad, again and again, until the world is healed.
    pub(super) async fn strike_for_ever(self) {
        let Some(interval) = self.plan.chain.strike_interval else {
            return;
        };
        let pace = u64::try_from(interval.as_millis()).expect("an interval is short");
        let mut foreign = 0;
        for _ in 0..self.plan.strikes_max.unwrap_or(u64::MAX) {
            tokio::time::sleep(self.rng.millis(pace / 4, pace * 2)).await;
            if foreign < self.plan.chain.foreign_max && self.rng.permille(300) {
                foreign += 1;
                self.use_an_account(foreign);
            } else {
                self.strike();
            }
        }
    }

    fn strike(&self) {
        let Self { chain, plan, rng } = self;
        let endpoint = some_endpoint(rng, plan.chain.endpoints);
        let draw = rng.below(12);
        if !plan.lets(part_of(draw)) {
            return;
        }
        match draw {
            0 => self.drop_one(),
            1 => chain.lose_pool(endpoint),
            2 => (0..plan.chain.endpoints).for_each(|endpoint| chain.lose_pool(endpoint)),
            3..=4 => {
                let after = price_after(&plan.chain);
                self.for_a_while(
                    |chain| chain.set_fees(FEE_DEAR, FEE_DEAR),
                    move |chain| chain.set_fees(after, FEE),
                );
            }
            5..=6 => {
                let account = *rng.pick(&plan.signers);
                self.for_a_while(
                    move |chain| chain.fund(account, U256::ZERO),
                    move |chain| chain.fund(account, RICH),
                );
            }
            7 => self.for_a_while(
                move |chain| chain.set_down(endpoint, true),
                move |chain| chain.set_down(endpoint, false),
            ),
            8 => {
                let (heads, usual) = (rng.between(1, LAG_MAX), usual_lag(&plan.chain, endpoint));
                self.for_a_while(
                    move |chain| chain.set_lag(endpoint, heads),
                    move |chain| chain.set_lag(endpoint, usual),
                );
            }
            9 => self.for_a_while(
                |chain| chain.set_strict(true),
                |chain| chain.set_strict(false),
            ),
            _ => self.fork(),
        }
    }

    /// Somebody else who has the key sends a transaction: through a pool, where it may be too cheap to be
    /// mined, or past all pools, where it takes the nonce from whatever waits there.
    fn use_an_account(&self, number: u64) {
        let Self { chain, plan, rng } = self;
        let account = *rng.pick(&plan.signers);
        let endpoint = some_endpoint(rng, plan.chain.endpoints);
        let (way, per_gas) = match rng.below(10) {
            0..=4 => (ForeignWay::Private, 2 * FEE_DEAR),
            5..=7 => (ForeignWay::Pool(endpoint), 2 * FEE_DEAR),
            8 => (ForeignWay::Pool(endpoint), 3 * FEE),
            _ => (ForeignWay::Pool(endpoint), FEE / 2),
        };
        // A node that does not take it has nothing to show: then nothing happened.
        drop(chain.use_account(account, &format!("foreign-{number}"), per_gas, way));
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
            0..=4 => Fate::Mined,
            5..=8 => Fate::Pooled,
            _ => Fate::Dropped,
        });
    }

    /// Something is otherwise for some time.
    fn for_a_while(
        &self,
        begin: impl FnOnce(&MemoryChain) + Send + 'static,
        end: impl FnOnce(&MemoryChain) + Send + 'static,
    ) {
        let span: Duration = span(&self.plan, &self.rng, 3);
        let chain = self.chain.clone();
        // The handle is let go: it ends by itself, or with the world.
        drop(tokio::spawn(async move {
            begin(&chain);
            tokio::time::sleep(span).await;
            end(&chain);
        }));
    }
}

/// Which part of the world a draw of [`ChainStriker::strike`] belongs to.
fn part_of(draw: u64) -> Part {
    match draw {
        0..=2 => Part::Drops,
        3..=4 => Part::Fees,
        5..=6 => Part::Funds,
        7 => Part::Endpoints,
        8 => Part::Lag,
        9 => Part::Strict,
        _ => Part::Forks,
    }
}

/// What a block costs once it was dear.
fn price_after(plan: &ChainPlan) -> u128 {
    if plan.stays_dear { FEE_DEAR } else { FEE }
}

/// How far behind an endpoint is when nothing happens to it.
fn usual_lag(plan: &ChainPlan, endpoint: usize) -> u64 {
    let is_last = endpoint + 1 == plan.endpoints;
    if is_last { plan.lag_for_good } else { 0 }
}

fn some_endpoint(rng: &Rng, count: usize) -> usize {
    let count = u64::try_from(count).expect("few endpoints");
    usize::try_from(rng.below(count)).expect("few endpoints")
}
