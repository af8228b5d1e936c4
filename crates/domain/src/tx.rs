//! What a tx goes through: its states, the one table of transitions, and its record.

use std::fmt::Write as _;

use alloy_primitives::{Address, B256};
use strum::{EnumCount, EnumString, IntoStaticStr, VariantArray};

use crate::lane::AdmittedRequest;
use crate::{Fingerprint, Nonce, Payload, RequestId, Timestamp, Token, TxId};

/// The state of a tx.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    EnumCount,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum TxState {
    /// Accepted and durable, without a nonce yet.
    Created,
    /// Has a nonce; nothing of it has left a process.
    Allocated,
    /// Its bytes may have left a process. The commit that stores an attempt makes it so.
    Tracking,
    /// Mined with success, at finality depth.
    Confirmed,
    /// Ended without the effect, and nothing can contradict that.
    FailedFinal,
    /// Needs a decision. Bytes are still rebroadcast, hashes still watched.
    Stuck,
}

/// One arrow of the state diagram, with the reason for which it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Before.
    pub from: TxState,
    /// After.
    pub to: TxState,
    /// When it is taken.
    pub when: &'static str,
}

const fn arrow(from: TxState, to: TxState, when: &'static str) -> Transition {
    Transition { from, to, when }
}

use TxState::{Allocated, Confirmed, Created, FailedFinal, Stuck, Tracking};

/// The one table. `docs/states.md` is printed from it, and [`Tx::transition`] refuses everything else.
pub const TRANSITIONS: [Transition; 20] = [
    arrow(Created, Allocated, "a nonce is allocated"),
    arrow(Created, FailedFinal, "given up before it got a nonce"),
    arrow(
        Created,
        Stuck,
        "a transaction of a lost commit did just this: a decision is needed",
    ),
    arrow(
        Allocated,
        Tracking,
        "a signed attempt is stored: that is the claim to send it",
    ),
    arrow(
        Allocated,
        FailedFinal,
        "given up, no send was ever claimed; its nonce becomes a gap",
    ),
    arrow(
        Allocated,
        Stuck,
        "it cannot be signed or sent, a decision is needed",
    ),
    arrow(
        Tracking,
        Confirmed,
        "an attempt is mined with success, at finality depth",
    ),
    arrow(
        Tracking,
        FailedFinal,
        "its nonce is consumed at finality depth without its effect, or was reserved and is released",
    ),
    arrow(
        Tracking,
        Stuck,
        "attempts are used up, or a reorg went too deep",
    ),
    arrow(
        Tracking,
        Created,
        "requeued: its nonce was consumed by another transaction",
    ),
    arrow(
        Allocated,
        Created,
        "requeued: its nonce was consumed by another transaction before it was signed",
    ),
    arrow(
        Stuck,
        Created,
        "requeued: its nonce was consumed by another transaction",
    ),
    arrow(Stuck, Allocated, "decided: continue, nothing was sent yet"),
    arrow(
        Stuck,
        Tracking,
        "decided: continue, a no-op takes its nonce, or one of its attempts was mined",
    ),
    arrow(
        Stuck,
        Confirmed,
        "an attempt is mined with success, at finality depth",
    ),
    arrow(
        Stuck,
        FailedFinal,
        "its nonce is consumed at finality depth without its effect",
    ),
    arrow(Confirmed, Tracking, "its block was reorged out"),
    arrow(FailedFinal, Tracking, "its block was reorged out"),
    arrow(
        Confirmed,
        Stuck,
        "its block was reorged out deeper than we watch",
    ),
    arrow(
        FailedFinal,
        Stuck,
        "its block was reorged out deeper than we watch",
    ),
];

impl TxState {
    /// Every state, in the order of a tx's life.
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.first_chunk().expect("all of them");

    /// Its name in SQL, JSON and docs; `parse` reads it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether nothing more will happen to it, forks aside.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Confirmed | FailedFinal)
    }

    /// Whether the table has this arrow.
    #[must_use]
    pub fn may_become(self, to: Self) -> bool {
        TRANSITIONS
            .iter()
            .any(|arrow| arrow.from == self && arrow.to == to)
    }

    /// The state diagram in Markdown: what `docs/states.md` holds.
    #[must_use]
    pub fn diagram() -> String {
        let mut page = String::from(
            "# States of a tx\n\nPrinted from the transition table in `crates/domain/src/tx.rs`; a \
             test compares the two.\n\n```mermaid\nstateDiagram-v2\n  [*] --> CREATED\n  [*] --> \
             ALLOCATED\n  [*] --> TRACKING\n",
        );
        for Transition { from, to, .. } in TRANSITIONS {
            writeln!(page, "  {} --> {}", from.as_str(), to.as_str()).expect("writing to a string");
        }
        page.push_str("```\n\n| from | to | when |\n|---|---|---|\n");
        for Transition { from, to, when } in TRANSITIONS {
            writeln!(page, "| {} | {} | {when} |", from.as_str(), to.as_str())
                .expect("writing to a string");
        }
        page.push_str(
            "\nA tx is accepted as CREATED, ALLOCATED or TRACKING, whichever its first commit \
             reaches.\nSTUCK stops only new attempts: its bytes are still rebroadcast, its hashes \
             still watched.\n",
        );
        page
    }
}

/// More about a state, for people and for queries.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumCount, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "camelCase")]
pub enum SubState {
    /// Waits for a nonce.
    Queued,
    /// Waits for its turn to be signed.
    Waiting,
    /// Signed and durable, on its way to a node.
    Signed,
    /// A node has it.
    Submitted,
    /// In a block, not deep enough yet.
    Mined,
    /// Its block was reorged out.
    Reorged,
    /// A node refused its bytes for good.
    Rejected,
    /// Mined, and the execution reverted.
    Reverted,
    /// The account could not pay when it was sent.
    Underfunded,
    /// A node found its fee too low.
    Underpriced,
    /// Its nonce was consumed by a transaction that is not ours.
    ForeignNonce,
    /// Ended by an operator or the client.
    Cancelled,
    /// The signer could not sign it.
    SigningFailed,
    /// It pays as much as it may, and that is too little at present.
    FeeCap,
    /// Its block was reorged out deeper than is watched.
    DeepFork,
    /// A foreign transaction is pending at its nonce.
    ForeignPending,
    /// Nodes refuse it for a reason that lies in them: it may be accepted later.
    Refused,
}

impl SubState {
    /// Every one, in the order of their stored numbers: append only.
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.first_chunk().expect("all of them");

    /// Its name in JSON and docs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Where and how an attempt was mined: the part of the receipt that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inclusion {
    /// The attempt that was mined.
    pub tx_hash: B256,
    /// Height of its block.
    pub block_number: u64,
    /// Its block.
    pub block_hash: B256,
    /// Whether the execution succeeded.
    pub succeeded: bool,
    /// Gas it used.
    pub gas_used: u64,
    /// Wei per gas that it paid.
    pub effective_gas_price: u128,
    /// The contract that it made.
    pub contract_address: Option<Address>,
    /// Why it reverted, when that is known.
    pub revert_reason: Option<String>,
}

/// What was requested, as it was accepted. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxRequest {
    /// The client's idempotency key.
    pub request_id: RequestId,
    /// Digest of the payload as sent.
    pub fingerprint: Fingerprint,
    /// What is to be sent.
    pub payload: Payload,
    /// Gas limit: the request's own, or the estimate made at admission.
    pub gas: u64,
    /// When it was accepted.
    pub created_at: Timestamp,
}

/// Who last wrote a tx, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastWrite {
    /// The keeper's token.
    pub token: Token,
    /// When.
    pub at: Timestamp,
}

/// The record of a tx: what was requested, and what has become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tx {
    /// Its id for ever.
    pub id: TxId,
    /// What was requested.
    pub request: TxRequest,
    /// Its place in the account's order; `None` before, and after it gave one up.
    pub nonce: Option<Nonce>,
    /// Its state. Changed by [`Tx::transition`] only.
    pub state: TxState,
    /// More about its state.
    pub sub_state: Option<SubState>,
    /// Why, for people.
    pub reason: Option<String>,
    /// The newest attempt, or the mined one.
    pub tx_hash: Option<B256>,
    /// The receipt, while its block is canonical.
    pub inclusion: Option<Inclusion>,
    /// The newest header that was counted as its confirmation.
    pub counted: Option<B256>,
    /// When it became final.
    pub confirmed_at: Option<Timestamp>,
    /// Its last write.
    pub written: LastWrite,
    /// What happened to it.
    pub history: TxHistory,
}

/// What happened to a tx so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxHistory {
    /// The lane sequence numbers of its events, so that they are found without a scan.
    pub event_seqs: Vec<u64>,
    /// How often it was claimed once more because it was not mined in time.
    pub resubmits: u32,
}

impl Tx {
    /// A request as it is first written: accepted, without a nonce.
    #[must_use]
    pub fn created(request: AdmittedRequest, token: Token, at: Timestamp) -> Self {
        Self {
            id: request.id,
            request: TxRequest {
                request_id: request.request_id,
                fingerprint: request.fingerprint,
                payload: request.payload,
                gas: request.gas,
                created_at: at,
            },
            nonce: None,
            state: Created,
            sub_state: Some(SubState::Queued),
            reason: None,
            tx_hash: None,
            inclusion: None,
            counted: None,
            confirmed_at: None,
            written: LastWrite { token, at },
            history: TxHistory::default(),
        }
    }

    /// Moves to another state (or stays) with a new sub-state.
    ///
    /// # Panics
    /// When the table has no such arrow: that is a bug of the caller, and a lane that goes on
    /// from there would write nonsense.
    pub fn transition(&mut self, to: TxState, sub: SubState, now: Timestamp) {
        assert!(
            self.state == to || self.state.may_become(to),
            "tx {}: {} may not become {}",
            self.id,
            self.state.as_str(),
            to.as_str()
        );
        self.state = to;
        self.sub_state = Some(sub);
        self.written.at = now;
    }

    /// Whether it still needs a lane.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.state.is_terminal()
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;

    #[test]
    fn docs_show_the_transition_table() {
        expect_file!["../../../docs/states.md"].assert_eq(&TxState::diagram());
    }

    #[test]
    fn every_state_is_reached_left_and_parsed() {
        for state in TxState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
            let is_start = state == Created;
            assert!(is_start || TRANSITIONS.iter().any(|arrow| arrow.to == state));
            assert!(TRANSITIONS.iter().any(|arrow| arrow.from == state));
        }
    }

    #[test]
    fn claimed_tx_never_becomes_unclaimed() {
        assert!(!Tracking.may_become(Allocated));
        assert!(!Confirmed.may_become(Created));
    }
}
