//! Lease arithmetic: who may try to take a lane, and how long an owner may trust its lease.
//!
//! `expires_at` decides who *may try*, never who may write: writing is decided by the fence. But the
//! chain cannot check a fence, so every send first checks [`LeaseTrust::holds`].

use std::time::Duration;

use crate::{Incarnation, MonotonicTime, NodeName, Timestamp, Token};

/// The times that a lease is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// How long a grant or renewal lasts.
    pub duration: Duration,
    /// How often a keeper renews.
    pub renew_interval: Duration,
    /// How long after its end a lease of another is still left alone.
    pub clock_skew_allowance: Duration,
    /// After how long without work a lane is released.
    pub idle_release: Duration,
}

/// Those of the configuration file; a test of the binary compares them.
impl Default for LeaseTerms {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(10),
            renew_interval: Duration::from_secs(3),
            clock_skew_allowance: Duration::from_secs(1),
            idle_release: Duration::from_secs(60),
        }
    }
}

/// The heartbeat row of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The node that holds it.
    pub owner: NodeName,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
    /// The token of this holding.
    pub token: Token,
    /// By the store's clock.
    pub expires_at: Timestamp,
}

/// A node that requests lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Its name.
    pub node: NodeName,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// How long a grant lasts.
    pub duration: Duration,
    /// How long after its end a lease of another is left alone.
    pub skew: Duration,
    /// Incarnations of other nodes that the requester saw at work within the last lease, by its own monotonic
    /// clock. Their leases are left alone, even when they have expired by the store's clock: it may
    /// have jumped.
    pub alive: Vec<Incarnation>,
    /// Incarnations of other nodes of which the requester saw nothing for a whole lease, by its own monotonic
    /// clock. Their lanes may be taken over, even when they last by the store's clock.
    pub silent: Vec<Incarnation>,
}

/// What a node that requests a lane gets: the arrows of the lease diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseDecision {
    /// No node ever held it: token 1.
    Insert,
    /// It is ours and runs: extended, same token.
    Renew,
    /// It expired, was released, or belongs to an earlier incarnation of this node: token + 1.
    TakeOver,
    /// Another node holds it.
    NotKeeper,
}

impl Lease {
    /// The `expires_at` of a released lane: long over, whatever the skew.
    pub const RELEASED: Timestamp = Timestamp(0);

    /// Decides on a request for the lane at `now` (the store's clock).
    ///
    /// A restarted node takes its own lanes over at once: its earlier incarnation is over by definition,
    /// because a node that sees its membership row replaced exits.
    #[must_use]
    pub fn decide(
        held: Option<&Self>,
        lease_request: &LeaseRequest,
        now: Timestamp,
    ) -> LeaseDecision {
        let Some(held) = held else {
            return LeaseDecision::Insert;
        };
        let is_over = held.expires_at.plus(lease_request.skew) <= now;
        if held.owner != lease_request.node && held.is_live_for(lease_request, now) {
            LeaseDecision::NotKeeper
        } else if held.owner == lease_request.node
            && held.incarnation == lease_request.incarnation
            && !is_over
        {
            LeaseDecision::Renew
        } else {
            LeaseDecision::TakeOver
        }
    }

    /// The keeper that loses the lane to a requester; `None` when the requester takes its own lane again.
    #[must_use]
    pub fn previous_keeper_of(&self, lease_request: &LeaseRequest) -> Option<NodeName> {
        let is_own = self.incarnation == lease_request.incarnation;
        (self.owner != lease_request.node || !is_own).then(|| self.owner.clone())
    }

    /// Whether the requesting node must consider the owner alive.
    #[must_use]
    pub fn is_live_for(&self, lease_request: &LeaseRequest, now: Timestamp) -> bool {
        if self.expires_at == Self::RELEASED || lease_request.silent.contains(&self.incarnation) {
            return false;
        }
        self.expires_at.plus(lease_request.skew) > now
            || lease_request.alive.contains(&self.incarnation)
    }
}

/// How long the owner itself relies on a lease: two thirds of it, counted from before the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTrust {
    until: MonotonicTime,
}

impl LeaseTrust {
    /// A lease of `duration` that was requested at `requested_at` (read before the request left).
    #[must_use]
    pub fn from(requested_at: MonotonicTime, duration: Duration) -> Self {
        Self {
            until: requested_at.plus(two_thirds(duration)),
        }
    }

    /// Whether bytes may leave at `now`.
    #[must_use]
    pub fn holds(&self, now: MonotonicTime) -> bool {
        now < self.until
    }

    /// For how long bytes may still leave.
    #[must_use]
    pub fn left(&self, now: MonotonicTime) -> Duration {
        self.until.since(now)
    }
}

fn two_thirds(duration: Duration) -> Duration {
    let twice = duration.saturating_mul(2);
    twice.checked_div(3).unwrap_or(Duration::ZERO)
}

impl LeaseTerms {
    /// Says which relation between the times is broken, with the value, the rule and the fix.
    pub fn check(&self) -> Result<(), String> {
        if self.duration < Duration::from_secs(2) {
            return Err(format!(
                "lease.duration is {:?}, but a lease must last at least 2s: raise lease.duration",
                self.duration
            ));
        }
        let trusted = two_thirds(self.duration);
        if self.renew_interval.is_zero() || self.renew_interval.saturating_mul(2) > trusted {
            return Err(format!(
                "lease.renewInterval is {:?}, but two renewals must fit into the trusted two thirds \
                 of lease.duration ({trusted:?}): set lease.renewInterval to at most {:?}",
                self.renew_interval,
                trusted.checked_div(2).unwrap_or(Duration::ZERO)
            ));
        }
        if self.clock_skew_allowance >= self.duration {
            return Err(format!(
                "lease.clockSkewAllowance is {:?}, but it must be below lease.duration ({:?}): a \
                 lane would wait longer for the allowance than for the lease",
                self.clock_skew_allowance, self.duration
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "an overflow fails the test")]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    const SKEW: Duration = Duration::from_secs(1);

    fn lease(owner: &str, incarnation: u128, expires_at: u64) -> Lease {
        Lease {
            owner: NodeName(owner.into()),
            incarnation: Incarnation(Uuid::from_u128(incarnation)),
            token: Token(7),
            expires_at: Timestamp(expires_at),
        }
    }

    fn decide(held: Option<&Lease>, now: u64) -> LeaseDecision {
        Lease::decide(held, &lease_request(), Timestamp(now))
    }

    fn lease_request() -> LeaseRequest {
        LeaseRequest {
            node: NodeName("a".into()),
            incarnation: Incarnation(Uuid::from_u128(1)),
            duration: Duration::from_secs(10),
            skew: SKEW,
            alive: Vec::new(),
            silent: Vec::new(),
        }
    }

    #[test]
    fn own_observation_outweighs_a_clock_that_may_jump() {
        let of_b = lease("b", 3, 10_000);
        let b = vec![Incarnation(Uuid::from_u128(3))];
        let alive = LeaseRequest {
            alive: b.clone(),
            ..lease_request()
        };
        assert_eq!(
            Lease::decide(Some(&of_b), &alive, Timestamp(3_600_000)),
            LeaseDecision::NotKeeper
        );
        let silent = LeaseRequest {
            silent: b,
            ..lease_request()
        };
        assert_eq!(
            Lease::decide(Some(&of_b), &silent, Timestamp(1)),
            LeaseDecision::TakeOver
        );
        let released = lease("b", 3, 0);
        assert_eq!(
            Lease::decide(Some(&released), &alive, Timestamp(5)),
            LeaseDecision::TakeOver
        );
    }

    #[test]
    fn every_lease_decision_is_reached() {
        assert_eq!(decide(None, 0), LeaseDecision::Insert);
        assert_eq!(
            decide(Some(&lease("a", 1, 10_000)), 9_999),
            LeaseDecision::Renew
        );
        assert_eq!(
            decide(Some(&lease("a", 1, 10_000)), 10_999),
            LeaseDecision::Renew
        );
        assert_eq!(
            decide(Some(&lease("a", 1, 10_000)), 11_000),
            LeaseDecision::TakeOver
        );
        assert_eq!(
            decide(Some(&lease("a", 2, 10_000)), 1),
            LeaseDecision::TakeOver
        );
        assert_eq!(
            decide(Some(&lease("b", 3, 10_000)), 10_999),
            LeaseDecision::NotKeeper
        );
        assert_eq!(
            decide(Some(&lease("b", 3, 10_000)), 11_000),
            LeaseDecision::TakeOver
        );
    }

    #[test]
    fn default_terms_hold_and_broken_ones_name_the_fix() {
        let terms = LeaseTerms {
            duration: Duration::from_secs(10),
            renew_interval: Duration::from_secs(3),
            clock_skew_allowance: SKEW,
            idle_release: Duration::from_secs(60),
        };
        assert_eq!(terms.check(), Ok(()));
        let slow = LeaseTerms {
            renew_interval: Duration::from_secs(4),
            ..terms
        };
        assert!(
            slow.check()
                .unwrap_err()
                .contains("lease.renewInterval to at most")
        );
        let short = LeaseTerms {
            duration: Duration::from_secs(1),
            ..terms
        };
        assert!(short.check().is_err());
    }

    proptest! {
        /// The owner stops trusting before anyone else may try, whenever the store granted the
        /// lease between the request and the answer, and however far its clock is within the skew.
        #[test]
        fn trust_ends_before_others_may_try(
            asked in 0..1_000_000_u64, travel in 0..5_000_u64, duration_ms in 2_000..60_000_u64,
        ) {
            let duration = Duration::from_millis(duration_ms);
            let trust = LeaseTrust::from(MonotonicTime(asked * 1_000), duration);
            let granted = asked + travel;
            let others_from = granted + duration_ms + 1_000;
            prop_assert!(!trust.holds(MonotonicTime(others_from * 1_000)));
            prop_assert!(!trust.holds(MonotonicTime((asked + duration_ms * 2 / 3 + 1) * 1_000)));
            prop_assert!(trust.holds(MonotonicTime(asked * 1_000)));
        }
    }
}
