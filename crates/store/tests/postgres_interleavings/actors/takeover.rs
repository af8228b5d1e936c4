//! Whoever takes the contested lane.

use domain::lease::Ask;
use domain::{GrantId, Incarnation, LaneId, LaneImage, Right, Token};
use engine::ports::Store as _;
use store::postgres::sql::{ACQUIRE, Param};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{Play, key_columns, ms};
use crate::facts::{Fact, TxRow};
use crate::kit::{WATCH_DEPTH, new_grant, node, node_that_misses};
use crate::scene::{Base, Scene};
use crate::turns::Hand;

/// Who asks, in this scene.
fn contender(scene: &Scene, name: &str) -> Ask {
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
/// never held open: whoever goes on to commit would otherwise have more turns than can be tried.
pub(super) async fn take(
    play: &Play,
    hand: &Hand,
    name: &'static str,
    in_one_turn: bool,
) -> Option<Right> {
    let (lane, ask) = (&play.scene.contested, contender(&play.scene, name));
    let (chains, signers) = key_columns([lane.key].into_iter());
    let grants: Vec<Uuid> = vec![new_grant().0];
    let lives = |lives: &[Incarnation]| lives.iter().map(|life| life.0).collect();
    let (lively, silent): (Vec<Uuid>, Vec<Uuid>) = (lives(&ask.lively), lives(&ask.silent));
    let (duration, skew) = (ms(ask.duration), ms(ask.skew));
    let params: [Param<'_>; 9] = [
        (&chains, Type::INT8_ARRAY),
        (&signers, Type::BYTEA_ARRAY),
        (&grants, Type::UUID_ARRAY),
        (&ask.node.0, Type::TEXT),
        (&ask.incarnation.0, Type::UUID),
        (&duration, Type::INT8),
        (&skew, Type::INT8),
        (&lively, Type::UUID_ARRAY),
        (&silent, Type::UUID_ARRAY),
    ];
    const IS_KEPT: &str = "SELECT lk_kept_1(owner, incarnation, expires_at, $2, $3, $4, $5) \
         FROM signer_lease WHERE lane_id = $1";
    let to_look: Vec<Param<'_>> = [(&lane.right.lane.0 as _, Type::INT8)]
        .into_iter()
        .chain([
            params[3].clone(),
            params[6].clone(),
            params[7].clone(),
            params[8].clone(),
        ])
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
            let right = Right {
                lane: LaneId(row.get(2)),
                token: Token(u64::try_from(token).expect("tokens are positive")),
                grant: GrantId(row.get(4)),
            };
            let node = name.to_owned();
            play.facts.tell(Fact::Granted {
                node,
                right,
                landed: None,
            });
            return Some(right);
        }
        let look = hand.at_once(IS_KEPT, &to_look).await.expect("a look");
        if look[0].get(0) {
            return None;
        }
    }
    None
}

/// Reads the lane as its keeper does, and beside it all its txs as they are.
pub(super) async fn load(play: &Play, hand: &Hand, right: Right) -> Option<LaneImage> {
    let key = play.scene.contested.key;
    let image = play
        .store
        .load(key, right, WATCH_DEPTH)
        .await
        .expect("load")?;
    let rows = TxRow::of(&hand.session.client, right.lane).await;
    play.facts.tell(Fact::Loaded {
        right,
        image: Some(Box::new(image.clone())),
        rows: rows.expect("a look"),
    });
    Some(image)
}
