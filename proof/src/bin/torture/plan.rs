//! What will happen when: drawn from a seed before anything starts, so that the same seed brings the same
//! faults at the same times. (What the processes make of them is up to the machine.)

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::kind::{Kind, NODES, Target};

/// The load runs so long before the first fault.
const LEAD: Duration = Duration::from_secs(3);

/// Nothing new happens in the last seconds.
const TAIL: Duration = Duration::from_secs(5);

/// How long a target is left alone after a fault, at least.
const REST: Duration = Duration::from_millis(1_500);

/// More are planned than are asked for: some may find nothing to do.
const SPARE_PERCENT: usize = 15;

/// How many percent of the faults come on the heels of another one.
const AT_ONCE_PERCENT: u32 = 30;

/// They come so soon after it.
const HEELS: Duration = Duration::from_millis(1_200);

/// How often a fault is drawn whose targets are free.
const TRIES_MAX: usize = 60;

/// How often of them one of the kind that is due.
const DUE_TRIES: usize = 12;

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strike {
    /// Its place in the plan.
    pub(crate) number: usize,
    /// When, from the start of the load.
    pub(crate) at: Duration,
    pub(crate) kind: Kind,
    /// The nodes that it is about.
    pub(crate) nodes: Vec<usize>,
    pub(crate) lasts: Duration,
    /// Whatever else is left to chance.
    pub(crate) seed: u64,
}

impl Strike {
    pub(crate) fn targets(&self) -> Vec<Target> {
        self.kind.targets(&self.nodes)
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let nodes: String = self.nodes.iter().map(|node| letter(*node)).collect();
        let of = if nodes.is_empty() { "" } else { " " };
        format!("{}{of}{nodes}", self.kind.name())
    }
}

/// What a node is called.
pub(crate) fn letter(node: usize) -> char {
    (b'a'..=b'z').map(char::from).nth(node).unwrap_or('?')
}

/// How long it goes on and how much is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) seed: u64,
    pub(crate) time: Duration,
    pub(crate) faults_min: usize,
    pub(crate) kinds: Vec<Kind>,
}

/// Draws the plan, in the order of time.
pub(crate) fn draw(wanted: &Wanted) -> Vec<Strike> {
    let mut dice = StdRng::seed_from_u64(wanted.seed);
    let count = wanted.faults_min * (100 + SPARE_PERCENT) / 100 + 1;
    let span = wanted.time.saturating_sub(LEAD + TAIL);
    let slot = span / u32::try_from(count).unwrap_or(u32::MAX);
    let mut free: BTreeMap<Target, Duration> = BTreeMap::new();
    let mut strikes: Vec<Strike> = Vec::new();
    let mut before = LEAD;
    // Each kind once, spread over the time; the others by their weights.
    let mut deck = wanted.kinds.clone();
    deck.shuffle(&mut dice);
    for number in 0..count {
        let own = LEAD + slot * u32::try_from(number).unwrap_or(u32::MAX);
        let at = if dice.random_ratio(AT_ONCE_PERCENT, 100) {
            before + HEELS.mul_f64(dice.random())
        } else {
            own + slot.mul_f64(dice.random_range(0.0..0.9))
        };
        let dealt = wanted.kinds.len() - deck.len();
        let is_due = dealt * count < (number + 1) * wanted.kinds.len();
        let due = deck.last().filter(|_| is_due).copied();
        let strike = draw_one(&mut dice, number, at, due, &wanted.kinds, &free);
        if strike.at > LEAD + span {
            continue; // its targets were never free again
        }
        if due == Some(strike.kind) {
            deck.pop();
        }
        for target in strike.targets() {
            free.insert(target, strike.at + strike.lasts + REST);
        }
        before = strike.at;
        strikes.push(strike);
    }
    strikes.sort_by_key(|strike| strike.at);
    strikes
}

/// A fault at this time, of the kind that is due if possible; later when what it needs is not free before.
fn draw_one(
    dice: &mut StdRng,
    number: usize,
    at: Duration,
    due: Option<Kind>,
    kinds: &[Kind],
    free: &BTreeMap<Target, Duration>,
) -> Strike {
    let is_free_at = |strike: &Strike| {
        let targets = strike.targets();
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
        let strike = Strike {
            number,
            at,
            kind,
            nodes,
            lasts: dice.random_range(least..=most),
            seed: dice.random(),
        };
        let is_free = is_free_at(&strike) <= at;
        drawn = Some(strike);
        if is_free {
            break;
        }
    }
    let strike = drawn.expect("something was drawn");
    let at = at.max(is_free_at(&strike));
    Strike { at, ..strike }
}

fn weighted(dice: &mut StdRng, kinds: &[Kind]) -> Kind {
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

    fn wanted(seed: u64) -> Wanted {
        Wanted {
            seed,
            time: Duration::from_secs(1_800),
            faults_min: 200,
            kinds: Kind::ALL.to_vec(),
        }
    }

    #[test]
    fn the_same_seed_plans_the_same() {
        assert_eq!(draw(&wanted(7)), draw(&wanted(7)));
        assert_ne!(draw(&wanted(7)), draw(&wanted(8)));
    }

    #[test]
    fn enough_is_planned_of_every_kind_in_time() {
        for seed in 0..50 {
            let strikes = draw(&wanted(seed));
            assert!(strikes.len() >= 210, "{} of seed {seed}", strikes.len());
            assert!(strikes.iter().all(|s| s.at < Duration::from_secs(1_800)));
            for kind in Kind::ALL {
                let of_kind = strikes.iter().filter(|strike| strike.kind == kind);
                assert!(of_kind.count() > 0, "no {} of seed {seed}", kind.name());
            }
        }
    }

    #[test]
    fn a_short_plan_repeats_little() {
        for seed in 0..50 {
            let strikes = draw(&Wanted {
                time: Duration::from_secs(120),
                faults_min: 13,
                ..wanted(seed)
            });
            let mut kinds: Vec<Kind> = strikes.iter().map(|strike| strike.kind).collect();
            kinds.sort_unstable();
            kinds.dedup();
            assert!(kinds.len() >= 11, "{} kinds of seed {seed}", kinds.len());
        }
    }

    #[test]
    fn nothing_is_aimed_at_twice_at_once_and_some_overlap() {
        for seed in 0..50 {
            let strikes = draw(&wanted(seed));
            let mut overlaps = 0;
            for (at, strike) in strikes.iter().enumerate() {
                let later = &strikes[at + 1..];
                let end = strike.at + strike.lasts;
                for other in later.iter().filter(|other| other.at < end) {
                    overlaps += 1;
                    let taken = strike.targets();
                    let is_apart = other.targets().iter().all(|t| !taken.contains(t));
                    assert!(is_apart, "{strike:?} and {other:?} of seed {seed}");
                }
            }
            assert!(overlaps >= 20, "{overlaps} of seed {seed}");
        }
    }

    #[test]
    fn one_kind_alone_keeps_its_distance() {
        let kinds = vec![Kind::Promotion];
        let strikes = draw(&Wanted { kinds, ..wanted(3) });
        assert!(strikes.len() > 100);
        let are_apart = |pair: &[Strike]| pair[1].at >= pair[0].at + pair[0].lasts;
        assert!(strikes.windows(2).all(are_apart));
    }
}
