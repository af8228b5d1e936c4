//! The nodes, and what starts them again when they end by themselves, as a service manager does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proof::cluster::{Node, Signal};
use proof::{Api, Outcome, Scratch, say};
use tokio::sync::{Mutex, MutexGuard};

use crate::ends::{End, Ends, PANIC};

/// How often is looked whether a node has ended.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A service manager waits as long before it starts something again.
const START_AFTER: Duration = Duration::from_millis(500);

/// All nodes. They end with the value.
pub(crate) struct Nodes {
    slots: Vec<Slot>,
    home: Arc<Scratch>,
}

/// One node, whether it runs or not.
struct Slot {
    api: Api,
    node: Mutex<Node>,
    /// Whether it is meant to run.
    is_wanted: AtomicBool,
    /// How it ended though nobody ended it.
    ends: Ends,
}

impl Slot {
    /// How it ended, if it did so by itself; that is written down.
    fn ended(&self, node: &mut Node) -> Outcome<Option<End>> {
        let Some(status) = node.ended() else {
            return Ok(None);
        };
        let end = End::new(status, &node.said()?);
        say(format!("node {} ended by itself: {}", node.name, end.how));
        self.ends.add(end.clone());
        Ok(Some(end))
    }
}

impl Nodes {
    /// Starts them and waits until all are ready.
    pub(crate) async fn start(nodes: Vec<Node>, home: Arc<Scratch>) -> Outcome<Self> {
        let slots = nodes.into_iter().map(|node| Slot {
            api: node.api.clone(),
            node: Mutex::new(node),
            is_wanted: AtomicBool::new(true),
            ends: Ends::default(),
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

    /// Until every node is ready.
    pub(crate) async fn ready(&self) -> Outcome<()> {
        for slot in &self.slots {
            slot.node.lock().await.ready().await?;
        }
        Ok(())
    }

    /// Their APIs.
    pub(crate) fn apis(&self) -> Vec<Api> {
        self.slots.iter().map(|slot| slot.api.clone()).collect()
    }

    /// How they ended though nobody ended them.
    pub(crate) async fn ends(&self) -> Outcome<Vec<End>> {
        let mut ends = Vec::new();
        for slot in &self.slots {
            let mut node = slot.node.lock().await;
            slot.ended(&mut node)?;
            ends.extend(slot.ends.all());
        }
        Ok(ends)
    }

    /// The panics of all nodes in all their lives, also those that ended nobody.
    pub(crate) async fn panics(&self) -> Outcome<Vec<String>> {
        let mut panics = Vec::new();
        for slot in &self.slots {
            let node = slot.node.lock().await;
            let lines = node.logged_lines(PANIC)?.into_iter();
            panics.extend(lines.map(|line| format!("{}: {line}", node.name)));
        }
        Ok(panics)
    }

    /// `kill -9`.
    pub(crate) async fn kill(&self, number: usize) -> Outcome<()> {
        let mut node = self.unwanted(number).await;
        match self.slots[number].ended(&mut node)? {
            Some(_) => Ok(()), // it had ended by itself a moment before
            None if node.is_started() => node.kill_nine().await,
            None => Ok(()),
        }
    }

    /// Asks it to end in order, and waits until it has.
    pub(crate) async fn drain(&self, number: usize) -> Outcome<()> {
        let mut node = self.unwanted(number).await;
        match self.slots[number].ended(&mut node)? {
            Some(end) => Err(format!("it had ended before: {}", end.how).into()),
            None => node.terminate().await,
        }
    }

    async fn unwanted(&self, number: usize) -> MutexGuard<'_, Node> {
        let slot = &self.slots[number];
        slot.is_wanted.store(false, Ordering::Relaxed);
        slot.node.lock().await
    }

    /// Starts it, without waiting for it.
    pub(crate) async fn start_again(&self, number: usize) -> Outcome<()> {
        let slot = &self.slots[number];
        let mut node = slot.node.lock().await;
        slot.is_wanted.store(true, Ordering::Relaxed);
        if node.is_started() {
            return Ok(());
        }
        node.start(&self.home)
    }

    /// Sends a signal.
    pub(crate) async fn signal(&self, number: usize, signal: Signal) -> Outcome<()> {
        self.slots[number].node.lock().await.signal(signal).await
    }

    /// Starts again what ends by itself, for ever.
    pub(crate) async fn keep_running(&self) -> Outcome<()> {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            for slot in &self.slots {
                // Whoever holds it now ends it or starts it.
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
