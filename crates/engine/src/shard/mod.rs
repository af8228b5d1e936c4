//! A shard: one task that owns the lanes of its part of the hash ring, and runs their turns.
//!
//! It takes whatever waits in its inbox (never waits to fill), steps all of it, commits once, answers
//! all. A lane that is not in memory is being opened (acquired and read) by another task; what comes
//! for it meanwhile waits in its cell, bounded.

mod cells;
mod effects;
mod given_back;
mod told;
mod turn;

pub(crate) use effects::explain_revert;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::lane::{AccountNonces, EndpointNonces};
use domain::{
    B256, ChainId, Input, LaneImage, LaneKey, LeaseGrant, MonotonicTime, NodeName, Nonce,
};
use tokio::sync::{mpsc, oneshot};

use crate::core::Core;
use crate::gate::PendingCreate;
use crate::ports::RegrantOutcome;
use crate::reservations::PendingMark;
use cells::Cell;
use given_back::{GivenBack, Unreleased};

/// The most messages of one turn.
const TURN_MAX: usize = 1_024;
/// How often lanes with work look at the time.
const TICK: Duration = Duration::from_millis(250);
/// How many stored headers are remembered, so that they are not written again.
const STORED_HEADERS_MAX: usize = 4_096;

/// What a shard can be told.
#[derive(Debug)]
pub(crate) enum Message {
    /// A request for a lane.
    Create {
        lane: LaneKey,
        create: PendingCreate,
    },
    /// What happened to a lane, for the very opening of it that asked.
    Inputs {
        lane: LaneKey,
        epoch: u64,
        inputs: Vec<Input>,
    },
    /// What the chain shows of a lane, whichever opening it is in.
    Observed { lane: LaneKey, input: Input },
    /// A chain moved: there is a new view of it.
    Head { chain: ChainId },
    /// A lane has work and no keeper, or txs were queued for it.
    Wake { lane: LaneKey, has_queued: bool },
    /// A lane was granted and read, and perhaps its chain was asked.
    Opened(Box<Opened>),
    /// A lane was not granted, or could not be read.
    NotOpened { lane: LaneKey, why: NotOpened },
    /// The store has told what became of a batch whose answer was lost.
    Resolved {
        lane: LaneKey,
        outcome: RegrantOutcome,
    },
    /// The lease was lost that gave this right.
    Lost {
        lane: LaneKey,
        lease_grant: LeaseGrant,
    },
    /// An operator accepts what a halted lane has lost.
    Resume { lane: LaneKey },
    /// What a holder says of a lent nonce.
    Mark(PendingMark),
    /// What is known of a lane.
    Inspect {
        lane: LaneKey,
        answer: oneshot::Sender<Inspection>,
    },
    /// Finish, give every lane back, and say so.
    Drain { done: oneshot::Sender<()> },
}

/// A lane that was granted and read.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) lane: LaneKey,
    pub(crate) image: LaneImage,
    /// Who held it before, when it changed hands.
    pub(crate) previous_keeper: Option<NodeName>,
    /// What its chain says, when it was reached.
    pub(crate) nonces: Option<EndpointNonces>,
    /// Whether the store's history is the one in which the lane was written.
    pub(crate) is_reconciled: bool,
}

/// Why a lane was not opened.
#[derive(Clone, Debug)]
pub(crate) enum NotOpened {
    /// Another node keeps it.
    NotKeeper(NodeName),
    /// The store did not answer.
    Store(String),
    /// Somebody has its rows locked at the moment.
    Busy,
    /// It takes no work until an operator decides.
    Halted(String),
}

/// What the keeper knows of a lane beyond the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inspection {
    pub(crate) chain_nonces: Option<AccountNonces>,
    pub(crate) gaps: Vec<Nonce>,
    pub(crate) waiting_for: Option<String>,
    /// Txs in memory that no block has yet.
    pub(crate) unmined: usize,
}

pub(crate) struct Shard {
    core: Arc<Core>,
    inbox: mpsc::Receiver<Message>,
    lanes: BTreeMap<LaneKey, Cell>,
    stored_headers: BTreeSet<B256>,
    /// How often in a row a lane's batch was not applied.
    failures: BTreeMap<LaneKey, u32>,
    /// Until when request ids are looked up before they are committed.
    look_up_until: MonotonicTime,
    next_epoch: u64,
    is_draining: bool,
    given_back: GivenBack,
    unreleased: Unreleased,
}

impl Shard {
    pub(crate) fn new(core: Arc<Core>, inbox: mpsc::Receiver<Message>) -> Self {
        Self {
            core,
            inbox,
            lanes: BTreeMap::new(),
            stored_headers: BTreeSet::new(),
            failures: BTreeMap::new(),
            look_up_until: MonotonicTime(0),
            next_epoch: 1,
            is_draining: false,
            given_back: GivenBack::default(),
            unreleased: Unreleased::default(),
        }
    }

    pub(crate) async fn run(mut self) {
        let mut messages = Vec::with_capacity(TURN_MAX);
        let clock = Arc::clone(&self.core.ports.clock);
        let mut tick = clock.sleep(TICK);
        loop {
            let ticked = tokio::select! {
                biased;
                // First: a full inbox is always ready and would put time off for ever.
                () = &mut tick => true,
                count = self.inbox.recv_many(&mut messages, TURN_MAX) => {
                    if count == 0 {
                        return;
                    }
                    false
                }
            };
            if ticked {
                tick = clock.sleep(TICK);
                self.tick().await;
            } else {
                self.turn(messages.drain(..)).await;
            }
        }
    }
}
