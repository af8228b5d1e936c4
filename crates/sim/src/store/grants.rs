//! Who may write: acquiring, renewing, giving back, granting anew; and who is there at all.

use std::time::Duration;

use domain::lease::{Decision, Lease};
use domain::{GrantId, LaneKey, Right, Time, Token};
use engine::ports::{Acquired, Ask, Beat, Member, NewQueued, Regranted, Renewal, Work};

use super::rows::Rows;

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

    /// How long the lease of a lane still lasts that another node than the asker holds.
    pub(super) fn left_to_another(&self, ask: &Ask, key: LaneKey, now: Time) -> Duration {
        let lane = self.lane_ids.get(&key).and_then(|id| self.lane(*id));
        let lease = lane.and_then(|lane| lane.lease.as_ref());
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
        let lane = self.lane_of(key);
        let was_halted = lane.halted.take().is_some();
        if was_halted {
            lane.settled_in = history;
        }
        was_halted
    }

    /// Why a request may not be queued. What is known is not queued again.
    pub(super) fn takes_not(&self, new: &NewQueued) -> Option<String> {
        let lane = self.lane(*self.lane_ids.get(&new.lane)?)?;
        if lane.requests.contains_key(&new.request.request_id) {
            return None;
        }
        let is_unsettled = lane.settled_in != self.history;
        let unsettled = is_unsettled.then(|| "not settled in this history".to_owned());
        lane.halted.clone().or(unsettled)
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
        let renewed = Right { grant, ..right };
        // A repeat whose first answer was lost finds its own grant there already.
        if !lane.is_held_by(right) && !lane.is_held_by(renewed) {
            return Regranted::Fenced;
        }
        lane.grant = Some(grant);
        Regranted::Held {
            right: renewed,
            batch_seq: lane.batch_seq,
        }
    }

    pub(super) fn lanes_with_work(&self, ask: &Ask, now: Time) -> Vec<Work> {
        let lanes = self.lane_ids.values().filter_map(|id| self.lane(*id));
        let takeable = lanes.filter(|lane| match Lease::decide(lane.lease.as_ref(), ask, now) {
            Decision::Insert | Decision::Renew | Decision::TakeOver => true,
            Decision::NotKeeper => false,
        });
        takeable
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
        let before = self.members.get(&member.node);
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

    /// The lease of a lane, when it is the asker's under this right and was not given back.
    fn leased(&mut self, ask: &Ask, right: Right) -> Option<&mut Lease> {
        let lane = self
            .lane_mut(right.lane)
            .filter(|lane| lane.is_held_by(right))?;
        lane.lease.as_mut().filter(|lease| {
            lease.owner == ask.node
                && lease.incarnation == ask.incarnation
                && lease.expires_at != Lease::GIVEN_BACK
        })
    }
}
