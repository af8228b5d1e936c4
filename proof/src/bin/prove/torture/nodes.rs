//! The nodes, and their restart after an exit, like a service manager does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proof::cluster::{Node, Signal};
use proof::{Api, Outcome, Scratch, print_step};
use tokio::sync::{Mutex, MutexGuard};

use crate::torture::exits::{NodeExit, NodeExits, PANIC};

/// How often exits are checked.
const POLL_PERIOD: Duration = Duration::from_millis(250);

/// The restart delay of a service manager.
const START_AFTER: Duration = Duration::from_millis(500);

pub(crate) struct Nodes {
    slots: Vec<Slot>,
    home: Arc<Scratch>,
}

struct Slot {
    api: Api,
    node: Mutex<Node>,
    /// Whether it should run.
    is_wanted: AtomicBool,
    /// Its exits that the proof did not cause.
    exits: NodeExits,
}

impl Slot {
    /// Records its exit, if it ended by itself.
    fn ended(&self, node: &mut Node) -> Outcome<Option<NodeExit>> {
        let Some(status) = node.ended() else {
            return Ok(None);
        };
        let end = NodeExit::new(status, &node.outcome()?);
        print_step(format!("node {} ended by itself: {}", node.name, end.how));
        self.exits.add(end.clone());
        Ok(Some(end))
    }
}

impl Nodes {
    pub(crate) async fn start(nodes: Vec<Node>, home: Arc<Scratch>) -> Outcome<Self> {
        let slots = nodes.into_iter().map(|node| Slot {
            api: node.api.clone(),
            node: Mutex::new(node),
            is_wanted: AtomicBool::new(true),
            exits: NodeExits::default(),
        });
        let nodes = Self {
            slots: slots.collect(),
            home,
        };
        for slot in &nodes.slots {
            slot.node.lock().await.start(&nodes.home)?;
        }
        nodes.ready().await?;
        Ok(nodes)
    }

    pub(crate) async fn ready(&self) -> Outcome<()> {
        for slot in &self.slots {
            slot.node.lock().await.ready().await?;
        }
        Ok(())
    }

    pub(crate) fn apis(&self) -> Vec<Api> {
        self.slots.iter().map(|slot| slot.api.clone()).collect()
    }

    /// Exits that the proof did not cause.
    pub(crate) async fn exits(&self) -> Outcome<Vec<NodeExit>> {
        let mut exits = Vec::new();
        for slot in &self.slots {
            let mut node = slot.node.lock().await;
            slot.ended(&mut node)?;
            exits.extend(slot.exits.all());
        }
        Ok(exits)
    }

    /// The panics of all incarnations of all nodes, including those that did not end a process.
    pub(crate) async fn panics(&self) -> Outcome<Vec<String>> {
        let mut panics = Vec::new();
        for slot in &self.slots {
            let node = slot.node.lock().await;
            let lines = node.logged_lines(PANIC)?.into_iter();
            panics.extend(lines.map(|line| format!("{}: {line}", node.name)));
        }
        Ok(panics)
    }

    pub(crate) async fn kill(&self, number: usize) -> Outcome<()> {
        let mut node = self.unexpected_exit(number).await;
        match self.slots[number].ended(&mut node)? {
            Some(_) => Ok(()), // it had just ended by itself
            None if node.is_started() => node.kill_nine().await,
            None => Ok(()),
        }
    }

    /// Drains it.
    pub(crate) async fn drain(&self, number: usize) -> Outcome<()> {
        let mut node = self.unexpected_exit(number).await;
        match self.slots[number].ended(&mut node)? {
            Some(end) => Err(format!("it had ended before: {}", end.how).into()),
            None => node.terminate().await,
        }
    }

    async fn unexpected_exit(&self, number: usize) -> MutexGuard<'_, Node> {
        let slot = &self.slots[number];
        slot.is_wanted.store(false, Ordering::Relaxed);
        slot.node.lock().await
    }

    pub(crate) async fn start_again(&self, number: usize) -> Outcome<()> {
        let slot = &self.slots[number];
        let mut node = slot.node.lock().await;
        slot.is_wanted.store(true, Ordering::Relaxed);
        if node.is_started() {
            return Ok(());
        }
        node.start(&self.home)
    }

    pub(crate) async fn signal(&self, number: usize, signal: Signal) -> Outcome<()> {
        self.slots[number].node.lock().await.signal(signal).await
    }

    /// Restarts exited nodes, without end.
    pub(crate) async fn keep_running(&self) -> Outcome<()> {
        loop {
            tokio::time::sleep(POLL_PERIOD).await;
            for slot in &self.slots {
                // The holder of the lock ends or starts it.
                let Ok(mut node) = slot.node.try_lock() else {
                    continue;
                };
                let has_ended = slot.ended(&mut node)?.is_some();
                if has_ended && slot.is_wanted.load(Ordering::Relaxed) {
                    tokio::time::sleep(START_AFTER).await;
                    node.start(&self.home)?;
                }
            }
        }
    }
}
