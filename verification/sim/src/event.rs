//! The events of a world as an outside observer sees them: the input of traces and checkers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use domain::lane::AccountBalance;
use domain::{
    B256, ChainId, GrantId, Header, History, Holder, LaneId, LaneImage, LaneKey, Mark, NodeName,
    Nonce, RequestId, SendOutcome, Token, TxId,
};
use engine::node::{NodeLoad, Refusal};
use engine::ports::{CommitOutcome, LaneBatch, RegrantOutcome};

use crate::chain::ChainTx;

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum WorldEvent {
    /// A new phase of the run begins.
    Phase(&'static str),
    /// A node started and answers requests.
    Started(NodeName),
    /// A node was killed, or its process ended.
    Crashed {
        /// The node.
        node: NodeName,
        /// At which of its polls it was killed.
        polls: u64,
    },
    /// A machine leaves the cluster permanently.
    Left(NodeName),
    /// A node is drained, and then stopped.
    Draining(NodeName),
    /// A node was frozen.
    Frozen(NodeName),
    /// A frozen node continues.
    Thawed(NodeName),
    /// A node lost its link to the store, or got it back.
    StoreLinkCut {
        /// The node.
        node: NodeName,
        /// Whether the link is cut.
        is_cut: bool,
    },
    /// A node lost its links to the other nodes, or got them back.
    Isolated {
        /// The node.
        node: NodeName,
        /// Whether the links are cut.
        is_cut: bool,
    },
    /// The sends of a node hang at every endpoint, or no longer do.
    SendsHang {
        /// The node.
        node: NodeName,
        /// Whether they hang.
        hangs: bool,
    },
    /// The database's clock was set.
    ClockJumped {
        /// By how many milliseconds.
        by_ms: i64,
    },
    /// The wall clock of a node was set, frozen or continued.
    NodeClock {
        /// The node.
        node: NodeName,
        /// The change, as text.
        what: String,
    },
    /// The store's standby stops replicating: a failover loses everything written from now on.
    StandbyStopped,
    /// The store's standby was promoted.
    FailedOver {
        /// The history that begins: another timeline, or one more restore.
        history: History,
        /// Txs that were lost.
        lost: Vec<TxId>,
        /// Lanes that lost commits.
        damaged: Vec<LaneKey>,
    },

    /// The store granted a lane.
    Granted {
        /// The lane.
        lane: LaneKey,
        /// The new keeper.
        node: NodeName,
        /// Its token.
        token: Token,
        /// Its grant.
        grant: GrantId,
        /// The previous keeper.
        previous_keeper: Option<NodeName>,
        /// How long the previous keeper's lease would have lasted, by the store's clock.
        left: Duration,
    },
    /// A keeper released a lane.
    Released {
        /// The lane.
        lane: LaneKey,
        /// The node that held it.
        node: NodeName,
    },
    /// A keeper requested a new grant of its lane.
    Regranted {
        /// The lane.
        lane: LaneKey,
        /// The outcome.
        outcome: RegrantOutcome,
    },
    /// A gate batch reached the store.
    Committed {
        /// The lane.
        lane: LaneKey,
        /// The batch.
        batch: Arc<LaneBatch>,
        /// The outcome in the store; the writer may get another answer.
        outcome: CommitOutcome,
    },
    /// A keeper loaded its lane from the store.
    Loaded {
        /// The lane.
        lane: LaneKey,
        /// The image that it got.
        image: Arc<LaneImage>,
    },
    /// A transaction of the store waits for a row that another transaction holds.
    LockWait {
        /// The verb that it executes.
        verb: &'static str,
        /// The row, as text.
        row: String,
        /// The lane of the row, if it is a lane row or a lease row.
        lane: Option<LaneId>,
    },
    /// A transaction of the store was rolled back because of a deadlock.
    Deadlocked {
        /// The verb that it executed.
        verb: &'static str,
        /// The row, as text.
        row: String,
    },
    /// A request was queued in the store without a nonce.
    Queued {
        /// The lane.
        lane: LaneKey,
        /// The idempotency key.
        request_id: RequestId,
        /// The tx.
        tx_id: TxId,
    },

    /// A node begins to send attempts of a lane to the chain.
    Sending {
        /// The lane.
        lane: LaneKey,
        /// The sending node.
        node: NodeName,
        /// The nonces, in the order of the send.
        nonces: Vec<Nonce>,
    },
    /// A node queries the balance of a lane's account, or has its answer.
    BalanceQueried {
        /// The lane.
        lane: LaneKey,
        /// The node.
        node: NodeName,
        /// The answer; `None` before there is one.
        answer: Option<AccountBalance>,
    },
    /// An attempt arrived at an endpoint of the chain.
    Sent {
        /// The lane.
        lane: LaneKey,
        /// The endpoint.
        endpoint: usize,
        /// The nonce.
        nonce: Nonce,
        /// The transaction hash.
        hash: B256,
        /// The endpoint's answer; the sender may get another one.
        outcome: SendOutcome,
    },
    /// A block became part of the canonical chain.
    Mined {
        /// The chain.
        chain_id: ChainId,
        /// Its header.
        header: Header,
        /// Its transactions.
        txs: Vec<Arc<ChainTx>>,
    },
    /// Blocks were reorged out of the canonical chain.
    Forked {
        /// The chain.
        chain_id: ChainId,
        /// Their headers, newest first.
        dropped: Vec<Header>,
    },
    /// All endpoints of the chain dropped a transaction.
    Dropped {
        /// The chain.
        chain_id: ChainId,
        /// The transaction hash.
        hash: B256,
    },

    /// A setting of the chain or of one of its endpoints changed.
    ChainSet {
        /// The chain.
        chain_id: ChainId,
        /// The change, as text.
        what: String,
    },
    /// A foreign transaction, sent by another owner of the key, is pending somewhere.
    Foreign {
        /// The lane.
        lane: LaneKey,
        /// The nonce.
        nonce: Nonce,
        /// The transaction hash.
        hash: B256,
    },
    /// A foreign transaction is not pending anywhere any more: mined, replaced or dropped.
    ForeignGone {
        /// The chain.
        chain_id: ChainId,
        /// The transaction hash.
        hash: B256,
    },

    /// A feed reader got a page.
    FeedRead {
        /// The reader.
        reader: usize,
        /// The node that answered.
        node: NodeName,
        /// The lanes and numbers of the events, in page order.
        read: Vec<(LaneKey, u64)>,
    },
    /// The cursor of a feed reader is not valid any more: it reads from the beginning.
    FeedRestarted {
        /// The reader.
        reader: usize,
    },
    /// An operator accepted the loss of a lane.
    LossAccepted {
        /// The lane.
        lane: LaneKey,
        /// The node that took the command.
        node: NodeName,
    },
    /// The load of a node's queues. Shown to checkers only: it would fill the trace.
    Sampled {
        /// The node.
        node: NodeName,
        /// Its load.
        load: NodeLoad,
    },

    /// A client got a nonce reservation.
    NonceReserved {
        /// The lane.
        lane: LaneKey,
        /// The nonce.
        nonce: Nonce,
        /// The holder.
        holder: Holder,
    },
    /// A holder marks its nonce.
    NonceMarked {
        /// The lane.
        lane: LaneKey,
        /// The nonce.
        nonce: Nonce,
        /// The holder.
        holder: Holder,
        /// The mark.
        mark: Mark,
        /// Whether it was accepted; `None` before there is an answer.
        accepted: Option<bool>,
    },

    /// A client sent a request to a node.
    RequestSent {
        /// The lane.
        lane: LaneKey,
        /// The idempotency key.
        request_id: RequestId,
        /// The node.
        node: NodeName,
    },
    /// A client got an answer.
    RequestAnswered {
        /// The lane.
        lane: LaneKey,
        /// The idempotency key.
        request_id: RequestId,
        /// The node.
        node: NodeName,
        /// The answer.
        answer: Answer,
    },
}

/// The answer that a client got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request is durable.
    Accepted {
        /// The id of its tx.
        tx_id: TxId,
        /// Whether this request created the tx.
        is_new: bool,
    },
    /// It was refused.
    Refused(Refusal),
    /// No answer: the node crashed or the client timed out.
    NoAnswer,
}

impl fmt::Display for WorldEvent {
    #[expect(
        clippy::too_many_lines,
        reason = "one short arm per event, all in one place"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Self::Phase(name) => format!("=== {name}"),
            Self::Started(node) => format!("node {node} started"),
            Self::Crashed { node, polls } => format!("node {node} crashed after {polls} polls"),
            Self::Left(node) => format!("node {node} leaves permanently"),
            Self::Draining(node) => format!("node {node} drains"),
            Self::Frozen(node) => format!("node {node} frozen"),
            Self::Thawed(node) => format!("node {node} thawed"),
            Self::StoreLinkCut { node, is_cut: cut } => {
                format!("node {node} cut off from the store: {cut}")
            }
            Self::Isolated { node, is_cut: cut } => {
                format!("node {node} isolated from the other nodes: {cut}")
            }
            Self::SendsHang { node, hangs } => format!("node {node} sends hang: {hangs}"),
            Self::ClockJumped { by_ms } => format!("store  clock set by {by_ms} ms"),
            Self::NodeClock { node, what } => format!("node {node} clock {what}"),
            Self::StandbyStopped => "store  standby does not follow any more".to_owned(),
            Self::FailedOver {
                history,
                lost,
                damaged,
            } => failed_over(*history, lost, damaged),
            Self::Granted {
                lane,
                node,
                token,
                previous_keeper,
                left,
                ..
            } => granted(lane, node, *token, previous_keeper.as_ref(), *left),
            Self::Released { lane, node } => {
                format!("store  {} released by {node}", short_lane(lane))
            }
            Self::Regranted { lane, outcome } => regranted(lane, outcome),
            Self::Committed {
                lane,
                batch,
                outcome,
            } => committed(lane, batch, outcome),
            Self::Loaded { lane, image } => loaded(lane, image),
            Self::LockWait { verb, row, .. } => format!("store  {verb} waits for {row}"),
            Self::Deadlocked { verb, row } => format!("store  {verb} DEADLOCKED at {row}"),
            Self::Queued {
                lane,
                request_id,
                tx_id,
            } => {
                format!(
                    "store  queued {request_id} on {} as {tx_id}",
                    short_lane(lane)
                )
            }
            Self::Sending { lane, node, nonces } => {
                let nonces: Vec<u64> = nonces.iter().map(|nonce| nonce.0).collect();
                format!("node {node} sends {} nonces {nonces:?}", short_lane(lane))
            }
            Self::BalanceQueried { lane, node, answer } => {
                let lane = short_lane(lane);
                match answer {
                    Some(AccountBalance {
                        block,
                        nonce,
                        balance,
                    }) => format!(
                        "node {node} {lane} has {balance} wei at block {block}, nonce {nonce}"
                    ),
                    None => format!("node {node} queries the balance of {lane}"),
                }
            }
            Self::Sent {
                lane,
                endpoint,
                nonce,
                hash,
                outcome,
            } => {
                let (lane, hash) = (short_lane(lane), short_hash(hash));
                format!("chain  {lane} nonce {nonce} {hash} at {endpoint}: {outcome:?}")
            }
            Self::Mined { header, txs, .. } => mined(header, txs),
            Self::Forked { dropped, .. } => forked(dropped),
            Self::Dropped { hash, .. } => format!("chain  forgot {}", short_hash(hash)),
            Self::ChainSet { what, .. } => format!("chain  {what}"),
            Self::Foreign { lane, nonce, hash } => {
                let (lane, hash) = (short_lane(lane), short_hash(hash));
                format!("chain  {lane} nonce {nonce} {hash} foreign, pending")
            }
            Self::ForeignGone { hash, .. } => {
                format!("chain  {} foreign, not pending any more", short_hash(hash))
            }
            Self::FeedRead { reader, node, read } => feed_read(*reader, node, read),
            Self::FeedRestarted { reader } => format!("reader {reader} restarts"),
            Self::LossAccepted { lane, node } => {
                format!("client accepts the loss of {} at {node}", short_lane(lane))
            }
            Self::Sampled { node, load } => format!("node {node} {load:?}"),
            Self::NonceReserved {
                lane,
                nonce,
                holder,
            } => format!(
                "client reserved nonce {nonce} of {} as {}",
                short_lane(lane),
                holder.0
            ),
            Self::NonceMarked {
                lane,
                nonce,
                holder,
                mark,
                accepted,
            } => {
                let (lane, holder) = (short_lane(lane), holder.0);
                format!(
                    "client {holder} marks nonce {nonce} of {lane}: {mark:?}, accepted: {accepted:?}"
                )
            }
            Self::RequestSent {
                lane,
                request_id,
                node,
            } => {
                format!(
                    "client sends {request_id} to {node} on {}",
                    short_lane(lane)
                )
            }
            Self::RequestAnswered {
                request_id,
                node,
                answer,
                ..
            } => {
                format!("client {request_id}: {node} {answer}")
            }
        };
        f.write_str(&line)
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
            Self::NoAnswer => f.write_str("gave no answer"),
        }
    }
}

fn granted(
    lane: &LaneKey,
    node: &NodeName,
    token: Token,
    from: Option<&NodeName>,
    left: Duration,
) -> String {
    let (lane, from) = (
        short_lane(lane),
        from.map_or("none", |node| node.0.as_str()),
    );
    let early = if left.is_zero() {
        String::new()
    } else {
        format!(" for {} ms more", left.as_millis())
    };
    format!("store  granted {lane} to {node}/{token}, previous keeper {from}{early}")
}

fn regranted(lane: &LaneKey, outcome: &RegrantOutcome) -> String {
    let lane = short_lane(lane);
    match outcome {
        RegrantOutcome::Held {
            lease_grant,
            batch_seq,
        } => {
            format!(
                "store  regranted {lane}/{}, batch {batch_seq}",
                lease_grant.token
            )
        }
        RegrantOutcome::Fenced => format!("store  regrant of {lane} FENCED"),
    }
}

fn loaded(lane: &LaneKey, image: &LaneImage) -> String {
    let (lane, held) = (short_lane(lane), &image.held);
    let (batches, queued) = (image.batch_seq, image.open.queued);
    format!("store  {lane} loaded after {batches}: nonces {held:?} held, {queued} txs queued")
}

fn failed_over(history: History, lost: &[TxId], damaged: &[LaneKey]) -> String {
    let mut line = format!("store  FAILED OVER to history {history}; lost");
    for tx in lost {
        line += &format!(" {tx}");
    }
    line += "; damaged";
    for lane in damaged {
        line += &format!(" {}", short_lane(lane));
    }
    line
}

fn mined(header: &Header, txs: &[Arc<ChainTx>]) -> String {
    let mut line = format!(
        "chain  block {} {}:",
        header.number,
        short_hash(&header.hash)
    );
    for tx in txs {
        line.push_str(&format!(" {}@{}", short_hash(&tx.hash), tx.envelope.nonce));
    }
    line
}

fn forked(dropped: &[Header]) -> String {
    let mut line = "chain  fork drops".to_owned();
    for header in dropped {
        line.push_str(&format!(" {} {}", header.number, short_hash(&header.hash)));
    }
    line
}

fn committed(lane: &LaneKey, batch: &LaneBatch, outcome: &CommitOutcome) -> String {
    let (node, token) = (&batch.node, batch.lease_grant.token);
    let mut line = format!(
        "store  commit {} after {} by {node}/{token}: ",
        short_lane(lane),
        batch.batch_seq_before
    );
    match outcome {
        CommitOutcome::Applied => line.push_str("applied"),
        CommitOutcome::Fenced => return line + "FENCED",
        CommitOutcome::Conflict(conflict) => return line + &format!("CONFLICT {conflict:?}"),
        CommitOutcome::Locked => return line + "LOCKED",
        CommitOutcome::NotApplied(why) => return line + "NOT APPLIED " + why,
        CommitOutcome::Unknown(why) => return line + "UNKNOWN " + why,
    }
    let writes = &batch.writes;
    line += &format!(
        ", nonces {}..{}, seq {}",
        batch.floor_nonce, batch.next_nonce, batch.event_seq_before
    );
    for tx in writes.inserts.iter().chain(&writes.updates) {
        let nonce = tx.nonce.map_or("-".to_owned(), |nonce| nonce.to_string());
        let sub = tx.sub_state.map_or("", domain::SubState::as_str);
        line += &format!(
            " {}@{nonce}={}/{sub}",
            tx.request.request_id,
            tx.state.as_str()
        );
    }
    for attempt in &writes.attempts {
        let (hash, kind) = (short_hash(&attempt.hash), attempt.kind.as_str());
        line += &format!(" +{hash}@{}:{kind}", attempt.nonce);
    }
    for event in &writes.events {
        line += " ";
        line += event.kind.as_str();
    }
    line
}

fn feed_read(reader: usize, node: &NodeName, read: &[(LaneKey, u64)]) -> String {
    let mut line = format!("reader {reader} reads at {node}:");
    for (lane, seq) in read {
        line += &format!(" {}#{seq}", short_lane(lane));
    }
    line
}

/// A lane as a short text: the end of its signer.
pub(crate) fn short_lane(lane: &LaneKey) -> String {
    let digits = alloy_primitives::hex::encode(lane.signer);
    format!("{}:{}", lane.chain_id, &digits[digits.len() - 4..])
}

/// A hash as a short text.
fn short_hash(hash: &B256) -> String {
    alloy_primitives::hex::encode(&hash[..4])
}
