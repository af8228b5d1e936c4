//! The actors: each does with the shipped statements what a node does, one turn per statement.

mod feed;
mod gate;
mod keeper;
mod queue;
mod takeover;

use std::sync::Arc;
use std::time::Duration;

use domain::LaneKey;
use futures::future::BoxFuture;
use store::postgres::PostgresStore;

use crate::facts::Facts;
use crate::kit::new_grant;
use crate::locks::Lock;
use crate::scene::Scene;
use crate::turns::Hand;
pub(crate) use feed::read_on;

/// State that the actors of one scene share.
pub(crate) struct Play {
    pub(crate) scene: Arc<Scene>,
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) facts: Facts,
    /// Where readers of the feed begin.
    pub(crate) feed_from: Option<String>,
}

/// The action of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// `a` commits a batch of every sort of write for the contested lane, and one for a lane of its own.
    Gate,
    /// `b` gets a request for the contested lane: takes the lane, loads it and accepts, or queues the
    /// request if it cannot; and accepts for a lane of its own.
    Accept,
    /// `a` renews.
    Renew,
    /// `a` gives the contested lane back.
    Release,
    /// `a` lost an answer, and has the lane granted to it anew.
    Regrant,
    /// `c` takes the contested lane.
    Takeover,
    /// `d` takes the contested lane and loads it.
    Load,
    /// `e` queues the request that others get too, and one of its own.
    Queue,
    /// Appends to the feed and reads it, twice.
    Read,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Gate,
        Self::Accept,
        Self::Renew,
        Self::Release,
        Self::Regrant,
        Self::Takeover,
        Self::Load,
        Self::Queue,
        Self::Read,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Accept => "accept",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Regrant => "regrant",
            Self::Takeover => "takeover",
            Self::Load => "load",
            Self::Queue => "queue",
            Self::Read => "read",
        }
    }

    /// The rows and keys that it locks or writes, and that another session could hold.
    pub(crate) fn touches(self) -> &'static [Lock] {
        match self {
            Self::Gate => &[
                Lock::LaneRow,
                Lock::NeighbourLaneRow,
                Lock::TxRow,
                Lock::WaitingTxRow,
                Lock::RequestKey,
                Lock::NonceKey,
                Lock::AttemptKey,
                Lock::AttemptRow,
                Lock::QueueRow,
                Lock::EventKey,
            ],
            Self::Accept => &[
                Lock::LeaseRow,
                Lock::LaneRow,
                Lock::RequestKey,
                Lock::NonceKey,
                Lock::EventKey,
            ],
            Self::Renew | Self::Release => &[Lock::LeaseRow],
            Self::Regrant => &[Lock::LaneRow],
            Self::Takeover | Self::Load => &[Lock::LeaseRow, Lock::LaneRow],
            Self::Queue => &[Lock::RequestKey],
            Self::Read => &[Lock::FeedHead, Lock::FeedKey, Lock::LaneFeedRow],
        }
    }

    /// Runs the action. The second actor of a kind has the same memory and another batch.
    pub(crate) fn program(
        self,
        play: Arc<Play>,
        hand: Hand,
        is_second: bool,
    ) -> BoxFuture<'static, ()> {
        match self {
            Self::Gate => Box::pin(async move {
                let batches = match is_second {
                    true => play.scene.other_batches(),
                    false => play.scene.batches.clone(),
                };
                gate::gate(&play, &hand, "a", &batches).await;
            }),
            Self::Accept => Box::pin(async move { gate::accept(&play, &hand).await }),
            Self::Renew => Box::pin(async move { keeper::renew(&play, &hand).await }),
            Self::Release => Box::pin(async move { keeper::release(&play, &hand).await }),
            Self::Regrant => Box::pin(async move {
                let lease_grant = play.scene.contested.lease_grant;
                keeper::regrant(&play, &hand, "a", lease_grant, new_grant(), false).await;
            }),
            Self::Takeover => Box::pin(async move {
                takeover::take(&play, &hand, "c", false).await;
            }),
            Self::Load => Box::pin(async move {
                if let Some(lease_grant) = takeover::take(&play, &hand, "d", false).await {
                    hand.turn("load").await;
                    takeover::load(&play, &hand, lease_grant).await;
                }
            }),
            Self::Queue => Box::pin(async move { queue::queue(&play, &hand).await }),
            Self::Read => Box::pin(async move { feed::read(&play, &hand).await }),
        }
    }
}

/// Lanes as two columns.
fn key_columns(keys: impl Iterator<Item = LaneKey>) -> (Vec<i64>, Vec<Vec<u8>>) {
    keys.map(|key| (signed(key.chain_id.0), key.signer.to_vec()))
        .unzip()
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).expect("leases are short")
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("numbers here are small")
}
