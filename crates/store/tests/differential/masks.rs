//! Values that are not compared, all in one place, each with its reason.
//!
//! Masked in answers:
//! - **lane ids**: every store numbers its lanes itself. They become places in the universe.
//! - **instants of leases**: the database's clock is its own, and runs on. They become whole beats from
//!   the store's present; the universe keeps all decisions half a beat away.
//! - **cursors**: opaque texts of their store. Their meaning is compared by reading on from them.
//! - **texts of refusals**, and which rows a [`Conflict::Rows`] means: for people.
//! - **a history**: opaque. Whether a lane is reconciled under it is compared.
//! - **NUL in a tx's reason**: PostgreSQL has no such text, and stores U+FFFD in its place.
//! - **`next` of filtered pages of txs**: may be there although nothing follows. The pages are followed to
//!   their end, and what they hold together is compared.
//!
//! Not tested, because the port promises nothing there or no caller can do it:
//! - the order in which lanes get numbers that are made together, and with it their order in the feed;
//! - one lane twice in one `acquire`, a right with another lane's key, a page of zero;
//! - a floor that is not the lowest open nonce (the embedded store has none), a number above 63 bits;
//! - a tx that takes a nonce from which another one moves on in the same batch: which row is first is
//!   PostgreSQL's choice, and its unique index checks each;
//! - batches of one commit that fight for a hash or tx id across lanes (PostgreSQL runs them at once);
//! - attempts at a nonce that their tx held in no committed row (PostgreSQL finds attempts by these);
//! - more rows than one page, batch or walk takes, nodes that were silent for a month, headers that lie
//!   about their height;
//! - histories, of the embedded store: it has one. It is left out where a standby takes over;
//! - the feed while it is behind, of the embedded store: its gate writes the feed.
//!
//! A batch or queue with several faults may be refused for any of them ([`crate::rules`]).

use std::time::Duration;

use domain::lease::Lease;
use domain::{History, LaneId, LaneImage, LeaseGrant, Timestamp, Tx};
use engine::ports::{
    AcquireOutcome, CommitOutcome, Conflict, EventRecord, HeartbeatOutcome, LaneRecord,
    RegrantOutcome, StoreError, TxRecord,
};

use crate::universe::BEAT;

/// Heartbeats before and after a store's present, shifted so that none is negative. (0 is released.)
const PRESENT: u64 = 1_000;

/// In place of every history.
pub(crate) const HISTORY: History = History {
    store: 0,
    timeline: 0,
    restores: 0,
    suspicions: 0,
};

/// The values that a store's masks depend on.
pub(crate) struct Mask {
    pub(crate) now: Timestamp,
    /// By place.
    pub(crate) lanes: Vec<Option<LaneId>>,
}

impl Mask {
    pub(crate) fn acquired(&self, mut acquired: AcquireOutcome) -> AcquireOutcome {
        match &mut acquired {
            AcquireOutcome::Granted {
                lease_grant,
                history,
                ..
            } => {
                self.lease_grant(lease_grant);
                *history = HISTORY;
            }
            AcquireOutcome::NotKeeper { lease, left } => {
                self.lease(lease);
                *left = BEAT * u32::try_from(heartbeats(*left)).expect("few beats");
            }
            AcquireOutcome::Halted(_) | AcquireOutcome::Busy => {}
        }
        acquired
    }

    pub(crate) fn regranted(&self, mut regranted: RegrantOutcome) -> RegrantOutcome {
        match &mut regranted {
            RegrantOutcome::Held { lease_grant, .. } => self.lease_grant(lease_grant),
            RegrantOutcome::Fenced => {}
        }
        regranted
    }

    pub(crate) fn image(&self, mut image: LaneImage) -> Box<LaneImage> {
        self.lease_grant(&mut image.lease_grant);
        for (tx, _) in &mut image.in_flight {
            mask_tx(tx);
        }
        Box::new(image)
    }

    pub(crate) fn lane(&self, mut record: LaneRecord) -> LaneRecord {
        if let Some(lease) = &mut record.lease {
            self.lease(lease);
        }
        record
    }

    fn lease_grant(&self, lease_grant: &mut LeaseGrant) {
        let place = self
            .lanes
            .iter()
            .position(|id| *id == Some(lease_grant.lane));
        lease_grant.lane =
            crate::universe::lane_id(place.expect("it was learned from this answer"));
    }

    fn lease(&self, lease: &mut Lease) {
        let at = lease.expires_at;
        if at == Lease::RELEASED {
            return;
        }
        let (ahead, past) = (
            heartbeats(at.since(self.now)),
            heartbeats(self.now.since(at)),
        );
        lease.expires_at = Timestamp(PRESENT + ahead - past);
    }
}

pub(crate) fn outcome(outcome: CommitOutcome) -> CommitOutcome {
    match outcome {
        CommitOutcome::Conflict(Conflict::Rows(_)) => rows_conflict(),
        CommitOutcome::Applied
        | CommitOutcome::Fenced
        | CommitOutcome::Conflict(Conflict::RequestId(_) | Conflict::Nonce(_))
        | CommitOutcome::Locked
        | CommitOutcome::NotApplied(_)
        | CommitOutcome::Unknown(_) => outcome,
    }
}

/// A conflict about rows, without its text.
pub(crate) fn rows_conflict() -> CommitOutcome {
    CommitOutcome::Conflict(Conflict::Rows(String::new()))
}

pub(crate) fn tx(mut tx: Tx) -> Tx {
    mask_tx(&mut tx);
    tx
}

pub(crate) fn record(mut record: TxRecord) -> TxRecord {
    mask_tx(&mut record.tx);
    record
}

fn mask_tx(tx: &mut Tx) {
    if let Some(reason) = &mut tx.reason {
        *reason = reason.replace('\0', "\u{fffd}");
    }
}

pub(crate) fn event(record: EventRecord) -> EventRecord {
    EventRecord {
        cursor: String::new(),
        ..record
    }
}

pub(crate) fn beat(beat: HeartbeatOutcome) -> HeartbeatOutcome {
    match beat {
        HeartbeatOutcome::Recorded { members, .. } => HeartbeatOutcome::Recorded {
            members,
            history: HISTORY,
        },
        HeartbeatOutcome::Replaced => HeartbeatOutcome::Replaced,
    }
}

/// Without its text. No store is ever unavailable here: if one is, the text belongs into the report.
pub(crate) fn refusal(error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(_) | StoreError::Busy(_) => error,
        StoreError::Corrupt(_) => StoreError::Corrupt(String::new()),
        StoreError::Invalid(_) => StoreError::Invalid(String::new()),
        StoreError::Halted(_) => StoreError::Halted(String::new()),
        StoreError::Unreconciled(_) => StoreError::Unreconciled(String::new()),
    }
}

/// A time in beats, to the nearest one.
fn heartbeats(time: Duration) -> u64 {
    let half = BEAT / 2;
    (time + half).as_secs() / BEAT.as_secs()
}
