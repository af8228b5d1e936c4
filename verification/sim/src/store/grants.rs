//! Leases and members: acquisition, renewal, release, regrants, heartbeats.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::mutation::{self, Mutation};
use domain::lease::{Lease, LeaseDecision};
use domain::{GrantId, History, LaneId, LaneKey, LeaseGrant, RequestId, Timestamp, Token, TxId};
use engine::ports::{
    ACCEPTED_LOSS_GAP, AcquireOutcome, HeartbeatOutcome, LaneWork, LeaseRequest, Member,
    QueuedRequest, RegrantOutcome, RenewOutcome, StoreError, UnwatchedLane, UnwatchedLanes,
};

use super::rows::{LaneRow, Rows};

impl LaneRow {
    /// A repeat whose first answer was lost finds its own grant already stored.
    pub(super) fn may_regrant(&self, lease_grant: LeaseGrant, grant: GrantId) -> bool {
        self.is_held_by(lease_grant)
            || self.is_held_by(LeaseGrant {
                grant,
                ..lease_grant
            })
    }
}

impl Rows {
    pub(super) fn acquire(
        &mut self,
        lease_request: &LeaseRequest,
        key: LaneKey,
        grant: GrantId,
        now: Timestamp,
    ) -> AcquireOutcome {
        let history = self.history;
        let lane = self.lane_of(key);
        if let Some(reason) = &lane.halted {
            return AcquireOutcome::Halted(reason.clone());
        }
        let previous_keeper = lane.lease.as_ref();
        let previous_keeper =
            previous_keeper.and_then(|held| held.previous_keeper_of(lease_request));
        let (token, previous_keeper) = match Lease::decide(lane.lease.as_ref(), lease_request, now)
        {
            LeaseDecision::Insert => (Token(1), None),
            LeaseDecision::Renew => (lane.token, None),
            LeaseDecision::TakeOver if mutation::is_on(Mutation::TakeoverKeepsToken) => {
                (lane.token, previous_keeper)
            }
            LeaseDecision::TakeOver => (lane.token.next(), previous_keeper),
            LeaseDecision::NotKeeper => {
                let lease = lane.lease.clone().expect("only a lease can refuse");
                let left = lease.expires_at.since(now);
                return AcquireOutcome::NotKeeper { lease, left };
            }
        };
        lane.token = token;
        lane.grant = Some(grant);
        lane.lease = Some(Lease {
            owner: lease_request.node.clone(),
            incarnation: lease_request.incarnation,
            token,
            expires_at: now.plus(lease_request.duration),
        });
        AcquireOutcome::Granted {
            lease_grant: LeaseGrant {
                lane: lane.id,
                token,
                grant,
            },
            previous_keeper,
            history,
            is_reconciled: lane.reconciled_under == Some(history),
            is_loss_accepted: lane.accepted_under == Some(history),
        }
    }

    /// A lane by its key.
    pub(super) fn lane_by_key(&self, key: LaneKey) -> Option<&LaneRow> {
        self.lane(*self.lane_ids.get(&key)?)
    }

    /// Whether the lease of a lane has expired, or was released.
    pub(super) fn is_lease_over(&self, lane: LaneId, now: Timestamp) -> bool {
        let lease = self.lane(lane).and_then(|lane| lane.lease.as_ref());
        lease.is_some_and(|lease| lease.expires_at <= now)
    }

    /// Whether another node has, or had, the lease of a lane.
    pub(super) fn is_leased_by_another(&self, lease_request: &LeaseRequest, lane: LaneId) -> bool {
        let lease = self.lane(lane).and_then(|lane| lane.lease.as_ref());
        lease.is_some_and(|lease| lease.owner != lease_request.node)
    }

    /// Whether an existing lane may be granted to the requester.
    pub(super) fn can_acquire(
        &self,
        lease_request: &LeaseRequest,
        lane: LaneId,
        now: Timestamp,
    ) -> bool {
        let lane = self.lane(lane).filter(|lane| lane.halted.is_none());
        lane.is_some_and(|lane| is_takeable(lane, lease_request, now))
    }

    /// The answer about a lane that was not granted; `None` when there is no such lane.
    pub(super) fn holder(
        &self,
        lease_request: &LeaseRequest,
        key: LaneKey,
        now: Timestamp,
    ) -> Option<AcquireOutcome> {
        let lane = self.lane_by_key(key)?;
        if let Some(reason) = &lane.halted {
            return Some(AcquireOutcome::Halted(reason.clone()));
        }
        if is_takeable(lane, lease_request, now) {
            // Free, and not granted: its rows were locked.
            return Some(AcquireOutcome::Busy);
        }
        let lease = lane.lease.clone().expect("only a lease can refuse");
        let left = lease.expires_at.since(now);
        Some(AcquireOutcome::NotKeeper { lease, left })
    }

    /// How long the lease of a lane still lasts that another node holds.
    pub(super) fn left_to_another(
        &self,
        lease_request: &LeaseRequest,
        key: LaneKey,
        now: Timestamp,
    ) -> Duration {
        let lease = self.lane_by_key(key).and_then(|lane| lane.lease.as_ref());
        let others = lease.filter(|lease| lease.owner != lease_request.node);
        others.map_or(Duration::ZERO, |lease| lease.expires_at.since(now))
    }

    pub(super) fn mark_reconciled(&mut self, lease_grant: LeaseGrant, history: History) -> bool {
        let is_present = history == self.history;
        let lane = self.lane_mut(lease_grant.lane);
        let lane = lane.filter(|lane| is_present && lane.is_held_by(lease_grant));
        let marked = lane.map(|lane| {
            lane.reconciled_under = Some(history);
            lane.accepted_under = None;
        });
        marked.is_some()
    }

    pub(super) fn halt(&mut self, lease_grant: LeaseGrant, reason: &str) -> bool {
        let lane = self.lane_mut(lease_grant.lane);
        let Some(lane) = lane.filter(|lane| lane.is_held_by(lease_grant)) else {
            return false;
        };
        lane.halted = Some(reason.to_owned());
        if let Some(lease) = &mut lane.lease {
            lease.expires_at = Lease::RELEASED;
        }
        true
    }

    /// Begins another history, unless the store is on another one already.
    pub(super) fn suspect_loss(&mut self, seen: History) -> History {
        if self.history == seen {
            self.history.suspicions += 1;
        }
        self.history
    }

    pub(super) fn halt_lost_lane(
        &mut self,
        key: LaneKey,
        batch_seq: u64,
        grant: GrantId,
        reason: &str,
    ) -> bool {
        let lane = self.lane_of(key);
        if lane.batch_seq >= batch_seq || lane.halted.is_some() {
            return false;
        }
        lane.halted = Some(reason.to_owned());
        lane.grant = Some(grant);
        if let Some(lease) = &mut lane.lease {
            lease.expires_at = Lease::RELEASED;
        }
        true
    }

    pub(super) fn accept_loss(&mut self, key: LaneKey) -> bool {
        let history = self.history;
        let id = self.lane_ids.get(&key).copied();
        let Some(lane) = id.and_then(|id| self.lane_mut(id)) else {
            return false;
        };
        let was_halted = lane.halted.take().is_some();
        if was_halted {
            lane.batch_seq += ACCEPTED_LOSS_GAP;
            lane.reconciled_under = None;
            lane.accepted_under = Some(history);
        }
        was_halted
    }

    /// Why a request may not be queued. A known request is not queued again.
    pub(super) fn queue_refusal(&self, new: &QueuedRequest) -> Option<StoreError> {
        let lane = self.lane_by_key(new.lane)?;
        if lane.requests.contains_key(&new.request.request_id) {
            return None;
        }
        let is_unreconciled = lane.reconciled_under != Some(self.history);
        let unreconciled = || StoreError::Unreconciled("the history has changed".into());
        let halted = lane.halted.clone().map(StoreError::Halted);
        halted.or_else(|| is_unreconciled.then(unreconciled))
    }

    /// An id that one of these requests, which is new, shares with another tx.
    pub(super) fn conflicting_tx_id(&self, requests: &[QueuedRequest]) -> Option<TxId> {
        let mut keys: BTreeSet<(LaneKey, &RequestId)> = BTreeSet::new();
        let mut ids: BTreeSet<TxId> = BTreeSet::new();
        let mut new = requests.iter().filter(|new| {
            let request = &new.request.request_id;
            let lane = self.lane_by_key(new.lane);
            !lane.is_some_and(|lane| lane.requests.contains_key(request))
                && keys.insert((new.lane, request))
        });
        let taken = new
            .find(|new| self.tx_lanes.contains_key(&new.request.id) || !ids.insert(new.request.id));
        taken.map(|new| new.request.id)
    }

    pub(super) fn renew(
        &mut self,
        lease_request: &LeaseRequest,
        lease_grant: LeaseGrant,
        now: Timestamp,
    ) -> RenewOutcome {
        match self.leased(lease_request, lease_grant) {
            Some(lease) => {
                lease.expires_at = now.plus(lease_request.duration);
                RenewOutcome::Renewed
            }
            None => RenewOutcome::Lost,
        }
    }

    /// Releases a lane; returns its key if the requester still held it.
    pub(super) fn release(
        &mut self,
        lease_request: &LeaseRequest,
        lease_grant: LeaseGrant,
    ) -> Option<LaneKey> {
        if !self.can_release(lease_request, lease_grant) {
            return None;
        }
        self.leased(lease_request, lease_grant)?.expires_at = Lease::RELEASED;
        self.lane(lease_grant.lane).map(|lane| lane.key)
    }

    /// Whether the requester holds a lane under this very grant: a release of an earlier one may arrive late.
    pub(super) fn can_release(
        &self,
        lease_request: &LeaseRequest,
        lease_grant: LeaseGrant,
    ) -> bool {
        let lane = self.lane(lease_grant.lane);
        let is_held = lane.is_some_and(|lane| lane.is_held_by(lease_grant));
        self.is_leased(lease_request, lease_grant) && is_held
    }

    pub(super) fn regrant(&mut self, lease_grant: LeaseGrant, grant: GrantId) -> RegrantOutcome {
        let Some(lane) = self.lane_mut(lease_grant.lane) else {
            return RegrantOutcome::Fenced;
        };
        if !lane.may_regrant(lease_grant, grant) {
            return RegrantOutcome::Fenced;
        }
        lane.grant = Some(grant);
        RegrantOutcome::Held {
            lease_grant: LeaseGrant {
                grant,
                ..lease_grant
            },
            batch_seq: lane.batch_seq,
        }
    }

    pub(super) fn lanes_with_work(
        &self,
        lease_request: &LeaseRequest,
        now: Timestamp,
    ) -> Vec<LaneWork> {
        let lanes = self.lane_ids.values().filter_map(|id| self.lane(*id));
        lanes
            .filter(|lane| is_takeable(lane, lease_request, now))
            .filter(|lane| lane.halted.is_none() && (!lane.wakes.is_empty() || lane.is_busy()))
            .map(|lane| LaneWork {
                lane: lane.key,
                has_queued: !lane.wakes.is_empty(),
            })
            .collect()
    }

    /// Lanes with final results to watch that no other node keeps; the page counts those without, too.
    pub(super) fn unwatched_lanes(
        &self,
        lease_request: &LeaseRequest,
        after: Option<LaneId>,
        limit: usize,
        now: Timestamp,
    ) -> UnwatchedLanes {
        let behind = self.lanes.iter().filter(|lane| Some(lane.id) > after);
        let examined: Vec<&LaneRow> = behind.take(limit).collect();
        let last = examined.last().map(|lane| lane.id);
        let free = examined
            .iter()
            .filter(|lane| lane.halted.is_none() && is_takeable(lane, lease_request, now));
        let lanes = free.filter_map(|lane| {
            let newest = lane.newest_final?;
            Some(UnwatchedLane {
                lane: lane.key,
                newest,
            })
        });
        UnwatchedLanes {
            lanes: lanes.collect(),
            next: last.filter(|_| examined.len() >= limit),
        }
    }

    pub(super) fn heartbeat(&mut self, member: &Member) -> HeartbeatOutcome {
        let incarnation = (member.node.clone(), member.incarnation);
        if self.replaced_incarnations.contains(&incarnation) {
            return HeartbeatOutcome::Replaced;
        }
        // Every incarnation counts from one.
        let before = self.members.get(&member.node);
        let before = before.filter(|before| before.incarnation == member.incarnation);
        let heartbeats = before
            .map_or(0, |before| before.heartbeats)
            .saturating_add(1);
        let beaten = Member {
            heartbeats,
            ..member.clone()
        };
        let before = self.members.insert(member.node.clone(), beaten);
        if let Some(before) = before.filter(|before| before.incarnation != member.incarnation) {
            self.replaced_incarnations
                .insert((before.node, before.incarnation));
        }
        HeartbeatOutcome::Recorded {
            members: self.members.values().cloned().collect(),
            history: self.history,
        }
    }

    /// Whether the requester holds the lease of a lane under this token, unreleased. The grant belongs to the lane
    /// row: a renewal does not check it.
    pub(super) fn is_leased(&self, lease_request: &LeaseRequest, lease_grant: LeaseGrant) -> bool {
        let lease = self
            .lane(lease_grant.lane)
            .and_then(|lane| lane.lease.as_ref());
        lease.is_some_and(|lease| is_same_lease(lease, lease_request, lease_grant))
    }

    fn leased(
        &mut self,
        lease_request: &LeaseRequest,
        lease_grant: LeaseGrant,
    ) -> Option<&mut Lease> {
        let lease = self.lane_mut(lease_grant.lane)?.lease.as_mut();
        lease.filter(|lease| is_same_lease(lease, lease_request, lease_grant))
    }
}

fn is_same_lease(lease: &Lease, lease_request: &LeaseRequest, lease_grant: LeaseGrant) -> bool {
    lease.token == lease_grant.token
        && lease.owner == lease_request.node
        && lease.incarnation == lease_request.incarnation
        && lease.expires_at != Lease::RELEASED
}

fn is_takeable(lane: &LaneRow, lease_request: &LeaseRequest, now: Timestamp) -> bool {
    match Lease::decide(lane.lease.as_ref(), lease_request, now) {
        LeaseDecision::Insert | LeaseDecision::Renew | LeaseDecision::TakeOver => true,
        LeaseDecision::NotKeeper => false,
    }
}
