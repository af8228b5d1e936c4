//! Actors that take the contested lane.

use domain::lease::LeaseRequest;
use domain::{GrantId, Incarnation, LaneId, LaneImage, LeaseGrant, Token};
use engine::ports::Store as _;
use store::postgres::sql::{ACQUIRE, Param};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{Play, key_columns, ms};
use crate::facts::{Fact, TxRow};
use crate::kit::{WATCH_DEPTH, new_grant, node, node_that_misses};
use crate::scene::{Base, Scene};
use crate::turns::Hand;

/// The requesting node in this scene.
fn contender(scene: &Scene, name: &str) -> LeaseRequest {
    match scene.base {
        Base::Live | Base::Lapsed => node(name),
        Base::Silent => {
            let all = ["a", "b", "c", "d"];
            let others: Vec<&str> = all.into_iter().filter(|other| *other != name).collect();
            node_that_misses(name, &others)
        }
    }
}

/// Asks for the contested lane; once more when its rows were locked. With `in_one_turn` the asking is
/// never held open: an actor that continues with a commit would otherwise have more turns than can be tried.
pub(super) async fn take(
    play: &Play,
    hand: &Hand,
    name: &'static str,
    in_one_turn: bool,
) -> Option<LeaseGrant> {
    let (lane, lease_request) = (&play.scene.contested, contender(&play.scene, name));
    let (chains, signers) = key_columns([lane.key].into_iter());
    let grants: Vec<Uuid> = vec![new_grant().0];
    let incarnations = |incarnations: &[Incarnation]| {
        incarnations
            .iter()
            .map(|incarnation| incarnation.0)
            .collect()
    };
    let (alive, silent): (Vec<Uuid>, Vec<Uuid>) = (
        incarnations(&lease_request.alive),
        incarnations(&lease_request.silent),
    );
    let (duration, skew) = (ms(lease_request.duration), ms(lease_request.skew));
    let params: [Param<'_>; 9] = [
        (&chains, Type::INT8_ARRAY),
        (&signers, Type::BYTEA_ARRAY),
        (&grants, Type::UUID_ARRAY),
        (&lease_request.node.0, Type::TEXT),
        (&lease_request.incarnation.0, Type::UUID),
        (&duration, Type::INT8),
        (&skew, Type::INT8),
        (&alive, Type::UUID_ARRAY),
        (&silent, Type::UUID_ARRAY),
    ];
    const IS_KEPT: &str = "SELECT lanekeeper_is_held(owner, incarnation, expires_at, $2, $3, $4, $5) \
         FROM signer_lease WHERE lane_id = $1";
    let to_look: Vec<Param<'_>> = [(&lane.lease_grant.lane.0 as _, Type::INT8)]
        .into_iter()
        .chain([3, 6, 7, 8].map(|at| params[at].clone()))
        .collect();
    for (what, in_one_turn) in [("acquire", in_one_turn), ("acquire again", true)] {
        let answer = match in_one_turn {
            true => hand.write_in_one_turn(what, ACQUIRE, &params).await,
            false => hand.write(what, ACQUIRE, &params).await,
        };
        let rows = match answer {
            Ok(rows) => rows,
            Err(error) => {
                play.facts.refused(what, &error);
                return None;
            }
        };
        if let Some(row) = rows.first() {
            let token: i64 = row.get(3);
            let lease_grant = LeaseGrant {
                lane: LaneId(row.get(2)),
                token: Token(u64::try_from(token).expect("tokens are positive")),
                grant: GrantId(row.get(4)),
            };
            let node = name.to_owned();
            play.facts.record_fact(Fact::Granted {
                node,
                lease_grant,
                landed: None,
            });
            return Some(lease_grant);
        }
        let read_state = hand.at_once(IS_KEPT, &to_look).await.expect("a look");
        if read_state[0].get(0) {
            return None;
        }
    }
    None
}

/// Reads the lane as its keeper does, and beside it all its txs as they are.
pub(super) async fn load(play: &Play, hand: &Hand, lease_grant: LeaseGrant) -> Option<LaneImage> {
    let key = play.scene.contested.key;
    let image = play
        .store
        .load(key, lease_grant, WATCH_DEPTH)
        .await
        .expect("load")?;
    let rows = TxRow::of(&hand.session.client, lease_grant.lane).await;
    play.facts.record_fact(Fact::Loaded {
        lease_grant,
        image: Some(Box::new(image.clone())),
        rows: rows.expect("a look"),
    });
    Some(image)
}
