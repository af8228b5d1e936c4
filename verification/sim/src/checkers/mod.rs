//! The promises, one per file. A checker inspects every event of a world as it happens and reports when its
//! promise is broken. It trusts no component: it keeps its own model.

mod accepted_not_lost;
mod accepts_within_balance;
mod aftermath;
mod bounded_memory;
mod confirmations_linked;
mod consumed_nonces;
mod consumer_named;
mod durable_before_sent;
mod events_gapless;
mod final_depth;
mod floor_below_open_txs;
mod foreign_not_outbid;
mod gaps_close;
mod lane_never_wedged;
mod lanes_stay_open;
mod loads_complete;
mod lock_isolation;
mod nonce_released_when_lost;
mod nothing_overpays;
mod one_effect_per_request;
mod one_payload_per_nonce;
mod only_heads_given_up;
mod only_keeper_sends;
mod open_cost_counted;
mod other_lanes_not_delayed;
mod readers_skip_nothing;
mod refused_not_stored;
mod reorgs_have_evidence;
mod replacement_pays_more;
mod reservation_has_one_holder;
mod sends_in_nonce_order;
mod stale_grants_fenced;
mod stale_tokens_fenced;
mod store_model;
mod stuck_by_policy;
#[cfg(test)]
mod test_events;
mod writes_find_rows;

use domain::LaneKey;
use engine::ports::{CommitOutcome, LaneBatch};

use crate::event::WorldEvent;

pub use accepted_not_lost::AcceptedNotLost;
pub use accepts_within_balance::AcceptsWithinBalance;
pub use bounded_memory::{BoundedMemory, Limits};
pub use confirmations_linked::ConfirmationsLinked;
pub use consumer_named::ConsumerNamed;
pub use durable_before_sent::DurableBeforeSent;
pub use events_gapless::EventsGapless;
pub use final_depth::FinalDepth;
pub use floor_below_open_txs::FloorBelowOpenTxs;
pub use foreign_not_outbid::ForeignNotOutbid;
pub use gaps_close::GapsClose;
pub use lane_never_wedged::LaneNeverWedged;
pub use lanes_stay_open::LanesStayOpen;
pub use loads_complete::LoadsComplete;
pub use lock_isolation::LockIsolation;
pub use nonce_released_when_lost::NonceReleasedWhenLost;
pub use nothing_overpays::NothingOverpays;
pub use one_effect_per_request::OneEffectPerRequest;
pub use one_payload_per_nonce::OnePayloadPerNonce;
pub use only_heads_given_up::OnlyHeadsGivenUp;
pub use only_keeper_sends::OnlyKeeperSends;
pub use open_cost_counted::OpenCostCounted;
pub use other_lanes_not_delayed::OtherLanesNotDelayed;
pub use readers_skip_nothing::ReadersSkipNothing;
pub use refused_not_stored::RefusedNotStored;
pub use reorgs_have_evidence::ReorgsHaveEvidence;
pub use replacement_pays_more::ReplacementPaysMore;
pub use reservation_has_one_holder::ReservationHasOneHolder;
pub use sends_in_nonce_order::SendsInNonceOrder;
pub use stale_grants_fenced::StaleGrantsFenced;
pub use stale_tokens_fenced::StaleTokensFenced;
pub use stuck_by_policy::StuckByPolicy;
pub use writes_find_rows::WritesFindRows;

/// Checks one promise.
pub trait Checker: Send {
    /// The promise, in a few words.
    fn name(&self) -> &'static str;

    /// Inspects an event; reports how it breaks the promise.
    fn after(&mut self, event: &WorldEvent) -> Result<(), String>;
}

/// The batch, if the event made one durable.
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

/// The names of all promises, also of those that only some worlds have.
#[must_use]
pub fn promises() -> Vec<&'static str> {
    let everywhere = all();
    let names = everywhere.iter().map(|checker| checker.name());
    let somewhere = [
        StuckByPolicy::PROMISE,
        FinalDepth::PROMISE,
        ReadersSkipNothing::PROMISE,
        GapsClose::PROMISE,
        BoundedMemory::PROMISE,
        ReservationHasOneHolder::PROMISE,
        OtherLanesNotDelayed::PROMISE,
        AcceptsWithinBalance::PROMISE,
        OnlyHeadsGivenUp::PROMISE,
        LaneNeverWedged::PROMISE,
        LanesStayOpen::PROMISE,
        NothingOverpays::PROMISE,
    ];
    names.chain(somewhere).collect()
}

/// The checkers of promises that hold in every world.
#[must_use]
pub fn all() -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(OnePayloadPerNonce::default()),
        Box::new(NonceReleasedWhenLost::default()),
        Box::new(OneEffectPerRequest::default()),
        Box::new(AcceptedNotLost::default()),
        Box::new(RefusedNotStored::default()),
        Box::new(DurableBeforeSent::default()),
        Box::new(OnlyKeeperSends::default()),
        Box::new(SendsInNonceOrder),
        Box::new(ForeignNotOutbid::default()),
        Box::new(ConsumerNamed::default()),
        Box::new(ReorgsHaveEvidence::default()),
        Box::new(ReplacementPaysMore::default()),
        Box::new(ConfirmationsLinked::default()),
        Box::new(EventsGapless::default()),
        Box::new(FloorBelowOpenTxs::default()),
        Box::new(OpenCostCounted::default()),
        Box::new(StaleTokensFenced::default()),
        Box::new(StaleGrantsFenced::default()),
        Box::new(WritesFindRows::default()),
        Box::new(LoadsComplete::default()),
        Box::new(LockIsolation),
    ]
}
