//! Combines the reports of several endpoints on one envelope.

use domain::SendOutcome;

/// The result of one endpoint for an envelope.
#[derive(Clone, Debug)]
pub(super) enum SendReport {
    /// From its answer, or from the failure.
    Outcome(SendOutcome),
    /// Nothing was sent, because the endpoint serves another chain. Its name and the reason.
    WrongChain(String),
}

/// The reports so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// The outcome with the highest [`weight`].
    strongest: Option<SendOutcome>,
    rejections: usize,
    wrong_chain_count: usize,
    wrong_chain_reason: Option<String>,
}

impl Tally {
    /// Adds a report. If one endpoint may have accepted the bytes, a refusal of another does not undo that.
    pub(super) fn add_report(&mut self, report: SendReport) {
        match report {
            SendReport::WrongChain(why) => {
                self.wrong_chain_count += 1;
                self.wrong_chain_reason.get_or_insert(why);
            }
            SendReport::Outcome(outcome) => {
                if let SendOutcome::Rejected(_) | SendOutcome::GasTooLow(_) = outcome {
                    self.rejections += 1;
                }
                let counts_more = self
                    .strongest
                    .as_ref()
                    .is_none_or(|strongest| weight(&outcome) > weight(strongest));
                if counts_more {
                    self.strongest = Some(outcome);
                }
            }
        }
    }

    /// Whether to send to another endpoint. Not if a foreign tx is pending at the nonce: the other nodes might
    /// then prefer the lane's tx.
    pub(super) fn is_undecided(&self) -> bool {
        self.strongest
            .as_ref()
            .is_none_or(|strongest| match strongest {
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
                | SendOutcome::GasTooLow(_)
                | SendOutcome::Unknown(_)
                | SendOutcome::NotSent(_) => true,
            })
    }

    /// The combined outcome for a chain with `endpoints` endpoints. A rejection frees a nonce in the end, so all of
    /// them must reject: an unreachable one may have the tx.
    pub(super) fn outcome(self, endpoints: usize) -> SendOutcome {
        let is_rejected_by_all = self.rejections + self.wrong_chain_count >= endpoints;
        match self.strongest {
            Some(SendOutcome::Rejected(why) | SendOutcome::GasTooLow(why))
                if !is_rejected_by_all =>
            {
                SendOutcome::Refused(why)
            }
            Some(strongest) => strongest,
            None => SendOutcome::Busy(
                self.wrong_chain_reason
                    .unwrap_or_else(|| "not sent: the send deadline passed first".to_owned()),
            ),
        }
    }
}

/// Precedence: first "in flight", then "possibly in flight", then the outcome that best determines the next step.
fn weight(outcome: &SendOutcome) -> u8 {
    match outcome {
        SendOutcome::Accepted => 11,
        SendOutcome::NonceTooLow => 10,
        SendOutcome::Unknown(_) => 9,
        SendOutcome::ForeignPending(_) => 8,
        SendOutcome::ReplacementUnderpriced(_) => 7,
        SendOutcome::Underpriced(_) => 6,
        SendOutcome::Underfunded(_) => 5,
        SendOutcome::Full { .. } => 4,
        SendOutcome::Refused(_) => 3,
        // More gas would not help where another endpoint finds another defect.
        SendOutcome::Rejected(_) => 2,
        SendOutcome::GasTooLow(_) => 1,
        SendOutcome::Busy(_) | SendOutcome::NotSent(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combine(answers: &[SendOutcome], wrong_chain_count: usize, endpoints: usize) -> SendOutcome {
        let mut tally = Tally::default();
        for answer in answers {
            tally.add_report(SendReport::Outcome(answer.clone()));
        }
        for _ in 0..wrong_chain_count {
            tally.add_report(SendReport::WrongChain("another chain".to_owned()));
        }
        tally.outcome(endpoints)
    }

    #[test]
    fn possible_acceptance_outweighs_refusals() {
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
            SendOutcome::GasTooLow(text()),
        ];
        for refusal in refusals {
            for out in [
                SendOutcome::Accepted,
                SendOutcome::NonceTooLow,
                SendOutcome::Unknown(text()),
            ] {
                let (one, other) = (out.clone(), refusal.clone());
                assert_eq!(combine(&[one.clone(), other.clone()], 0, 2), out);
                assert_eq!(combine(&[other, one], 0, 2), out);
            }
        }
    }

    #[test]
    fn rejection_needs_all_endpoints() {
        let rejected = SendOutcome::Rejected("why".to_owned());
        let refused = SendOutcome::Refused("why".to_owned());
        let busy = SendOutcome::Busy("dead".to_owned());
        assert_eq!(combine(std::slice::from_ref(&rejected), 0, 1), rejected);
        assert_eq!(combine(std::slice::from_ref(&rejected), 0, 2), refused);
        assert_eq!(combine(&[rejected.clone(), busy.clone()], 0, 2), refused);
        assert_eq!(combine(&[busy, rejected.clone()], 0, 2), refused);
        assert_eq!(
            combine(&[rejected.clone(), rejected.clone()], 0, 2),
            rejected
        );
        let too_low = SendOutcome::GasTooLow("gas".to_owned());
        assert_eq!(combine(&[too_low.clone(), too_low.clone()], 0, 2), too_low);
        assert_eq!(
            combine(&[too_low.clone(), rejected.clone()], 0, 2),
            rejected
        );
        let one_of_two = combine(std::slice::from_ref(&too_low), 0, 2);
        assert_eq!(one_of_two, SendOutcome::Refused("gas".to_owned()));
        // An endpoint of another chain never gets the bytes.
        assert_eq!(combine(std::slice::from_ref(&rejected), 1, 2), rejected);
        assert_eq!(
            combine(&[], 1, 1),
            SendOutcome::Busy("another chain".to_owned())
        );
    }
}
