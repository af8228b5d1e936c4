//! Everything that happens in a world, as its outside sees it: what traces and checkers are fed.

use std::fmt;
use std::sync::Arc;

use domain::{
    B256, ChainId, Header, LaneKey, NodeName, Nonce, RequestId, SendOutcome, Token, TxId,
};
use engine::node::Refusal;
use engine::ports::{CommitOutcome, LaneBatch, Regranted};

use crate::chain::ChainTx;

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum WorldEvent {
    /// A new part of the run begins.
    Phase(&'static str),
    /// A node started and can be asked.
    Started(NodeName),
    /// A node was killed, or died by itself.
    Crashed {
        /// Which.
        node: NodeName,
        /// At which of its polls.
        polls: u64,
    },
    /// A node was frozen.
    Frozen(NodeName),
    /// A frozen node goes on.
    Thawed(NodeName),
    /// A node lost its line to the store, or got it back.
    Cut {
        /// Which node.
        node: NodeName,
        /// Lost or got back.
        is_cut: bool,
    },

    /// The store granted a lane.
    Granted {
        /// Which lane.
        lane: LaneKey,
        /// To whom.
        node: NodeName,
        /// Under which token.
        token: Token,
        /// Who had it.
        taken_from: Option<NodeName>,
    },
    /// A keeper gave a lane back.
    Released {
        /// Which lane.
        lane: LaneKey,
        /// Who had it.
        node: NodeName,
    },
    /// A keeper had a lane granted anew.
    Regranted {
        /// Which lane.
        lane: LaneKey,
        /// What came of it.
        outcome: Regranted,
    },
    /// A gate batch met the store.
    Committed {
        /// Which lane.
        lane: LaneKey,
        /// What was to be written.
        batch: Arc<LaneBatch>,
        /// What came of it (in the store; the writer may hear something else).
        outcome: CommitOutcome,
    },
    /// A request was put into the store without a nonce.
    Queued {
        /// Which lane.
        lane: LaneKey,
        /// The key of the business.
        request_id: RequestId,
        /// The tx.
        tx_id: TxId,
    },

    /// Bytes arrived at a node of the chain.
    Sent {
        /// Of which lane.
        lane: LaneKey,
        /// At which nonce.
        nonce: Nonce,
        /// Which.
        hash: B256,
        /// What the node said (the sender may hear something else).
        outcome: SendOutcome,
    },
    /// A block became part of the present chain.
    Mined {
        /// Of which chain.
        chain_id: ChainId,
        /// Its header.
        header: Header,
        /// What is in it.
        txs: Vec<Arc<ChainTx>>,
    },
    /// Blocks fell out of the present chain.
    Forked {
        /// Of which chain.
        chain_id: ChainId,
        /// Their headers, newest first.
        dropped: Vec<Header>,
    },
    /// All nodes of the chain forgot a transaction.
    Dropped {
        /// Of which chain.
        chain_id: ChainId,
        /// Which.
        hash: B256,
    },

    /// A client asked a node.
    Asked {
        /// Which lane.
        lane: LaneKey,
        /// The key of the business.
        request_id: RequestId,
        /// Whom.
        node: NodeName,
    },
    /// A client got an answer.
    Answered {
        /// Which lane.
        lane: LaneKey,
        /// The key of the business.
        request_id: RequestId,
        /// From whom.
        node: NodeName,
        /// What it was told.
        answer: Answer,
    },
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is durable.
    Accepted {
        /// Under this name.
        tx_id: TxId,
        /// Whether this request made it.
        is_new: bool,
    },
    /// It was refused.
    Refused(Refusal),
    /// Nothing: the node died or the client lost patience.
    Silence,
}

impl fmt::Display for WorldEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Phase(name) => write!(f, "=== {name}"),
            Self::Started(node) => write!(f, "node {node} started"),
            Self::Crashed { node, polls } => write!(f, "node {node} crashed after {polls} polls"),
            Self::Frozen(node) => write!(f, "node {node} frozen"),
            Self::Thawed(node) => write!(f, "node {node} thawed"),
            Self::Cut { node, is_cut: true } => write!(f, "node {node} cut off from the store"),
            Self::Cut {
                node,
                is_cut: false,
            } => write!(f, "node {node} reaches the store again"),
            Self::Granted {
                lane,
                node,
                token,
                taken_from,
            } => {
                write!(f, "store  granted {} to {node}, token {token}", short(lane))?;
                taken_from
                    .as_ref()
                    .map_or(Ok(()), |from| write!(f, ", taken from {from}"))
            }
            Self::Released { lane, node } => {
                write!(f, "store  {} given back by {node}", short(lane))
            }
            Self::Regranted { lane, outcome } => regranted(f, lane, outcome),
            Self::Committed {
                lane,
                batch,
                outcome,
            } => committed(f, lane, batch, outcome),
            Self::Queued {
                lane,
                request_id,
                tx_id,
            } => {
                write!(
                    f,
                    "store  queued {request_id} on {} as {tx_id}",
                    short(lane)
                )
            }
            Self::Sent {
                lane,
                nonce,
                hash,
                outcome,
            } => {
                write!(
                    f,
                    "chain  {} nonce {nonce} {}: {outcome:?}",
                    short(lane),
                    brief(hash)
                )
            }
            Self::Mined { header, txs, .. } => mined(f, header, txs),
            Self::Forked { dropped, .. } => {
                f.write_str("chain  fork drops")?;
                dropped
                    .iter()
                    .try_for_each(|h| write!(f, " {} {}", h.number, brief(&h.hash)))
            }
            Self::Dropped { hash, .. } => write!(f, "chain  forgot {}", brief(hash)),
            Self::Asked {
                lane,
                request_id,
                node,
            } => {
                write!(f, "client asks {node} for {request_id} on {}", short(lane))
            }
            Self::Answered {
                request_id,
                node,
                answer,
                ..
            } => {
                write!(f, "client {request_id}: {node} {answer}")
            }
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted {
                tx_id,
                is_new: true,
            } => write!(f, "accepted it as {tx_id}"),
            Self::Accepted {
                tx_id,
                is_new: false,
            } => write!(f, "knows it as {tx_id}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Silence => f.write_str("gave no answer"),
        }
    }
}

fn regranted(f: &mut fmt::Formatter<'_>, lane: &LaneKey, outcome: &Regranted) -> fmt::Result {
    let lane = short(lane);
    match outcome {
        Regranted::Held {
            right,
            last_batch: Some(batch),
        } => {
            write!(
                f,
                "store  regranted {lane} token {}, last batch {batch}",
                right.token
            )
        }
        Regranted::Held {
            right,
            last_batch: None,
        } => {
            write!(
                f,
                "store  regranted {lane} token {}, no batch yet",
                right.token
            )
        }
        Regranted::Fenced => write!(f, "store  regrant of {lane} FENCED"),
    }
}

fn mined(f: &mut fmt::Formatter<'_>, header: &Header, txs: &[Arc<ChainTx>]) -> fmt::Result {
    write!(f, "chain  block {} {}:", header.number, brief(&header.hash))?;
    txs.iter()
        .try_for_each(|tx| write!(f, " {}@{}", brief(&tx.hash), tx.envelope.nonce))
}

fn committed(
    f: &mut fmt::Formatter<'_>,
    lane: &LaneKey,
    batch: &LaneBatch,
    outcome: &CommitOutcome,
) -> fmt::Result {
    let (node, token) = (&batch.node, batch.right.token);
    write!(
        f,
        "store  commit {} {} by {node}/{token}: ",
        batch.batch,
        short(lane)
    )?;
    match outcome {
        CommitOutcome::Applied => f.write_str("applied")?,
        CommitOutcome::Fenced => return f.write_str("FENCED"),
        CommitOutcome::Conflict(conflict) => return write!(f, "CONFLICT {conflict:?}"),
        CommitOutcome::NotApplied(why) => return write!(f, "NOT APPLIED {why}"),
        CommitOutcome::Unknown(why) => return write!(f, "UNKNOWN {why}"),
    }
    let writes = &batch.writes;
    write!(
        f,
        ", cursor {}, seq {}",
        batch.next_nonce, batch.event_seq_before
    )?;
    for tx in writes.inserts.iter().chain(&writes.updates) {
        let nonce = tx.nonce.map_or("-".to_owned(), |nonce| nonce.to_string());
        let sub = tx.sub_state.map_or("", domain::SubState::word);
        write!(f, " {}@{nonce}={}/{sub}", tx.request_id, tx.state.word())?;
    }
    for attempt in &writes.attempts {
        write!(
            f,
            " +{}@{}:{}",
            brief(&attempt.hash),
            attempt.nonce,
            attempt.kind.word()
        )?;
    }
    writes
        .events
        .iter()
        .try_for_each(|event| write!(f, " {}", event.kind.word()))
}

/// A lane in few letters: the end of its signer.
fn short(lane: &LaneKey) -> String {
    let digits = alloy_primitives::hex::encode(lane.signer);
    format!("{}:{}", lane.chain_id, &digits[digits.len() - 4..])
}

/// A hash in few letters.
fn brief(hash: &B256) -> String {
    alloy_primitives::hex::encode(&hash[..4])
}
