//! Who may write: acquiring, renewing, giving back, granting anew; and who is there at all.

use domain::lease::{Decision, Lease};
use domain::{GrantId, LaneKey, Right, Time, Token};
use engine::ports::{Acquired, Ask, Member, Regranted, Renewal, Work};

use super::rows::{LaneRow, Rows};

/// A lease that was given back ends here: long ago for every clock.
const RELEASED: Time = Time(0);

impl Rows {
    pub(super) fn acquire(
        &mut self,
        ask: &Ask,
        key: LaneKey,
        grant: GrantId,
        now: Time,
    ) -> Acquired {
        let lane = self.lane_of(key);
        let taken_from = lane.lease.as_ref().map(|lease| lease.owner.clone());
        let (token, taken_from) = match lane.decide(ask, now) {
            Decision::Insert => (Token(1), None),
            Decision::Renew => (lane.token, None),
            Decision::TakeOver => (lane.token.next(), taken_from),
            Decision::NotKeeper => {
                let lease = lane.lease.clone().expect("only a lease can refuse");
                return Acquired::NotKeeper { lease };
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
        }
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
        self.leased(ask, right)?.expires_at = RELEASED;
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
            last_batch: lane.last_batch,
        }
    }

    pub(super) fn lanes_with_work(&self, ask: &Ask, now: Time) -> Vec<Work> {
        let lanes = self.lane_ids.values().filter_map(|id| self.lane(*id));
        let takeable = lanes.filter(|lane| match lane.decide(ask, now) {
            Decision::Insert | Decision::Renew | Decision::TakeOver => true,
            Decision::NotKeeper => false,
        });
        takeable
            .filter(|lane| !lane.wakes.is_empty() || lane.open().next().is_some())
            .map(|lane| Work {
                lane: lane.key,
                has_queued: !lane.wakes.is_empty(),
            })
            .collect()
    }

    pub(super) fn heartbeat(&mut self, member: &Member) -> bool {
        let life = (member.node.clone(), member.incarnation);
        if self.past_lives.contains(&life) {
            return false;
        }
        let before = self.members.insert(member.node.clone(), member.clone());
        if let Some(before) = before.filter(|before| before.incarnation != member.incarnation) {
            self.past_lives.insert((before.node, before.incarnation));
        }
        true
    }

    /// The lease of a lane, when it is the asker's under this right and was not given back.
    fn leased(&mut self, ask: &Ask, right: Right) -> Option<&mut Lease> {
        let lane = self
            .lane_mut(right.lane)
            .filter(|lane| lane.is_held_by(right))?;
        lane.lease.as_mut().filter(|lease| {
            lease.owner == ask.node
                && lease.incarnation == ask.incarnation
                && lease.expires_at != RELEASED
        })
    }
}

impl LaneRow {
    fn decide(&self, ask: &Ask, now: Time) -> Decision {
        Lease::decide(
            self.lease.as_ref(),
            &ask.node,
            ask.incarnation,
            now,
            ask.skew,
        )
    }
}
