//! The promises, one per file. A checker sees every event of a world as it happens and says when
//! its promise is broken. It believes nobody: it keeps its own books.

mod books;
mod bounded;
mod bumps_rise;
mod confirmations_linked;
mod durable_before_sent;
mod events_gapless;
mod final_is_final;
mod floor_holds;
mod forks_are_real;
mod gaps_close;
mod images_are_whole;
mod keeper_sends;
mod loans_hold;
mod never_outbid;
mod no_means_no;
mod nonce_kept;
mod nonce_once;
mod nothing_lost;
mod old_grants_are_void;
mod one_effect;
mod others_not_delayed;
mod readers_skip_nothing;
mod requeue_names_who;
mod stuck_by_policy;
#[cfg(test)]
mod testing;
mod token_only_rises;
mod wait_alone;
mod writes_meet_rows;

use domain::LaneKey;
use engine::ports::{CommitOutcome, LaneBatch};

use crate::event::WorldEvent;

pub use bounded::{Bounded, Limits};
pub use bumps_rise::BumpsRise;
pub use confirmations_linked::ConfirmationsLinked;
pub use durable_before_sent::DurableBeforeSent;
pub use events_gapless::EventsGapless;
pub use final_is_final::FinalIsFinal;
pub use floor_holds::FloorHolds;
pub use forks_are_real::ForksAreReal;
pub use gaps_close::GapsClose;
pub use images_are_whole::ImagesAreWhole;
pub use keeper_sends::KeeperSends;
pub use loans_hold::LoansHold;
pub use never_outbid::NeverOutbid;
pub use no_means_no::NoMeansNo;
pub use nonce_kept::NonceKept;
pub use nonce_once::NonceOnce;
pub use nothing_lost::NothingLost;
pub use old_grants_are_void::OldGrantsAreVoid;
pub use one_effect::OneEffect;
pub use others_not_delayed::OthersNotDelayed;
pub use readers_skip_nothing::ReadersSkipNothing;
pub use requeue_names_who::RequeueNamesWho;
pub use stuck_by_policy::StuckByPolicy;
pub use token_only_rises::TokenOnlyRises;
pub use wait_alone::WaitAlone;
pub use writes_meet_rows::WritesMeetRows;

/// Watches one promise.
pub trait Checker: Send {
    /// The promise, in a few words.
    fn name(&self) -> &'static str;

    /// Looks at what just happened; says what is wrong with it.
    fn after(&mut self, event: &WorldEvent) -> Result<(), String>;
}

/// The batch, when the event is one that became durable.
fn applied(event: &WorldEvent) -> Option<(LaneKey, &LaneBatch)> {
    if let WorldEvent::Committed {
        lane,
        batch,
        outcome: CommitOutcome::Applied,
    } = event
    {
        return Some((*lane, batch));
    }
    None
}

/// What all checkers watch, in few words each: also those that only some worlds have.
#[must_use]
pub fn promises() -> Vec<&'static str> {
    let everywhere = all();
    let names = everywhere.iter().map(|checker| checker.name());
    let somewhere = [
        StuckByPolicy::PROMISE,
        FinalIsFinal::PROMISE,
        ReadersSkipNothing::PROMISE,
        GapsClose::PROMISE,
        Bounded::PROMISE,
        LoansHold::PROMISE,
        OthersNotDelayed::PROMISE,
    ];
    names.chain(somewhere).collect()
}

/// Every promise that holds in every world, watched event by event.
#[must_use]
pub fn all() -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(NonceOnce::default()),
        Box::new(NonceKept::default()),
        Box::new(OneEffect::default()),
        Box::new(NothingLost::default()),
        Box::new(NoMeansNo::default()),
        Box::new(DurableBeforeSent::default()),
        Box::new(KeeperSends::default()),
        Box::new(NeverOutbid::default()),
        Box::new(RequeueNamesWho::default()),
        Box::new(ForksAreReal::default()),
        Box::new(BumpsRise::default()),
        Box::new(ConfirmationsLinked::default()),
        Box::new(EventsGapless::default()),
        Box::new(FloorHolds::default()),
        Box::new(TokenOnlyRises::default()),
        Box::new(OldGrantsAreVoid::default()),
        Box::new(WritesMeetRows::default()),
        Box::new(ImagesAreWhole::default()),
        Box::new(WaitAlone),
    ]
}
