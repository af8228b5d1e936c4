//! The miner: one thread, the only writer. It makes blocks by its mode and obeys control calls,
//! one thing at a time, so that nothing else in the chain has to think about two writers.

mod produce;
mod reorg;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, U256};
use rusqlite::Connection;

pub(super) use self::reorg::ReorgOrder;
use super::error::{DevChainError, StoreError};
use super::limits;
use super::node::Node;
use super::state::StateCache;
use super::store::View;

/// When blocks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mining {
    /// As soon as the pool has something executable: all of it in one block, then again.
    Instant,
    /// At a fixed pace, also empty ones.
    Interval(Duration),
    /// Only when a control call asks for one.
    Manual,
}

/// Why a control call did not happen. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the dev chain is shutting down")]
    Stopped,
}

impl From<rusqlite::Error> for ControlError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// What a caller can ask of the miner.
pub(super) enum Order {
    Mine { blocks: u64 },
    SetMining(Mining),
    Reorg(ReorgOrder),
    SetBalance(Address, U256),
    SetNonce(Address, u64),
}

enum Message {
    /// Something may have become executable. Carries nothing: the miner looks for itself.
    Bell,
    Order(Order, SyncSender<Result<(), ControlError>>),
    Stop,
}

/// The way to the miner. Dropping it stops the thread, after the block it is working on.
pub(super) struct MinerHandle {
    messages: SyncSender<Message>,
    /// Set while a bell is on its way, so that thousands of txs ring once.
    bell_rung: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MinerHandle {
    pub(super) fn ring(&self) {
        let is_first = !self.bell_rung.swap(true, Ordering::AcqRel);
        if is_first && self.messages.try_send(Message::Bell).is_err() {
            // A full channel needs no bell, the miner looks at the pool after every message; but
            // the next caller must be free to ring again.
            self.bell_rung.store(false, Ordering::Release);
        }
    }

    /// Blocks until the miner has done it.
    pub(super) fn order(&self, order: Order) -> Result<(), ControlError> {
        let (answer, answered) = sync_channel(1);
        let sent = self.messages.send(Message::Order(order, answer));
        sent.ok().ok_or(ControlError::Stopped)?;
        answered.recv().ok().ok_or(ControlError::Stopped)?
    }
}

impl Drop for MinerHandle {
    fn drop(&mut self) {
        // An error means that the thread is gone already.
        self.messages.send(Message::Stop).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

pub(super) struct Miner {
    node: Arc<Node>,
    connection: Connection,
    cache: StateCache,
    head: Head,
    /// Id of the newest block ever made, canonical or not.
    last_id: u64,
    mining: Mining,
    heartbeat: Option<Duration>,
    /// When the last block was made, or the mode was set: intervals count from here.
    last_block_at: Instant,
    bell_rung: Arc<AtomicBool>,
}

#[derive(Clone)]
struct Head {
    hash: B256,
    header: Header,
}

impl Miner {
    /// Starts on the head that the tables hold.
    pub(super) fn spawn(
        node: Arc<Node>,
        connection: Connection,
        mining: Mining,
        heartbeat: Option<Duration>,
    ) -> Result<MinerHandle, DevChainError> {
        let view = View::new(&connection);
        let (head, last_id) = (view.head()?, view.last_block_id()?);
        let (messages, inbox) = sync_channel(limits::COMMANDS_MAX);
        let bell_rung = Arc::new(AtomicBool::new(false));
        let miner = Self {
            node,
            connection,
            cache: StateCache::new(),
            head: Head {
                hash: head.hash,
                header: head.header,
            },
            last_id,
            mining,
            heartbeat,
            last_block_at: Instant::now(),
            bell_rung: bell_rung.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("devchain-miner".to_owned())
            .spawn(move || miner.run(&inbox))
            .map_err(DevChainError::Thread)?;
        Ok(MinerHandle {
            messages,
            bell_rung,
            thread: Some(thread),
        })
    }

    fn run(mut self, inbox: &Receiver<Message>) {
        let mut look_again_in = Some(Duration::ZERO);
        loop {
            let message = match look_again_in {
                Some(pause) => inbox.recv_timeout(pause),
                None => inbox.recv().map_err(RecvTimeoutError::from),
            };
            match message {
                Ok(Message::Bell) => self.bell_rung.store(false, Ordering::Release),
                Ok(Message::Order(order, answer)) => {
                    // An error means that the caller no longer waits.
                    answer.send(self.obey(order)).ok();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
            look_again_in = self.turn();
        }
        // Leaves one tidy file; if it fails, the next start does it.
        self.connection
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .ok();
    }

    /// Makes a block if one is due. Returns when to look again, if time alone can make one due.
    fn turn(&mut self) -> Option<Duration> {
        let since_last = self.last_block_at.elapsed();
        match self.mining {
            Mining::Manual => None,
            Mining::Interval(period) => match period.checked_sub(since_last) {
                Some(rest) if !rest.is_zero() => Some(rest),
                _ => Some(
                    self.mine_or_log(true)
                        .map_or(limits::RETRY_AFTER_FAILURE, |_| period),
                ),
            },
            Mining::Instant => {
                let mut made = self.mine_or_log(false);
                if made == Some(false) {
                    let rest = self.heartbeat?.saturating_sub(since_last);
                    if !rest.is_zero() {
                        return Some(rest);
                    }
                    made = self.mine_or_log(true);
                }
                // More may have come in meanwhile, or a lower base fee has freed something; but
                // orders that wait in the inbox go first.
                Some(made.map_or(limits::RETRY_AFTER_FAILURE, |_| Duration::ZERO))
            }
        }
    }

    /// `None` when the block could not be written.
    fn mine_or_log(&mut self, even_empty: bool) -> Option<bool> {
        let made = self.mine(even_empty);
        made.inspect_err(|error| tracing::error!(%error, "dev chain cannot write a block"))
            .ok()
    }

    fn obey(&mut self, order: Order) -> Result<(), ControlError> {
        match order {
            Order::Mine { blocks } => {
                for _ in 0..blocks {
                    self.mine(true)?;
                }
                Ok(())
            }
            Order::SetMining(mining) => {
                self.mining = mining;
                self.last_block_at = Instant::now();
                Ok(())
            }
            Order::Reorg(order) => self.reorg(order),
            Order::SetBalance(address, wei) => {
                self.change_account(address, |account| account.balance = wei)
            }
            Order::SetNonce(address, nonce) => {
                self.change_account(address, |account| account.nonce = nonce)
            }
        }
    }
}
