//! Forms that seem right and are not. They take the place of the shipped statements: a place
//! where nothing goes wrong with these would prove nothing.

use std::sync::Arc;

use domain::{LeaseGrant, Token};
use sim::rng::Rng;
use store::postgres::sql::Param;
use tokio_postgres::types::Type;

use crate::actors::{Kind, Play};
use crate::checks::{Violations, check_views};
use crate::facts::{Fact, Facts, TxRow};
use crate::kit::{AT, new_grant, node};
use crate::locks::Lock;
use crate::meetings::{Tally, holder};
use crate::naive_numbers::Numbers;
use crate::orders::Orders;
use crate::scene::{Base, Stage};
use crate::turns::{Actor, Hand, Session, play};

/// A form of a statement that people write first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Naive {
    /// The fence of the original design: the lease is read in a sub-select.
    ExistsNow,
    /// The same with a clock that does not stand still.
    ExistsClock,
    /// The lease is joined.
    UpdateFrom,
    /// Rows carry the token of their last writer, and a takeover writes no row.
    RowToken,
    /// The lease is locked so weakly that a takeover does not notice.
    KeyShare,
    /// The fence is never locked, because nothing refers to it.
    UnreferencedCte,
    /// The lease is read in a transaction with one snapshot.
    RepeatableRead,
    /// A takeover that loads the lane in the same statement.
    TakeoverAndLoad,
    /// A reader that goes on behind the highest number that it has seen.
    IdAboveCursor,
    /// A writer that locks its lane and takes the next number in one statement.
    MaxPlusOne,
}

impl Naive {
    pub(crate) const ALL: [Self; 10] = [
        Self::ExistsNow,
        Self::ExistsClock,
        Self::UpdateFrom,
        Self::RowToken,
        Self::KeyShare,
        Self::UnreferencedCte,
        Self::RepeatableRead,
        Self::TakeoverAndLoad,
        Self::IdAboveCursor,
        Self::MaxPlusOne,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ExistsNow => "EXISTS (lease … now())",
            Self::ExistsClock => "EXISTS (lease … clock_timestamp())",
            Self::UpdateFrom => "UPDATE … FROM lease",
            Self::RowToken => "token per row",
            Self::KeyShare => "FOR KEY SHARE without a unique token",
            Self::UnreferencedCte => "FOR SHARE in a CTE that nothing refers to",
            Self::RepeatableRead => "EXISTS (lease) in REPEATABLE READ",
            Self::TakeoverAndLoad => "takeover and load in one statement",
            Self::IdAboveCursor => "reader with id > cursor",
            Self::MaxPlusOne => "lock and max(nonce) + 1 in one statement",
        }
    }

    /// The old keeper's write to its sent tx. Parameters: tx, lane, time.
    fn write(self) -> Option<String> {
        let set = "SET sub_state = 3, token = 1, updated_at = $3";
        let incarnations = "token = 1 AND owner = 'a' AND to_timestamp(expires_at / 1000.0) >";
        match self {
            Self::ExistsNow | Self::ExistsClock | Self::RepeatableRead => {
                let clock = match self == Self::ExistsNow {
                    true => "now()",
                    false => "clock_timestamp()",
                };
                Some(format!(
                    "UPDATE managed_tx {set} WHERE tx_id = $1 AND EXISTS ( \
                       SELECT FROM signer_lease WHERE lane_id = $2 AND {incarnations} {clock}) RETURNING 1"
                ))
            }
            Self::UpdateFrom => Some(format!(
                "UPDATE managed_tx AS tx {set} FROM ( \
                   SELECT lane_id FROM signer_lease WHERE {incarnations} clock_timestamp()) AS lease \
                 WHERE tx.tx_id = $1 AND lease.lane_id = $2 RETURNING 1"
            )),
            Self::RowToken => Some(format!(
                "UPDATE managed_tx {set} WHERE tx_id = $1 AND lane_id = $2 AND token <= 1 RETURNING 1"
            )),
            Self::KeyShare => Some(format!(
                "WITH fence AS ( \
                   SELECT lane_id FROM signer_lease WHERE lane_id = $2 AND owner = 'a' AND token = 1 \
                   FOR KEY SHARE) \
                 UPDATE managed_tx AS tx {set} FROM fence WHERE tx.tx_id = $1 RETURNING 1"
            )),
            Self::UnreferencedCte => Some(format!(
                "WITH fence AS ( \
                   SELECT lane_id FROM signer_lease WHERE lane_id = $2 AND owner = 'a' AND token = 1 \
                   FOR SHARE) \
                 UPDATE managed_tx AS tx {set} WHERE tx.tx_id = $1 RETURNING 1"
            )),
            Self::TakeoverAndLoad | Self::IdAboveCursor | Self::MaxPlusOne => None,
        }
    }

    /// Plays it against the shipped rest in every order.
    pub(crate) async fn play(self, stage: &mut Stage) -> Tally {
        let mut tally = Tally::default();
        if let Some(numbers) = Numbers::of(self) {
            numbers.play(stage, &mut tally).await;
            return tally;
        }
        let [_, of_old, ..] = &stage.sessions[..] else {
            panic!("there are four sessions")
        };
        let of_old = Arc::clone(of_old);
        if self == Self::RepeatableRead {
            isolate(&of_old, "repeatable read").await;
        }
        for (is_held, lock) in [(true, None), (false, Some(Lock::TxRow))] {
            let mut orders = Orders::all(Rng::new(1));
            loop {
                self.play_once(stage, is_held, lock, &mut orders, &mut tally)
                    .await;
                if !orders.advance() {
                    break;
                }
            }
        }
        isolate(&of_old, "read committed").await;
        tally
    }

    async fn play_once(
        self,
        stage: &mut Stage,
        is_held: bool,
        lock: Option<Lock>,
        orders: &mut Orders,
        tally: &mut Tally,
    ) {
        let scene = stage.scene(Base::Silent).await;
        let shared = Arc::new(Play {
            scene: Arc::clone(&scene),
            store: Arc::clone(&stage.store),
            facts: Facts::default(),
            feed_from: None,
        });
        let [of_holder, of_old, of_new, _] = &stage.sessions[..] else {
            panic!("there are four sessions")
        };
        let mut actors = Vec::new();
        if let Some(lock) = lock {
            lock.take(of_holder, &scene).await;
            actors.push(holder(Hand::new(of_holder, false)));
        }
        let (old, new) = (Arc::clone(&shared), Arc::clone(&shared));
        actors.push(Actor::start(
            "old keeper",
            Hand::new(of_old, is_held),
            |hand| match self.write() {
                Some(sql) => Box::pin(async move { write(&old, &hand, &sql).await }),
                None => Kind::Gate.program(old, hand, false),
            },
        ));
        actors.push(Actor::start(
            "new keeper",
            Hand::new(of_new, is_held),
            |hand| match self == Self::TakeoverAndLoad {
                true => Box::pin(async move { take_and_load(&new, &hand).await }),
                false => Kind::Load.program(new, hand, false),
            },
        ));
        let (story, waits) = play(&stage.watcher, actors, orders).await;
        tally.waits += waits;
        let endings = stage.snapshots.endings(&[scene.lane()]).await;
        let mut violations = Violations::default();
        check_views(
            &scene.contested,
            &endings[&scene.lane()],
            &shared.facts.all(),
            &mut violations,
        );
        tally.note(&violations.0, || {
            format!("{}: {}", self.name(), story.join(", "))
        });
    }
}

/// The default isolation level of a session.
async fn isolate(session: &Session, level: &str) {
    let sql = format!("SET default_transaction_isolation = '{level}'");
    session.client.batch_execute(&sql).await.expect("a setting");
}

async fn write(shared: &Play, hand: &Hand, sql: &str) {
    let (id, lane) = (shared.scene.sent.id.0, shared.scene.lane().0);
    let at = i64::try_from(AT.0 + 1).expect("the present");
    let params: [Param<'_>; 3] = [(&id, Type::UUID), (&lane, Type::INT8), (&at, Type::INT8)];
    if let Err(error) = hand.write("writes", sql, &params).await {
        shared.facts.refused("naive write", &error);
    }
}

async fn take_and_load(shared: &Play, hand: &Hand) {
    const SQL: &str = "WITH lease AS ( \
           UPDATE signer_lease SET token = token + 1, owner = $2, incarnation = $3 \
           WHERE lane_id = $1 RETURNING lane_id, token \
         ), lane AS ( \
           UPDATE signer_nonce_cursor AS c SET fencing_token = lease.token, grant_id = $4 \
           FROM lease WHERE c.lane_id = lease.lane_id RETURNING c.lane_id \
         ) \
         SELECT tx_id, request_id, nonce, token, state, sub_state, updated_at \
         FROM lane JOIN managed_tx AS tx ON tx.lane_id = lane.lane_id";
    let (lane, lease_request, grant) = (shared.scene.lane(), node("d"), new_grant());
    let params: [Param<'_>; 4] = [
        (&lane.0, Type::INT8),
        (&lease_request.node.0, Type::TEXT),
        (&lease_request.incarnation.0, Type::UUID),
        (&grant.0, Type::UUID),
    ];
    match hand.write("takes over and loads", SQL, &params).await {
        Ok(rows) => shared.facts.record_fact(Fact::Loaded {
            lease_grant: LeaseGrant {
                lane,
                token: Token(2),
                grant,
            },
            image: None,
            rows: rows.iter().map(|row| TxRow::read(row, 0)).collect(),
        }),
        Err(error) => shared.facts.refused("naive takeover", &error),
    }
}
