//! Which order comes next: all of them one after the other, or some by chance.

use sim::rng::Rng;

/// How often an order is tried again that went another way than before. Only where several statements
/// wait for the same row does the database decide which is first, and then few tries suffice.
const TRIES_MAX: u32 = 50;

/// The orders of one set of actors. At each point the actors that can go on are counted anew, so an
/// order never holds a turn that is not possible, and each possible one comes.
pub(crate) struct Orders {
    choice: Choice,
    rng: Rng,
    /// The turn that comes next.
    at: usize,
}

enum Choice {
    /// Every order: the last turn that has an untried alternative is changed, all after it are new.
    All {
        forks: Vec<Fork>,
        /// Since when this order goes another way than it did before.
        strayed_at: Option<usize>,
        tries: u32,
    },
    /// By chance.
    Some { left: u64 },
}

/// A point at which several actors could go on.
#[derive(Clone, Copy)]
struct Fork {
    taken: usize,
    ways: usize,
}

impl Orders {
    /// All of them.
    pub(crate) fn all(rng: Rng) -> Self {
        let choice = Choice::All {
            forks: Vec::new(),
            strayed_at: None,
            tries: 0,
        };
        Self { choice, rng, at: 0 }
    }

    /// So many, by chance.
    pub(crate) fn some(count: u64, rng: Rng) -> Self {
        let choice = Choice::Some { left: count };
        Self { choice, rng, at: 0 }
    }

    /// Some of all, by chance, instead of all that are left.
    pub(crate) fn rest_by_chance(self, count: u64) -> Self {
        Self::some(count, self.rng)
    }

    /// Starts an order from its beginning.
    pub(crate) fn begin(&mut self) {
        self.at = 0;
        if let Choice::All { strayed_at, .. } = &mut self.choice {
            *strayed_at = None;
        }
    }

    /// Which of so many actors goes on.
    pub(crate) fn choose(&mut self, ways: usize) -> usize {
        let at = self.at;
        self.at += 1;
        if let Choice::All {
            forks, strayed_at, ..
        } = &mut self.choice
        {
            if at == forks.len() && strayed_at.is_none() {
                forks.push(Fork { taken: 0, ways });
            }
            match forks.get(at) {
                Some(fork) if strayed_at.is_none() && fork.ways == ways => return fork.taken,
                Some(_) | None => {
                    strayed_at.get_or_insert(at);
                }
            }
        }
        let ways = u64::try_from(ways).expect("a handful of actors");
        usize::try_from(self.rng.below(ways)).expect("it is below a handful")
    }

    /// Goes on to the next order; false when there is none.
    pub(crate) fn advance(&mut self) -> bool {
        match &mut self.choice {
            Choice::All {
                forks,
                strayed_at,
                tries,
            } => {
                if let Some(since) = strayed_at {
                    // It was an order too, but not the one that was due.
                    *tries += 1;
                    if *tries < TRIES_MAX {
                        return true;
                    }
                    forks.truncate(*since);
                } else {
                    forks.truncate(self.at);
                }
                *tries = 0;
                while let Some(fork) = forks.pop() {
                    if fork.taken + 1 < fork.ways {
                        forks.push(Fork {
                            taken: fork.taken + 1,
                            ..fork
                        });
                        return true;
                    }
                }
                false
            }
            Choice::Some { left } => {
                *left = left.saturating_sub(1);
                *left > 0
            }
        }
    }

    /// Whether the last order was one that came by itself instead of the one that was due.
    pub(crate) fn has_strayed(&self) -> bool {
        match &self.choice {
            Choice::All { strayed_at, .. } => strayed_at.is_some(),
            Choice::Some { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Plays actors with so many turns each; `is_shy` decides when the last one cannot continue.
    fn order(orders: &mut Orders, turns: &[usize], mut is_shy: impl FnMut() -> bool) -> String {
        orders.begin();
        let mut left = turns.to_vec();
        let mut order = String::new();
        while left.iter().any(|left| *left > 0) {
            let mut ready: Vec<usize> = (0..left.len()).filter(|n| left[*n] > 0).collect();
            if ready.len() > 1 && is_shy() {
                ready.pop();
            }
            let actor = ready[orders.choose(ready.len())];
            left[actor] -= 1;
            order.push_str(&actor.to_string());
        }
        order
    }

    #[test]
    fn every_order_is_played_once() {
        let mut orders = Orders::all(Rng::new(1));
        let mut seen = BTreeSet::new();
        loop {
            assert!(seen.insert(order(&mut orders, &[2, 2], || false)), "twice");
            assert!(!orders.has_strayed());
            if !orders.advance() {
                break;
            }
        }
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn every_order_is_played_although_some_stray() {
        let (mut orders, chance) = (Orders::all(Rng::new(1)), Rng::new(2));
        let mut seen = BTreeSet::new();
        loop {
            seen.insert(order(&mut orders, &[1, 2, 1], || chance.permille(100)));
            if !orders.advance() {
                break;
            }
        }
        assert_eq!(seen.len(), 12);
    }
}
