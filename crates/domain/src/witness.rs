//! What a node remembers of a lane outside of the store, and what that proves about the store.

use crate::{History, Nonce, Token};

/// The last commit of a lane that a node has seen durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneWitness {
    /// The store's history when the node opened the lane.
    pub history: History,
    /// The token under which it was committed.
    pub token: Token,
    /// How many commits the lane had.
    pub batch_seq: u64,
    /// The cursor after it.
    pub next_nonce: Nonce,
}

/// What a witness proves about a lane of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WitnessVerdict {
    /// Nothing: the store has all that was seen, or it is another store, or a restore was declared since.
    NoOpinion,
    /// The store is on an earlier history than when the lane was seen, or the lane's token moved backwards: it may lack
    /// commits.
    Suspect,
    /// The store lacks commits of this lane.
    Lost,
}

impl LaneWitness {
    /// Judges a lane that has this token and `batch_seq` commits in a store on this history; a lane that is missing has
    /// none of either.
    #[must_use]
    pub fn judge(&self, present: History, token: Token, batch_seq: u64) -> WitnessVerdict {
        let is_other_store = self.history.store != present.store;
        if is_other_store || self.history.restores < present.restores {
            return WitnessVerdict::NoOpinion;
        }
        if batch_seq < self.batch_seq {
            WitnessVerdict::Lost
        } else if present.is_behind(self.history) || token < self.token {
            WitnessVerdict::Suspect
        } else {
            WitnessVerdict::NoOpinion
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESENT: History = History {
        store: 7,
        timeline: 2,
        restores: 1,
        suspicions: 1,
    };

    fn witness(history: History) -> LaneWitness {
        LaneWitness {
            history,
            token: Token(3),
            batch_seq: 10,
            next_nonce: Nonce(9),
        }
    }

    #[test]
    fn fewer_commits_in_the_same_store_are_lost_commits() {
        let seen = witness(PRESENT);
        assert_eq!(seen.judge(PRESENT, Token(3), 9), WitnessVerdict::Lost);
        assert_eq!(seen.judge(PRESENT, Token(3), 0), WitnessVerdict::Lost);
        assert_eq!(seen.judge(PRESENT, Token(3), 10), WitnessVerdict::NoOpinion);
        // Another node has committed since.
        assert_eq!(seen.judge(PRESENT, Token(3), 11), WitnessVerdict::NoOpinion);
        let promoted = History {
            timeline: 3,
            ..PRESENT
        };
        assert_eq!(seen.judge(promoted, Token(3), 9), WitnessVerdict::Lost);
        assert_eq!(seen.judge(PRESENT, Token(2), 10), WitnessVerdict::Suspect);
        assert_eq!(seen.judge(PRESENT, Token(4), 10), WitnessVerdict::NoOpinion);
    }

    #[test]
    fn another_store_and_a_declared_restore_end_the_opinion() {
        let other = History {
            store: 8,
            ..PRESENT
        };
        assert_eq!(
            witness(other).judge(PRESENT, Token(3), 0),
            WitnessVerdict::NoOpinion
        );
        let undeclared = History {
            restores: 0,
            ..PRESENT
        };
        let seen = witness(undeclared);
        assert_eq!(seen.judge(PRESENT, Token(3), 0), WitnessVerdict::NoOpinion);
    }

    #[test]
    fn store_on_an_earlier_history_is_suspect_in_every_lane() {
        let later = [
            History {
                restores: 2,
                ..PRESENT
            },
            History {
                timeline: 3,
                ..PRESENT
            },
            History {
                suspicions: 2,
                ..PRESENT
            },
        ];
        for seen in later.map(witness) {
            assert_eq!(seen.judge(PRESENT, Token(3), 9), WitnessVerdict::Lost);
            assert_eq!(seen.judge(PRESENT, Token(3), 10), WitnessVerdict::Suspect);
            assert_eq!(seen.judge(PRESENT, Token(3), 11), WitnessVerdict::Suspect);
        }
    }
}
