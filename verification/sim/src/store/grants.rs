//! Who may write: acquiring, renewing, giving back, granting anew; and who is there at all.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::lease::{Decision, Lease};
use domain::mutation::{self, Mutation};
use domain::{GrantId, LaneId, LaneKey, RequestId, Right, Time, Token, TxId};
use engine::ports::{Acquired, Ask, Beat, Member, NewQueued, Regranted, Renewal, StoreError, Work};

use super::rows::{LaneRow, Rows};

impl LaneRow {
    /// A repeat whose first answer was lost finds its own grant there already.
    pub(super) fn may_regrant(&self, right: Right, grant: GrantId) -> bool {
        self.is_held_by(right) || self.is_held_by(Right { grant, ..right })
    }
}

impl Rows {
    pub(super) fn acquire(
        &mut self,
        ask: &Ask,
        key: LaneKey,
        grant: GrantId,
        now: Time,
    ) -> Acquired {
        let history = self.history;
        let lane = self.lane_of(key);
        if let Some(reason) = &lane.halted {
            return Acquired::Halted(reason.clone());
        }
        let taken_from = lane.lease.as_ref().map(|lease| lease.owner.clone());
        let (token, taken_from) = match Lease::decide(lane.lease.as_ref(), ask, now) {
            Decision::Insert => (Token(1), None),
            Decision::Renew => (lane.token, None),
            Decision::TakeOver if mutation::is_on(Mutation::TakeoverKeepsToken) => {
                (lane.token, taken_from)
            }
            Decision::TakeOver => (lane.token.next(), taken_from),
            Decision::NotKeeper => {
                let lease = lane.lease.clone().expect("only a lease can refuse");
                let left = lease.expires_at.since(now);
                return Acquired::NotKeeper { lease, left };
            }
        };
        lane.token = token;
        lane.grant = Some(grant);
        lane.lease = Some(Lease {
            owner: ask.node.clone(),
            incarnation: ask.incarnation,
            token,
            expires_at: now.plus(ask.duration),
        });
        Acquired::Granted {
            right: Right {
                lane: lane.id,
                token,
                grant,
            },
            taken_from,
            is_settled: lane.settled_in == history,
        }
    }

    /// A lane by its key.
    pub(super) fn known(&self, key: LaneKey) -> Option<&LaneRow> {
        self.lane(*self.lane_ids.get(&key)?)
    }

    /// Whether the lease of a lane has run out, or was given back.
    pub(super) fn is_over(&self, lane: LaneId, now: Time) -> bool {
        let lease = self.lane(lane).and_then(|lane| lane.lease.as_ref());
        lease.is_some_and(|lease| lease.expires_at <= now)
    }

    /// Whether another node has, or had, the lease of a lane.
    pub(super) fn is_of_another(&self, ask: &Ask, lane: LaneId) -> bool {
        let lease = self.lane(lane).and_then(|lane| lane.lease.as_ref());
        lease.is_some_and(|lease| lease.owner != ask.node)
    }

    /// Whether a lane that is there may be granted to the asker.
    pub(super) fn may_take(&self, ask: &Ask, lane: LaneId, now: Time) -> bool {
        let lane = self.lane(lane).filter(|lane| lane.halted.is_none());
        lane.is_some_and(|lane| is_takeable(lane, ask, now))
    }

    /// What the asker is told of a lane that it was not granted; `None` when there is no such lane.
    pub(super) fn holder(&self, ask: &Ask, key: LaneKey, now: Time) -> Option<Acquired> {
        let lane = self.known(key)?;
        if let Some(reason) = &lane.halted {
            return Some(Acquired::Halted(reason.clone()));
        }
        if is_takeable(lane, ask, now) {
            // Free, and not granted: its rows were locked.
            return Some(Acquired::Busy);
        }
        let lease = lane.lease.clone().expect("only a lease can refuse");
        let left = lease.expires_at.since(now);
        Some(Acquired::NotKeeper { lease, left })
    }

    /// How long the lease of a lane still lasts that another node than the asker holds.
    pub(super) fn left_to_another(&self, ask: &Ask, key: LaneKey, now: Time) -> Duration {
        let lease = self.known(key).and_then(|lane| lane.lease.as_ref());
        let others = lease.filter(|lease| lease.owner != ask.node);
        others.map_or(Duration::ZERO, |lease| lease.expires_at.since(now))
    }

    pub(super) fn settle(&mut self, right: Right) {
        let history = self.history;
        if let Some(lane) = self.lane_mut(right.lane)
            && lane.is_held_by(right)
        {
            lane.settled_in = history;
        }
    }

    pub(super) fn halt(&mut self, right: Right, reason: &str) -> bool {
        let lane = self.lane_mut(right.lane);
        let Some(lane) = lane.filter(|lane| lane.is_held_by(right)) else {
            return false;
        };
        lane.halted = Some(reason.to_owned());
        if let Some(lease) = &mut lane.lease {
            lease.expires_at = Lease::GIVEN_BACK;
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
            lane.settled_in = history;
        }
        was_halted
    }

    /// Why a request may not be queued. What is known is not queued again.
    pub(super) fn takes_not(&self, new: &NewQueued) -> Option<StoreError> {
        let lane = self.known(new.lane)?;
        if lane.requests.contains_key(&new.request.request_id) {
            return None;
        }
        let is_unsettled = lane.settled_in != self.history;
        let unsettled = || StoreError::Unsettled("another history than before".into());
        let halted = lane.halted.clone().map(StoreError::Halted);
        halted.or_else(|| is_unsettled.then(unsettled))
    }

    /// An id that one of these requests, which is new, shares with another tx.
    pub(super) fn taken_id(&self, requests: &[NewQueued]) -> Option<TxId> {
        let mut keys: BTreeSet<(LaneKey, &RequestId)> = BTreeSet::new();
        let mut ids: BTreeSet<TxId> = BTreeSet::new();
        let mut new = requests.iter().filter(|new| {
            let request = &new.request.request_id;
            let lane = self.known(new.lane);
            !lane.is_some_and(|lane| lane.requests.contains_key(request))
                && keys.insert((new.lane, request))
        });
        let taken = new
            .find(|new| self.tx_lanes.contains_key(&new.request.id) || !ids.insert(new.request.id));
        taken.map(|new| new.request.id)
    }

    pub(super) fn renew(&mut self, ask: &Ask, right: Right, now: Time) -> Renewal {
        match self.leased(ask, right) {
            Some(lease) => {
                lease.expires_at = now.plus(ask.duration);
                Renewal::Renewed
            }
            None => Renewal::Lost,
        }
    }

    /// Gives a lane back; its key, when it was still the asker's.
    pub(super) fn release(&mut self, ask: &Ask, right: Right) -> Option<LaneKey> {
        self.leased(ask, right)?.expires_at = Lease::GIVEN_BACK;
        self.lane(right.lane).map(|lane| lane.key)
    }

    pub(super) fn regrant(&mut self, right: Right, grant: GrantId) -> Regranted {
        let Some(lane) = self.lane_mut(right.lane) else {
            return Regranted::Fenced;
        };
        if !lane.may_regrant(right, grant) {
            return Regranted::Fenced;
        }
        lane.grant = Some(grant);
        Regranted::Held {
            right: Right { grant, ..right },
            batch_seq: lane.batch_seq,
        }
    }

    pub(super) fn lanes_with_work(&self, ask: &Ask, now: Time) -> Vec<Work> {
        let lanes = self.lane_ids.values().filter_map(|id| self.lane(*id));
        lanes
            .filter(|lane| is_takeable(lane, ask, now))
            .filter(|lane| lane.halted.is_none() && (!lane.wakes.is_empty() || lane.is_busy()))
            .map(|lane| Work {
                lane: lane.key,
                has_queued: !lane.wakes.is_empty(),
            })
            .collect()
    }

    pub(super) fn heartbeat(&mut self, member: &Member) -> Beat {
        let life = (member.node.clone(), member.incarnation);
        if self.past_lives.contains(&life) {
            return Beat::Replaced;
        }
        // Every life counts from one.
        let before = self.members.get(&member.node);
        let before = before.filter(|before| before.incarnation == member.incarnation);
        let beats = before.map_or(0, |before| before.beats).saturating_add(1);
        let beaten = Member {
            beats,
            ..member.clone()
        };
        let before = self.members.insert(member.node.clone(), beaten);
        if let Some(before) = before.filter(|before| before.incarnation != member.incarnation) {
            self.past_lives.insert((before.node, before.incarnation));
        }
        Beat::Taken {
            members: self.members.values().cloned().collect(),
            history: self.history,
        }
    }

    /// Whether the lease of a lane is the asker's under this token, and was not given back. The grant is the
    /// lane row's matter: a renewal or a release does not look at it.
    pub(super) fn is_leased(&self, ask: &Ask, right: Right) -> bool {
        let lease = self.lane(right.lane).and_then(|lane| lane.lease.as_ref());
        lease.is_some_and(|lease| is_of(lease, ask, right))
    }

    fn leased(&mut self, ask: &Ask, right: Right) -> Option<&mut Lease> {
        let lease = self.lane_mut(right.lane)?.lease.as_mut();
        lease.filter(|lease| is_of(lease, ask, right))
    }
}

fn is_of(lease: &Lease, ask: &Ask, right: Right) -> bool {
    lease.token == right.token
        && lease.owner == ask.node
        && lease.incarnation == ask.incarnation
        && lease.expires_at != Lease::GIVEN_BACK
}

fn is_takeable(lane: &LaneRow, ask: &Ask, now: Time) -> bool {
    match Lease::decide(lane.lease.as_ref(), ask, now) {
        Decision::Insert | Decision::Renew | Decision::TakeOver => true,
        Decision::NotKeeper => false,
    }
}
