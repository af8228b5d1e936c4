//! Faults of nodes and of the store.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::features::Feature;
use super::machine::Machine;
use super::plan::{Plan, RestorePlan};
use crate::clock::SimClock;
use crate::event::WorldEvent;
use crate::rng::Rng;
use crate::store::MemoryStore;
use crate::trace::Trace;

/// The most polls ahead of which a crash is scheduled: a node has a few per request and stage.
const CRASH_POLLS_MAX: u64 = 150;

/// The maximum duration of a failover.
const DOWN_MS_MAX: u64 = 5_000;
/// How long a standby that stopped replicating waits for commits to lose, at most.
const WINDOW_MAX: Duration = Duration::from_secs(10);
/// How often it checks for them.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long after that it is promoted, at most.
const LAG_MS_MAX: u64 = 3_000;

/// Injects faults, and holds everything that they act on.
pub(super) struct NodeFaultInjector {
    pub(super) machines: Arc<Vec<Machine>>,
    pub(super) store: MemoryStore,
    /// The database's clock.
    pub(super) clock: SimClock,
    pub(super) trace: Trace,
    pub(super) plan: Arc<Plan>,
    pub(super) rng: Rng,
}

impl NodeFaultInjector {
    /// Injects a fault at random intervals, until the world is healed.
    pub(super) async fn inject_faults(self) {
        let Some(interval) = self.plan.fault_interval else {
            return;
        };
        let pace = u64::try_from(interval.as_millis()).expect("an interval is short");
        for _ in 0..self.plan.faults_max.unwrap_or(u64::MAX) {
            tokio::time::sleep(self.rng.millis(pace / 4, pace * 2)).await;
            match self.rng.below(16) {
                12 if self.plan.clock_jumps => self.set_clock(),
                13 if self.plan.failovers => self.fail_over().await,
                14 => self.isolate(),
                _ => self.inject_fault(),
            }
        }
    }

    fn inject_fault(&self) {
        let Self { plan, rng, .. } = self;
        let machine = rng.pick(&self.machines).clone();
        let may = |feature| plan.allows(feature) && machine.is_present();
        let draw = rng.below(7);
        let feature = match draw {
            0..=2 => Feature::Crashes,
            3..=4 => Feature::Freezes,
            5 => Feature::Cuts,
            _ => Feature::Drains,
        };
        if !may(feature) {
            return; // disabled, or no node is present
        }
        self.trace.fire(feature);
        match draw {
            0..=2 => machine.crash_in(rng.between(0, CRASH_POLLS_MAX)),
            3..=4 => spawn_freeze(machine.clone(), span(plan, rng, 3)),
            5 => spawn_cut(machine.clone(), span(plan, rng, 2)),
            _ => machine.drain(),
        }
    }

    /// The database's clock is set, by a little or by hours.
    fn set_clock(&self) {
        let most = *self.rng.pick(&[2_000, 30_000, 7_200_000]);
        let by = i64::try_from(self.rng.between(1, most)).expect("hours are few milliseconds");
        let by_ms = if self.rng.permille(500) { by } else { -by };
        self.trace.fire(Feature::ClockJumps);
        self.trace.record(WorldEvent::ClockJumped { by_ms });
        self.clock.jump(by_ms);
    }

    fn isolate(&self) {
        let machine = self.rng.pick(&self.machines).clone();
        let span = span(&self.plan, &self.rng, 3);
        if !self.plan.allows(Feature::Isolation) {
            return;
        }
        self.trace.fire(Feature::Isolation);
        // Detached: the task ends by itself, or with the world.
        drop(tokio::spawn(async move {
            machine.isolate(true);
            tokio::time::sleep(span).await;
            machine.isolate(false);
        }));
    }

    /// The primary crashes: the store is unreachable for a while, then the standby is promoted.
    async fn fail_over(&self) {
        self.trace.fire(Feature::Failovers);
        self.machines.iter().for_each(|machine| machine.cut(true));
        tokio::time::sleep(self.rng.millis(0, DOWN_MS_MAX)).await;
        self.store.fail_over();
        self.machines.iter().for_each(|machine| machine.cut(false));
    }

    /// A backup is put back, and the restore declared. Its timeline may be the same; only the number of restores differs.
    async fn restore_backup(&self, restore: RestorePlan) {
        self.trace.fire(Feature::Restores);
        self.machines.iter().for_each(|machine| machine.cut(true));
        if restore.restarts_nodes {
            let present = self.machines.iter().filter(|machine| machine.is_present());
            present.for_each(|machine| machine.crash_in(0));
        }
        tokio::time::sleep(self.rng.millis(0, DOWN_MS_MAX)).await;
        self.store.restore_backup();
        self.machines.iter().for_each(|machine| machine.cut(false));
    }

    /// The same, with a standby that stopped replicating a while before.
    pub(super) async fn lose_commits(self) {
        let Some(at) = self.plan.lossy_failover else {
            return;
        };
        tokio::time::sleep(at).await;
        self.trace.fire(Feature::Loss);
        self.store.stop_standby();
        if let Some(restore) = self.plan.restore {
            tokio::time::sleep(restore.age).await;
            self.restore_backup(restore).await;
            return;
        }
        let latest = Instant::now() + WINDOW_MAX;
        while !self.store.would_lose() && Instant::now() < latest {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        tokio::time::sleep(self.rng.millis(0, LAG_MS_MAX)).await;
        self.fail_over().await;
    }
}

/// A random duration of up to the given number of leases.
pub(super) fn span(plan: &Plan, rng: &Rng, leases: u32) -> Duration {
    let lease =
        u64::try_from((plan.lease.duration * leases).as_millis()).expect("leases are short");
    rng.millis(0, lease)
}

fn spawn_freeze(machine: Machine, span: Duration) {
    // Detached: the task ends by itself, or with the world.
    drop(tokio::spawn(async move {
        machine.freeze();
        tokio::time::sleep(span).await;
        machine.thaw();
    }));
}

fn spawn_cut(machine: Machine, span: Duration) {
    // Detached: the task ends by itself, or with the world.
    drop(tokio::spawn(async move {
        machine.cut(true);
        tokio::time::sleep(span).await;
        machine.cut(false);
    }));
}
