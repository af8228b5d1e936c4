//! What the answers of several endpoints to one envelope mean together.

use domain::SendOutcome;

/// What one endpoint made of an envelope.
#[derive(Clone, Debug)]
pub(super) enum Heard {
    /// Its answer, or what is known without one.
    Outcome(SendOutcome),
    /// Nothing was sent: it is none of this chain. Its name and why.
    Stranger(String),
}

/// The answers so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// The one that counts most.
    told: Option<SendOutcome>,
    rejections: usize,
    strangers: usize,
    stranger: Option<String>,
}

impl Tally {
    /// Takes one more answer in. Where one endpoint may have taken the bytes, a refusal of another
    /// does not take them back.
    pub(super) fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Stranger(why) => {
                self.strangers += 1;
                self.stranger.get_or_insert(why);
            }
            Heard::Outcome(outcome) => {
                if let SendOutcome::Rejected(_) = outcome {
                    self.rejections += 1;
                }
                let counts_more = self
                    .told
                    .as_ref()
                    .is_none_or(|told| weight(&outcome) > weight(told));
                if counts_more {
                    self.told = Some(outcome);
                }
            }
        }
    }

    /// Whether another endpoint should be asked. Not where a transaction of somebody else waits at
    /// the nonce: other nodes would be made to prefer ours.
    pub(super) fn is_open(&self) -> bool {
        self.told.as_ref().is_none_or(|told| match told {
            SendOutcome::Accepted
            | SendOutcome::NonceTooLow
            | SendOutcome::ReplacementUnderpriced(_)
            | SendOutcome::ForeignPending(_) => false,
            SendOutcome::Underpriced(_)
            | SendOutcome::Underfunded(_)
            | SendOutcome::Full { .. }
            | SendOutcome::Busy(_)
            | SendOutcome::Refused(_)
            | SendOutcome::Rejected(_)
            | SendOutcome::Unknown(_)
            | SendOutcome::NotSent(_) => true,
        })
    }

    /// The result, of a chain with so many endpoints. A rejection frees a nonce in the end, so all
    /// of them must have said so: one that could not be asked may know better.
    pub(super) fn outcome(self, endpoints: usize) -> SendOutcome {
        let heard_all = self.rejections + self.strangers >= endpoints;
        match self.told {
            Some(SendOutcome::Rejected(why)) if !heard_all => SendOutcome::Refused(why),
            Some(told) => told,
            None => SendOutcome::Busy(
                self.stranger
                    .unwrap_or_else(|| "not sent: time was up before its turn".to_owned()),
            ),
        }
    }
}

/// What counts more: first that it is out, then that it may be out, then what says most about what
/// to do.
fn weight(outcome: &SendOutcome) -> u8 {
    match outcome {
        SendOutcome::Accepted => 10,
        SendOutcome::NonceTooLow => 9,
        SendOutcome::Unknown(_) => 8,
        SendOutcome::ForeignPending(_) => 7,
        SendOutcome::ReplacementUnderpriced(_) => 6,
        SendOutcome::Underpriced(_) => 5,
        SendOutcome::Underfunded(_) => 4,
        SendOutcome::Full { .. } => 3,
        SendOutcome::Refused(_) => 2,
        SendOutcome::Rejected(_) => 1,
        SendOutcome::Busy(_) | SendOutcome::NotSent(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together(answers: &[SendOutcome], strangers: usize, endpoints: usize) -> SendOutcome {
        let mut tally = Tally::default();
        for answer in answers {
            tally.hear(Heard::Outcome(answer.clone()));
        }
        for _ in 0..strangers {
            tally.hear(Heard::Stranger("another chain".to_owned()));
        }
        tally.outcome(endpoints)
    }

    #[test]
    fn what_may_be_out_wins_over_refusals() {
        let text = String::new;
        let refusals = [
            SendOutcome::Underpriced(text()),
            SendOutcome::ReplacementUnderpriced(text()),
            SendOutcome::ForeignPending(text()),
            SendOutcome::Underfunded(text()),
            SendOutcome::Full {
                text: text(),
                most: None,
            },
            SendOutcome::Busy(text()),
            SendOutcome::Refused(text()),
            SendOutcome::Rejected(text()),
        ];
        for refusal in refusals {
            for out in [
                SendOutcome::Accepted,
                SendOutcome::NonceTooLow,
                SendOutcome::Unknown(text()),
            ] {
                let (one, other) = (out.clone(), refusal.clone());
                assert_eq!(together(&[one.clone(), other.clone()], 0, 2), out);
                assert_eq!(together(&[other, one], 0, 2), out);
            }
        }
    }

    #[test]
    fn a_rejection_needs_all_of_them() {
        let rejected = SendOutcome::Rejected("why".to_owned());
        let refused = SendOutcome::Refused("why".to_owned());
        let busy = SendOutcome::Busy("dead".to_owned());
        assert_eq!(together(std::slice::from_ref(&rejected), 0, 1), rejected);
        assert_eq!(together(std::slice::from_ref(&rejected), 0, 2), refused);
        assert_eq!(together(&[rejected.clone(), busy.clone()], 0, 2), refused);
        assert_eq!(together(&[busy, rejected.clone()], 0, 2), refused);
        assert_eq!(
            together(&[rejected.clone(), rejected.clone()], 0, 2),
            rejected
        );
        // What serves another chain never gets the bytes.
        assert_eq!(together(std::slice::from_ref(&rejected), 1, 2), rejected);
        assert_eq!(
            together(&[], 1, 1),
            SendOutcome::Busy("another chain".to_owned())
        );
    }
}
