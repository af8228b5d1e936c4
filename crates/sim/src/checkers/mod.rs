//! The promises, one per file. A checker sees every event of a world as it happens and says when
//! its promise is broken. It believes nobody: it keeps its own books.

mod books;
mod bumps_rise;
mod confirmations_linked;
mod durable_before_sent;
mod events_gapless;
mod final_is_final;
mod floor_holds;
mod never_outbid;
mod nonce_kept;
mod nonce_once;
mod nothing_lost;
mod one_effect;
mod stuck_by_policy;
#[cfg(test)]
mod testing;
mod token_only_rises;

use domain::LaneKey;
use engine::ports::{CommitOutcome, LaneBatch};

use crate::event::WorldEvent;

pub use bumps_rise::BumpsRise;
pub use confirmations_linked::ConfirmationsLinked;
pub use durable_before_sent::DurableBeforeSent;
pub use events_gapless::EventsGapless;
pub use final_is_final::FinalIsFinal;
pub use floor_holds::FloorHolds;
pub use never_outbid::NeverOutbid;
pub use nonce_kept::NonceKept;
pub use nonce_once::NonceOnce;
pub use nothing_lost::NothingLost;
pub use one_effect::OneEffect;
pub use stuck_by_policy::StuckByPolicy;
pub use token_only_rises::TokenOnlyRises;

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

/// Every promise that holds in every world, watched event by event.
#[must_use]
pub fn all() -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(NonceOnce::default()),
        Box::new(NonceKept::default()),
        Box::new(OneEffect::default()),
        Box::new(NothingLost::default()),
        Box::new(DurableBeforeSent::default()),
        Box::new(NeverOutbid::default()),
        Box::new(BumpsRise::default()),
        Box::new(ConfirmationsLinked::default()),
        Box::new(EventsGapless::default()),
        Box::new(FloorHolds::default()),
        Box::new(TokenOnlyRises::default()),
    ]
}
