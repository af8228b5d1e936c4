//! The miner: one thread, the only writer. It mines by its mode and executes control commands one at a time, so that
//! no other code has to consider concurrent writers.

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

pub(super) use self::reorg::ReorgCommand;
use super::error::{DevChainError, StoreError};
use super::limits;
use super::node::Node;
use super::state::StateCache;
use super::store::View;

/// When blocks are mined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mining {
    /// As soon as the pool has an executable tx: all of them in one block.
    Instant,
    /// At a fixed interval, also empty blocks.
    Interval(Duration),
    /// Only on a control call.
    Manual,
}

/// Why a control call failed. It has changed nothing.
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

/// A command to the miner.
pub(super) enum ControlCommand {
    Mine { blocks: u64 },
    SetMining(Mining),
    Reorg(ReorgCommand),
    SetBalance(Address, U256),
    SetNonce(Address, u64),
}

enum Message {
    /// A tx may have become executable. A wakeup without data: the miner reads the pool.
    PoolChanged,
    Command(ControlCommand, SyncSender<Result<(), ControlError>>),
    Stop,
}

/// Dropping the handle stops the thread, after its current block.
pub(super) struct MinerHandle {
    messages: SyncSender<Message>,
    /// Set while a notification is queued, so that thousands of txs notify once.
    is_notified: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MinerHandle {
    pub(super) fn notify_pool_changed(&self) {
        let is_first = !self.is_notified.swap(true, Ordering::AcqRel);
        if is_first && self.messages.try_send(Message::PoolChanged).is_err() {
            // A full channel needs no notification, because the miner reads the pool after every message; but the
            // next caller must be able to notify again.
            self.is_notified.store(false, Ordering::Release);
        }
    }

    /// Blocks until the command is executed.
    pub(super) fn run_command(&self, command: ControlCommand) -> Result<(), ControlError> {
        let (answer, answered) = sync_channel(1);
        let sent = self.messages.send(Message::Command(command, answer));
        sent.ok().ok_or(ControlError::Stopped)?;
        answered.recv().ok().ok_or(ControlError::Stopped)?
    }
}

impl Drop for MinerHandle {
    fn drop(&mut self) {
        // Fails if the thread has ended already.
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
    /// Id of the newest block, canonical or not.
    last_id: u64,
    mining: Mining,
    heartbeat: Option<Duration>,
    /// When the last block was mined or the mode was set: intervals count from here.
    last_block_at: Instant,
    is_notified: Arc<AtomicBool>,
}

#[derive(Clone)]
struct Head {
    hash: B256,
    header: Header,
}

impl Miner {
    /// Starts the miner on the stored head.
    pub(super) fn spawn(
        node: Arc<Node>,
        connection: Connection,
        mining: Mining,
        heartbeat: Option<Duration>,
    ) -> Result<MinerHandle, DevChainError> {
        let view = View::new(&connection);
        let (head, last_id) = (view.head()?, view.last_block_id()?);
        let (messages, inbox) = sync_channel(limits::COMMANDS_MAX);
        let is_notified = Arc::new(AtomicBool::new(false));
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
            is_notified: is_notified.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("devchain-miner".to_owned())
            .spawn(move || miner.run(&inbox))
            .map_err(DevChainError::Thread)?;
        Ok(MinerHandle {
            messages,
            is_notified,
            thread: Some(thread),
        })
    }

    fn run(mut self, inbox: &Receiver<Message>) {
        let mut next_check_in = Some(Duration::ZERO);
        loop {
            let message = match next_check_in {
                Some(pause) => inbox.recv_timeout(pause),
                None => inbox.recv().map_err(RecvTimeoutError::from),
            };
            match message {
                Ok(Message::PoolChanged) => self.is_notified.store(false, Ordering::Release),
                Ok(Message::Command(command, answer)) => {
                    // Fails if the caller no longer waits.
                    answer.send(self.execute_command(command)).ok();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
            next_check_in = self.mine_if_due();
        }
        // Leaves a single file; if this fails, the next start does it.
        self.connection
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .ok();
    }

    /// Mines a block if one is due. Returns when to check again, if time alone can make one due.
    fn mine_if_due(&mut self) -> Option<Duration> {
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
                // More txs may have arrived, or a lower base fee has made some executable; but commands in the
                // inbox come first.
                Some(made.map_or(limits::RETRY_AFTER_FAILURE, |_| Duration::ZERO))
            }
        }
    }

    /// `None` if the block could not be written.
    fn mine_or_log(&mut self, even_empty: bool) -> Option<bool> {
        let made = self.mine(even_empty);
        made.inspect_err(|error| tracing::error!(%error, "dev chain cannot write a block"))
            .ok()
    }

    fn execute_command(&mut self, command: ControlCommand) -> Result<(), ControlError> {
        match command {
            ControlCommand::Mine { blocks } => {
                for _ in 0..blocks {
                    self.mine(true)?;
                }
                Ok(())
            }
            ControlCommand::SetMining(mining) => {
                self.mining = mining;
                self.last_block_at = Instant::now();
                Ok(())
            }
            ControlCommand::Reorg(command) => self.reorg(command),
            ControlCommand::SetBalance(address, wei) => {
                self.change_account(address, |account| account.balance = wei)
            }
            ControlCommand::SetNonce(address, nonce) => {
                self.change_account(address, |account| account.nonce = nonce)
            }
        }
    }
}
