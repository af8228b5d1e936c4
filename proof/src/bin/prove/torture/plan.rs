//! The plan: drawn from a seed in advance, so that the same seed has the same faults at the same times. (The effect
//! on the processes depends on the machine.)

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::torture::fault_kind::{FaultKind, NODES, Target};

/// Load without faults at the beginning.
const LEAD: Duration = Duration::from_secs(3);

/// No new fault in the last seconds.
const TAIL: Duration = Duration::from_secs(5);

/// The minimum pause of a target after a fault.
const REST: Duration = Duration::from_millis(1_500);

/// More faults than required: some may have nothing to do.
const SPARE_PERCENT: usize = 15;

/// Percentage of faults that follow another one closely.
const AT_ONCE_PERCENT: u32 = 30;

/// Their distance from it.
const FOLLOW_UP: Duration = Duration::from_millis(1_200);

/// Draws until the targets are free.
const TRIES_MAX: usize = 60;

/// Of these, draws of the kind that is due.
const DUE_TRIES: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFault {
    /// The index in the plan.
    pub(crate) number: usize,
    /// Time since the start of the load.
    pub(crate) at: Duration,
    pub(crate) kind: FaultKind,
    /// The affected nodes.
    pub(crate) nodes: Vec<usize>,
    pub(crate) lasts: Duration,
    /// The seed of its random decisions.
    pub(crate) seed: u64,
}

impl PlannedFault {
    pub(crate) fn targets(&self) -> Vec<Target> {
        self.kind.targets(&self.nodes)
    }

    /// For messages.
    pub(crate) fn text(&self) -> String {
        let nodes: String = self.nodes.iter().map(|node| letter(*node)).collect();
        let of = if nodes.is_empty() { "" } else { " " };
        format!("{}{of}{nodes}", self.kind.name())
    }
}

/// The node's name.
pub(crate) fn letter(node: usize) -> char {
    (b'a'..=b'z').map(char::from).nth(node).unwrap_or('?')
}

/// Duration and number of faults.
#[derive(Clone, Debug)]
pub(crate) struct PlanRequest {
    pub(crate) seed: u64,
    pub(crate) time: Duration,
    pub(crate) faults_min: usize,
    pub(crate) kinds: Vec<FaultKind>,
}

/// Draws the plan, in chronological order.
pub(crate) fn draw(wanted: &PlanRequest) -> Vec<PlannedFault> {
    let mut dice = StdRng::seed_from_u64(wanted.seed);
    let count = wanted.faults_min * (100 + SPARE_PERCENT) / 100 + 1;
    let span = wanted.time.saturating_sub(LEAD + TAIL);
    let slot = span / u32::try_from(count).unwrap_or(u32::MAX);
    let mut free: BTreeMap<Target, Duration> = BTreeMap::new();
    let mut faults: Vec<PlannedFault> = Vec::new();
    let mut before = LEAD;
    // Each kind once, spread over the time; the others by weight.
    let mut deck = wanted.kinds.clone();
    deck.shuffle(&mut dice);
    for number in 0..count {
        let own = LEAD + slot * u32::try_from(number).unwrap_or(u32::MAX);
        let at = if dice.random_ratio(AT_ONCE_PERCENT, 100) {
            before + FOLLOW_UP.mul_f64(dice.random())
        } else {
            own + slot.mul_f64(dice.random_range(0.0..0.9))
        };
        let allocated = wanted.kinds.len() - deck.len();
        let is_due = allocated * count < (number + 1) * wanted.kinds.len();
        let due = deck.last().filter(|_| is_due).copied();
        let fault = draw_one(&mut dice, number, at, due, &wanted.kinds, &free);
        if fault.at > LEAD + span {
            continue; // its targets were never free
        }
        if due == Some(fault.kind) {
            deck.pop();
        }
        for target in fault.targets() {
            free.insert(target, fault.at + fault.lasts + REST);
        }
        before = fault.at;
        faults.push(fault);
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

/// A fault at this time, of the due kind if possible; later if its targets are not free.
fn draw_one(
    dice: &mut StdRng,
    number: usize,
    at: Duration,
    due: Option<FaultKind>,
    kinds: &[FaultKind],
    free: &BTreeMap<Target, Duration>,
) -> PlannedFault {
    let is_free_at = |fault: &PlannedFault| {
        let targets = fault.targets();
        let times = targets.iter().filter_map(|target| free.get(target));
        times.max().copied().unwrap_or_default()
    };
    let mut drawn = None;
    for attempt in 0..TRIES_MAX {
        let by_weight = weighted(dice, kinds);
        let kind = due.filter(|_| attempt < DUE_TRIES).unwrap_or(by_weight);
        let mut nodes: Vec<usize> = (0..NODES).collect();
        nodes.shuffle(dice);
        nodes.truncate(kind.picks());
        nodes.sort_unstable();
        let (least, most) = kind.lasts();
        let fault = PlannedFault {
            number,
            at,
            kind,
            nodes,
            lasts: dice.random_range(least..=most),
            seed: dice.random(),
        };
        let is_free = is_free_at(&fault) <= at;
        drawn = Some(fault);
        if is_free {
            break;
        }
    }
    let fault = drawn.expect("something was drawn");
    let at = at.max(is_free_at(&fault));
    PlannedFault { at, ..fault }
}

fn weighted(dice: &mut StdRng, kinds: &[FaultKind]) -> FaultKind {
    let all: u32 = kinds.iter().map(|kind| kind.weight()).sum();
    let mut left = dice.random_range(0..all);
    for kind in kinds {
        match left.checked_sub(kind.weight()) {
            Some(rest) => left = rest,
            None => return *kind,
        }
    }
    unreachable!("what is left is less than all weights together")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(seed: u64) -> PlanRequest {
        PlanRequest {
            seed,
            time: Duration::from_secs(1_800),
            faults_min: 200,
            kinds: FaultKind::ALL.to_vec(),
        }
    }

    #[test]
    fn same_seed_gives_the_same_plan() {
        assert_eq!(draw(&wanted(7)), draw(&wanted(7)));
        assert_ne!(draw(&wanted(7)), draw(&wanted(8)));
    }

    #[test]
    fn every_kind_is_planned_often_enough() {
        for seed in 0..50 {
            let faults = draw(&wanted(seed));
            assert!(faults.len() >= 210, "{} of seed {seed}", faults.len());
            assert!(faults.iter().all(|s| s.at < Duration::from_secs(1_800)));
            for kind in FaultKind::ALL {
                let of_kind = faults.iter().filter(|fault| fault.kind == kind);
                assert!(of_kind.count() > 0, "no {} of seed {seed}", kind.name());
            }
        }
    }

    #[test]
    fn short_plan_repeats_little() {
        for seed in 0..50 {
            let faults = draw(&PlanRequest {
                time: Duration::from_secs(120),
                faults_min: 13,
                ..wanted(seed)
            });
            let mut kinds: Vec<FaultKind> = faults.iter().map(|fault| fault.kind).collect();
            kinds.sort_unstable();
            kinds.dedup();
            assert!(kinds.len() >= 11, "{} kinds of seed {seed}", kinds.len());
        }
    }

    #[test]
    fn faults_overlap_but_never_on_one_target() {
        for seed in 0..50 {
            let faults = draw(&wanted(seed));
            let mut overlaps = 0;
            for (at, fault) in faults.iter().enumerate() {
                let later = &faults[at + 1..];
                let end = fault.at + fault.lasts;
                for other in later.iter().filter(|other| other.at < end) {
                    overlaps += 1;
                    let taken = fault.targets();
                    let is_apart = other.targets().iter().all(|t| !taken.contains(t));
                    assert!(is_apart, "{fault:?} and {other:?} of seed {seed}");
                }
            }
            assert!(overlaps >= 20, "{overlaps} of seed {seed}");
        }
    }

    #[test]
    fn single_kind_keeps_its_pause() {
        let kinds = vec![FaultKind::Promotion];
        let faults = draw(&PlanRequest { kinds, ..wanted(3) });
        assert!(faults.len() > 100);
        let are_apart = |pair: &[PlannedFault]| pair[1].at >= pair[0].at + pair[0].lasts;
        assert!(faults.windows(2).all(are_apart));
    }
}
