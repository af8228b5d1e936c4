//! The contested lane's first keeper, and what it does besides committing.

use domain::lease::LeaseRequest;
use domain::{GrantId, LeaseGrant};
use store::postgres::sql::{Param, REGRANT, RELEASE, RELEASE_WAITING, RENEW};
use tokio_postgres::types::Type;

use super::{Play, ms, signed};
use crate::facts::Fact;
use crate::kit::node;
use crate::turns::Hand;

pub(super) async fn renew(play: &Play, hand: &Hand) {
    let keeper = Keeper::of(play);
    let duration = ms(keeper.lease_request.duration);
    let mut params = keeper.params();
    params.push((&duration, Type::INT8));
    match hand.write("renew", RENEW, &params).await {
        Ok(rows) => play.facts.record_fact(Fact::Renewed(rows[0].get(2))),
        Err(error) => play.facts.refused("renew", &error),
    }
}

pub(super) async fn release(play: &Play, hand: &Hand) {
    let keeper = Keeper::of(play);
    let grants = vec![play.scene.contested.lease_grant.grant.0];
    let mut params = keeper.params();
    params.push((&grants, Type::UUID_ARRAY));
    let mut answer = hand.write("release", RELEASE, &params).await;
    if answer.as_ref().is_ok_and(Vec::is_empty) {
        let again = hand.write_in_one_turn("release again", RELEASE_WAITING, &params);
        answer = again.await;
    }
    match answer {
        Ok(rows) => play.facts.record_fact(Fact::Released(!rows.is_empty())),
        Err(error) => play.facts.refused("release", &error),
    }
}

/// Has a lane granted anew; how many batches have landed, when it is still ours.
pub(super) async fn regrant(
    play: &Play,
    hand: &Hand,
    node: &'static str,
    lease_grant: LeaseGrant,
    grant: GrantId,
    is_second_try: bool,
) -> Option<u64> {
    let token = signed(lease_grant.token.0);
    let params: [Param<'_>; 4] = [
        (&lease_grant.lane.0, Type::INT8),
        (&token, Type::INT8),
        (&lease_grant.grant.0, Type::UUID),
        (&grant.0, Type::UUID),
    ];
    let answer = match is_second_try {
        true => hand.write_in_one_turn("regrant", REGRANT, &params).await,
        false => hand.write("regrant", REGRANT, &params).await,
    };
    let rows = match answer {
        Ok(rows) => rows,
        Err(error) => {
            play.facts.refused("regrant", &error);
            return None;
        }
    };
    let landed: i64 = rows.first()?.get(0);
    let landed = u64::try_from(landed).expect("it counts");
    if lease_grant.lane == play.scene.lane() {
        play.facts.record_fact(Fact::Granted {
            node: node.to_owned(),
            lease_grant: LeaseGrant {
                grant,
                ..lease_grant
            },
            landed: Some(landed),
        });
    }
    Some(landed)
}

/// The lease request of the contested lane's first keeper.
struct Keeper {
    lease_request: LeaseRequest,
    lanes: Vec<i64>,
    tokens: Vec<i64>,
}

impl Keeper {
    fn of(play: &Play) -> Self {
        let lease_grant = play.scene.contested.lease_grant;
        Self {
            lease_request: node("a"),
            lanes: vec![lease_grant.lane.0],
            tokens: vec![signed(lease_grant.token.0)],
        }
    }

    fn params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.lanes, Type::INT8_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.lease_request.node.0, Type::TEXT),
            (&self.lease_request.incarnation.0, Type::UUID),
        ]
    }
}
