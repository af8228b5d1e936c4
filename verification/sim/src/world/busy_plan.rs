//! What a seed decides beyond the faults: the habits of those who use the cluster; and what was changed by
//! hand afterwards.

use alloy_primitives::Address;
use domain::NodeName;
use domain::lane::OnForeignNonce;
use engine::node::NonKeeper;

use super::loans::Loans;
use super::options::{Changes, Options};
use super::parts::{Part, Parts};
use super::plan::Plan;
use super::poison::{Poison, PoisonWay};
use crate::chain::Staleness;
use crate::rng::Rng;
use crate::wire::WireFaults;

/// How often a busy world has each habit, per thousand worlds.
const HABITS: [(Part, u64); 8] = [
    (Part::Batches, 500),
    (Part::Readers, 700),
    (Part::Lookers, 400),
    (Part::Restarts, 300),
    (Part::Newcomers, 300),
    (Part::Departures, 300),
    (Part::Operator, 500),
    (Part::NodeClocks, 400),
];

/// How often a calm one has a lane that never works: only where nothing else goes wrong can be said how
/// long the other lanes may take.
const POISON: u64 = 600;

/// How often a busy world has an account whose nonces are lent.
const LOANS: u64 = 600;

/// How often all pools are lost at the end, in worlds that are not calm.
const FORGETS: u64 = 300;

/// What a poisoned world has beside that: nothing that could delay a request by itself.
const BESIDE_POISON: [Part; 3] = [Part::Batches, Part::Readers, Part::Lookers];

/// The account of the lane that never works.
const POISONED: Address = Address::repeat_byte(0x66);

/// So many requests for one lane, in a few worlds: more than a lane takes into memory at once.
const MANY: (u64, u64) = (600, 1_000);
/// In how many worlds of a thousand.
const MANY_CHANCE: u64 = 5;

/// By how many millionths a node's clock is fast or slow, at most. Far worse than any real one.
pub(super) const DRIFT_PPM_MAX: u64 = 10_000;

impl Plan {
    /// Gives the world its habits.
    pub(super) fn make_busy(&mut self, rng: &Rng, options: &Options) {
        let drawn = HABITS.iter().filter(|(_, chance)| rng.permille(*chance));
        self.habits = drawn.map(|(habit, _)| *habit).collect();
        let newcomers = usize::try_from(rng.between(1, 2)).unwrap_or(1);
        if self.habits.has(Part::Newcomers) {
            let names = ["d", "e"][..newcomers].iter();
            self.newcomers = names.map(|name| NodeName((*name).to_owned())).collect();
        }
        if rng.permille(MANY_CHANCE) {
            self.workload.requests = rng.between(MANY.0, MANY.1);
            self.signers.truncate(1);
        }
        if options.lossy && options.accept_loss {
            // Whoever accepts a loss cannot tell what was ours: the documents say to hold such txs.
            self.lane.on_foreign_nonce = OnForeignNonce::Hold;
            self.habits = self.habits.with(Part::Operator);
        } else if options.lossy {
            self.habits = self.habits.minus(Part::Operator);
        }
        if options.calm && rng.permille(POISON) {
            self.poison(rng);
        }
        self.chain.forgets = !options.calm && rng.permille(FORGETS);
        // A store that loses commits loses loans, and nobody can be held to what he was told of them.
        if rng.permille(LOANS) && !options.lossy && self.poison.is_none() {
            self.habits = self.habits.with(Part::Loans);
            self.loans = Some(Loans::new(rng));
        }
    }

    fn poison(&mut self, rng: &Rng) {
        let beside = BESIDE_POISON.iter().copied();
        let beside: Parts = beside.filter(|habit| self.habits.has(*habit)).collect();
        self.habits = beside.with(Part::Poison);
        self.newcomers.clear();
        // Otherwise clients go from node to node until they find the keeper.
        self.non_keeper = NonKeeper::Forward;
        self.poison = Some(Poison {
            account: POISONED,
            way: *rng.pick(&PoisonWay::ALL),
        });
    }

    /// Makes it smaller, by hand.
    pub(super) fn change(&mut self, changes: &Changes) {
        let Changes {
            without,
            requests,
            lanes,
            nodes,
            strikes,
        } = *changes;
        self.leave_out(without);
        self.requests_max = requests;
        self.lanes_max = lanes.or(self.lanes_max);
        self.strikes_max = strikes;
        self.nodes.truncate(nodes.unwrap_or(usize::MAX).max(1));
    }

    fn leave_out(&mut self, without: Parts) {
        self.without = without;
        let lines = [
            (Part::StoreLine, &mut self.store_line),
            (Part::PeerLine, &mut self.peer_line),
            (Part::ChainLine, &mut self.chain.line),
        ];
        for (part, line) in lines {
            if without.has(part) {
                *line = WireFaults::healthy(line.travel_ms_max);
            }
        }
        self.clock_jumps &= !without.has(Part::ClockJumps);
        self.failovers &= !without.has(Part::Failovers);
        self.lossy_failover = self.lossy_failover.filter(|_| !without.has(Part::Loss));
        self.poison = self.poison.filter(|_| !without.has(Part::Poison));
        self.loans = self.loans.filter(|_| !without.has(Part::Loans));
        let numbers = [
            (Part::Foreign, &mut self.chain.foreign_max),
            (Part::Lag, &mut self.chain.lag_for_good),
            (Part::UnsignedEnvelope, &mut self.unsigned),
            (Part::BadRequests, &mut self.workload.reverting),
            (Part::BadRequests, &mut self.workload.unsignable),
            (Part::BadRequests, &mut self.workload.rejected),
            (Part::BadRequests, &mut self.workload.disputed),
            (Part::BadRequests, &mut self.workload.wavering),
        ];
        for (part, number) in numbers {
            if without.has(part) {
                *number = 0;
            }
        }
        if without.has(Part::Stale) {
            self.chain.staleness = Staleness::NONE;
        }
        if without.has(Part::Newcomers) {
            self.newcomers.clear();
        }
    }

    /// Whether those who use the cluster have this habit.
    #[must_use]
    pub fn has(&self, habit: Part) -> bool {
        self.habits.has(habit) && self.lets(habit)
    }

    /// Whether this may happen.
    #[must_use]
    pub fn lets(&self, part: Part) -> bool {
        !self.without.has(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(seed: u64, options: Options) -> Plan {
        let rng = Rng::new(seed);
        let mut plan = Plan::stormy(&rng);
        plan.make_busy(&rng, &options);
        plan
    }

    #[test]
    fn every_habit_comes_and_poison_comes_alone() {
        let calm = Options {
            calm: true,
            busy: true,
            ..Options::default()
        };
        let plans: Vec<Plan> = (0..200).map(|seed| busy(seed, calm)).collect();
        for (habit, _) in HABITS {
            assert!(plans.iter().any(|plan| plan.has(habit)), "{habit:?}");
        }
        let poisoned: Vec<&Plan> = plans.iter().filter(|plan| plan.poison.is_some()).collect();
        assert!(poisoned.len() > 50);
        for plan in poisoned {
            assert!(plan.has(Part::Poison) && !plan.has(Part::Restarts));
        }
    }

    #[test]
    fn what_is_left_out_is_gone() {
        let without: Parts = super::super::parts::PARTS
            .iter()
            .map(|(part, _)| *part)
            .collect();
        let changes = Changes {
            without,
            nodes: Some(1),
            ..Changes::default()
        };
        for seed in 0..50 {
            let mut plan = busy(seed, Options::default());
            plan.change(&changes);
            assert_eq!((plan.nodes.len(), plan.newcomers.len()), (1, 0));
            assert_eq!((plan.chain.foreign_max, plan.unsigned), (0, 0));
            assert_eq!(plan.store_line.answer_lost, 0);
            assert!(!plan.failovers && !plan.has(Part::Readers));
        }
    }
}
