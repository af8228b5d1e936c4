//! Everything that happens in a world, as its outside sees it: what traces and checkers are fed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use domain::{
    B256, ChainId, GrantId, Header, Holder, LaneId, LaneImage, LaneKey, Mark, NodeName, Nonce,
    RequestId, SendOutcome, Token, TxId,
};
use engine::node::{NodeLoad, Refusal};
use engine::ports::{CommitOutcome, LaneBatch, RegrantOutcome};

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
    /// A machine leaves the cluster for good.
    Left(NodeName),
    /// A node is drained, and then stopped.
    Draining(NodeName),
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
    /// A node lost its lines to the other nodes, or got them back.
    Isolated {
        /// Which node.
        node: NodeName,
        /// Lost or got back.
        is_cut: bool,
    },
    /// The database's clock was set.
    ClockJumped {
        /// By so many milliseconds.
        by_ms: i64,
    },
    /// The clock of a node was set, or stands still, or goes on.
    NodeClock {
        /// Which node.
        node: NodeName,
        /// What, in words.
        what: String,
    },
    /// The store's standby does not follow any more: what is written from now on, a failover loses.
    StandbyStopped,
    /// The store's standby took over.
    FailedOver {
        /// Which history begins.
        history: u64,
        /// Txs that are gone.
        lost: Vec<TxId>,
        /// Lanes that lost commits.
        hurt: Vec<LaneKey>,
    },

    /// The store granted a lane.
    Granted {
        /// Which lane.
        lane: LaneKey,
        /// To whom.
        node: NodeName,
        /// Under which token.
        token: Token,
        /// Under which grant.
        grant: GrantId,
        /// Who had it.
        previous_keeper: Option<NodeName>,
        /// How long the lease of that node would have lasted, by the store's clock.
        left: Duration,
    },
    /// A keeper gave a lane back.
    Released {
        /// Which lane.
        lane: LaneKey,
        /// Who had it.
        node: NodeName,
    },
    /// A keeper had a lane granted anew.
    RegrantOutcome {
        /// Which lane.
        lane: LaneKey,
        /// What came of it.
        outcome: RegrantOutcome,
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
    /// A keeper was given what the store holds of its lane.
    Loaded {
        /// Which lane.
        lane: LaneKey,
        /// What it was given.
        image: Arc<LaneImage>,
    },
    /// A transaction of the store waits for a row that another one holds.
    Waits {
        /// What it does.
        verb: &'static str,
        /// For which row, in words.
        row: String,
        /// Whose lane row or lease row it is.
        lane: Option<LaneId>,
    },
    /// A transaction of the store was ended because it waited in a circle.
    Deadlocked {
        /// What it did.
        verb: &'static str,
        /// For which row, in words.
        row: String,
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

    /// A node begins to send bytes of a lane to its chain.
    Sending {
        /// Which lane.
        lane: LaneKey,
        /// Who sends.
        node: NodeName,
        /// From this nonce on.
        nonce: Nonce,
    },
    /// Bytes arrived at a node of the chain.
    Sent {
        /// Of which lane.
        lane: LaneKey,
        /// At which of them.
        endpoint: usize,
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

    /// The chain or one of its nodes is different from now on.
    ChainSet {
        /// Which chain.
        chain_id: ChainId,
        /// What, in words.
        what: String,
    },
    /// A transaction of somebody else who has the key waits somewhere.
    Foreign {
        /// Of which lane.
        lane: LaneKey,
        /// At which nonce.
        nonce: Nonce,
        /// Which.
        hash: B256,
    },
    /// A transaction of somebody else waits nowhere any more: mined, replaced or forgotten.
    ForeignGone {
        /// Of which chain.
        chain_id: ChainId,
        /// Which.
        hash: B256,
    },

    /// A reader of the feed got a page.
    FeedRead {
        /// Which reader.
        reader: usize,
        /// From whom.
        node: NodeName,
        /// Whose events, and their numbers, in the order of the page.
        read: Vec<(LaneKey, u64)>,
    },
    /// A reader's cursor is not known any more: it reads from the beginning.
    FeedBegun {
        /// Which reader.
        reader: usize,
    },
    /// An operator accepted what a lane has lost.
    LossAccepted {
        /// Which lane.
        lane: LaneKey,
        /// Who was told.
        node: NodeName,
    },
    /// How full a node's queues are. Seen by checkers only: it would fill the trace.
    Sampled {
        /// Which node.
        node: NodeName,
        /// What is in them.
        load: NodeLoad,
    },

    /// Somebody was told that a nonce is lent to him.
    ReservedAccounts {
        /// Of which lane.
        lane: LaneKey,
        /// Which.
        nonce: Nonce,
        /// To whom.
        holder: Holder,
    },
    /// Somebody says what became of his nonce.
    Said {
        /// Of which lane.
        lane: LaneKey,
        /// Of which nonce.
        nonce: Nonce,
        /// Who.
        holder: Holder,
        /// What.
        mark: Mark,
        /// Whether it was taken; `None` as long as he has no answer.
        taken: Option<bool>,
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
    #[expect(
        clippy::too_many_lines,
        reason = "one short arm per event, all in one place"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Self::Phase(name) => format!("=== {name}"),
            Self::Started(node) => format!("node {node} started"),
            Self::Crashed { node, polls } => format!("node {node} crashed after {polls} polls"),
            Self::Left(node) => format!("node {node} leaves for good"),
            Self::Draining(node) => format!("node {node} drains"),
            Self::Frozen(node) => format!("node {node} frozen"),
            Self::Thawed(node) => format!("node {node} thawed"),
            Self::Cut { node, is_cut: cut } => format!("node {node} cut off from the store: {cut}"),
            Self::Isolated { node, is_cut: cut } => {
                format!("node {node} cut off from the others: {cut}")
            }
            Self::ClockJumped { by_ms } => format!("store  clock set by {by_ms} ms"),
            Self::NodeClock { node, what } => format!("node {node} clock {what}"),
            Self::StandbyStopped => "store  standby does not follow any more".to_owned(),
            Self::FailedOver {
                history,
                lost,
                hurt,
            } => failed_over(*history, lost, hurt),
            Self::Granted {
                lane,
                node,
                token,
                previous_keeper,
                left,
                ..
            } => granted(lane, node, *token, previous_keeper.as_ref(), *left),
            Self::Released { lane, node } => format!("store  {} released by {node}", short(lane)),
            Self::RegrantOutcome { lane, outcome } => regranted(lane, outcome),
            Self::Committed {
                lane,
                batch,
                outcome,
            } => committed(lane, batch, outcome),
            Self::Loaded { lane, image } => loaded(lane, image),
            Self::Waits { verb, row, .. } => format!("store  {verb} waits for {row}"),
            Self::Deadlocked { verb, row } => format!("store  {verb} DEADLOCKED at {row}"),
            Self::Queued {
                lane,
                request_id,
                tx_id,
            } => {
                format!("store  queued {request_id} on {} as {tx_id}", short(lane))
            }
            Self::Sending { lane, node, nonce } => {
                format!("node {node} sends {} from nonce {nonce} on", short(lane))
            }
            Self::Sent {
                lane,
                endpoint,
                nonce,
                hash,
                outcome,
            } => {
                let (lane, hash) = (short(lane), brief(hash));
                format!("chain  {lane} nonce {nonce} {hash} at {endpoint}: {outcome:?}")
            }
            Self::Mined { header, txs, .. } => mined(header, txs),
            Self::Forked { dropped, .. } => forked(dropped),
            Self::Dropped { hash, .. } => format!("chain  forgot {}", brief(hash)),
            Self::ChainSet { what, .. } => format!("chain  {what}"),
            Self::Foreign { lane, nonce, hash } => {
                let (lane, hash) = (short(lane), brief(hash));
                format!("chain  {lane} nonce {nonce} {hash} of somebody else waits")
            }
            Self::ForeignGone { hash, .. } => {
                format!("chain  {} of somebody else waits no more", brief(hash))
            }
            Self::FeedRead { reader, node, read } => feed_read(*reader, node, read),
            Self::FeedBegun { reader } => format!("reader {reader} begins anew"),
            Self::LossAccepted { lane, node } => {
                format!("client accepts at {node} what {} has lost", short(lane))
            }
            Self::Sampled { node, load } => format!("node {node} {load:?}"),
            Self::ReservedAccounts {
                lane,
                nonce,
                holder,
            } => format!(
                "client has nonce {nonce} of {} as {}",
                short(lane),
                holder.0
            ),
            Self::Said {
                lane,
                nonce,
                holder,
                mark,
                taken,
            } => {
                let (lane, who) = (short(lane), holder.0);
                format!("client {who} says of nonce {nonce} of {lane}: {mark:?}, taken: {taken:?}")
            }
            Self::Asked {
                lane,
                request_id,
                node,
            } => {
                format!("client asks {node} for {request_id} on {}", short(lane))
            }
            Self::Answered {
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
            Self::Silence => f.write_str("gave no answer"),
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
    let (lane, from) = (short(lane), from.map_or("nobody", |node| node.0.as_str()));
    let early = if left.is_zero() {
        String::new()
    } else {
        format!(" for {} ms more", left.as_millis())
    };
    format!("store  granted {lane} to {node}/{token}, was {from}'s{early}")
}

fn regranted(lane: &LaneKey, outcome: &RegrantOutcome) -> String {
    let lane = short(lane);
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
    let (lane, held) = (short(lane), &image.held);
    let (batches, queued) = (image.batch_seq, image.queued);
    format!("store  {lane} is read after {batches}: nonces {held:?} are held, {queued} txs wait")
}

fn failed_over(history: u64, lost: &[TxId], hurt: &[LaneKey]) -> String {
    let mut line = format!("store  FAILED OVER to history {history}; lost");
    for tx in lost {
        line += &format!(" {tx}");
    }
    line += "; hurt";
    for lane in hurt {
        line += &format!(" {}", short(lane));
    }
    line
}

fn mined(header: &Header, txs: &[Arc<ChainTx>]) -> String {
    let mut line = format!("chain  block {} {}:", header.number, brief(&header.hash));
    for tx in txs {
        line.push_str(&format!(" {}@{}", brief(&tx.hash), tx.envelope.nonce));
    }
    line
}

fn forked(dropped: &[Header]) -> String {
    let mut line = "chain  fork drops".to_owned();
    for header in dropped {
        line.push_str(&format!(" {} {}", header.number, brief(&header.hash)));
    }
    line
}

fn committed(lane: &LaneKey, batch: &LaneBatch, outcome: &CommitOutcome) -> String {
    let (node, token) = (&batch.node, batch.lease_grant.token);
    let mut line = format!(
        "store  commit {} after {} by {node}/{token}: ",
        short(lane),
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
        line += &format!(" {}@{nonce}={}/{sub}", tx.request_id, tx.state.as_str());
    }
    for attempt in &writes.attempts {
        let (hash, kind) = (brief(&attempt.hash), attempt.kind.as_str());
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
        line += &format!(" {}#{seq}", short(lane));
    }
    line
}

/// A lane in few letters: the end of its signer.
pub(crate) fn short(lane: &LaneKey) -> String {
    let digits = alloy_primitives::hex::encode(lane.signer);
    format!("{}:{}", lane.chain_id, &digits[digits.len() - 4..])
}

/// A hash in few letters.
fn brief(hash: &B256) -> String {
    alloy_primitives::hex::encode(&hash[..4])
}
