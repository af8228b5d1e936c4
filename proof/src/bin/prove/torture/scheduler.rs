//! Runs the plan: each fault at its time, several in parallel, never two on one target.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use proof::{Outcome, ensure};
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};
use tokio::task::JoinSet;

use crate::torture::fault_kind::{FaultKind, Target};
use crate::torture::injection::{self, Done};
use crate::torture::plan::PlannedFault;
use crate::torture::world::World;

/// No fault takes longer, including its repair.
const FAULT_TIMEOUT: Duration = Duration::from_secs(120);

/// A fault that was or is active.
#[derive(Clone, Debug)]
pub(crate) struct FaultRecord {
    pub(crate) fault: PlannedFault,
    pub(crate) from: Instant,
    /// When it was repaired; `None` while it is active.
    pub(crate) until: Option<Instant>,
    /// Its effect, or why there was none.
    pub(crate) did: Result<Done, String>,
}

impl FaultRecord {
    /// When work was possible again, if it is already.
    pub(crate) fn works_again(&self) -> Option<Instant> {
        let reported = self.did.as_ref().ok().and_then(|done| done.works_again);
        reported.or(self.until)
    }
}

/// All faults, in chronological order.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<BTreeMap<usize, FaultRecord>>>);

impl History {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, FaultRecord>> {
        self.0.lock().expect("nothing panics while it holds this")
    }

    pub(crate) fn all(&self) -> Vec<FaultRecord> {
        let mut all: Vec<FaultRecord> = self.lock().values().cloned().collect();
        all.sort_by_key(|record| record.from);
        all
    }

    /// The active faults, for messages.
    pub(crate) fn under_way(&self) -> Vec<String> {
        let all = self.lock();
        let now = all.values().filter(|record| record.until.is_none());
        now.map(|record| record.fault.text()).collect()
    }

    /// The number of effective faults.
    pub(crate) fn count(&self) -> usize {
        let all = self.lock();
        let done = all
            .values()
            .filter(|record| record.until.is_some() && record.did.is_ok());
        done.count()
    }

    /// Effective faults per kind.
    pub(crate) fn by_kind(&self) -> BTreeMap<FaultKind, usize> {
        let mut kinds = BTreeMap::new();
        for record in self.lock().values().filter(|record| record.did.is_ok()) {
            *kinds.entry(record.fault.kind).or_default() += 1;
        }
        kinds
    }
}

/// Runs the plan and waits until everything is repaired.
pub(crate) async fn run_schedule(
    world: &Arc<World>,
    plan: &[PlannedFault],
    history: &History,
) -> Outcome<()> {
    let began = Instant::now();
    let locks = Locks::default();
    let mut under_way = JoinSet::new();
    for fault in plan {
        tokio::time::sleep_until((began + fault.at).into()).await;
        let taken = locks.clone();
        let (world, history) = (Arc::clone(world), history.clone());
        let fault = fault.clone();
        under_way.spawn(async move {
            let _targets = taken.lock_targets(&fault.targets()).await;
            run(&world, fault, &history).await;
        });
        while let Some(ended) = under_way.try_join_next() {
            ended?;
        }
    }
    let rest = async {
        while let Some(ended) = under_way.join_next().await {
            ended?;
        }
        Ok(())
    };
    tokio::time::timeout(2 * FAULT_TIMEOUT, rest).await?
}

async fn run(world: &World, fault: PlannedFault, history: &History) {
    let number = fault.number;
    let record = FaultRecord {
        fault: fault.clone(),
        from: Instant::now(),
        until: None,
        did: Ok(Done::default()),
    };
    history.lock().insert(number, record);
    // Boxed: the futures of all faults together are large.
    let work = Box::pin(injection::inject(world, &fault));
    let did = match tokio::time::timeout(FAULT_TIMEOUT, work).await {
        Ok(did) => did.map_err(|error| error.to_string()),
        Err(_) => Err("it took too long".to_owned()),
    };
    if let Some(record) = history.lock().get_mut(&number) {
        record.until = Some(Instant::now());
        record.did = did;
    }
}

/// One lock per target.
#[derive(Clone, Default)]
struct Locks(Arc<Mutex<BTreeMap<Target, Arc<Lock<()>>>>>);

impl Locks {
    /// In a fixed order, to avoid deadlocks.
    async fn lock_targets(&self, targets: &[Target]) -> Vec<OwnedMutexGuard<()>> {
        let mut taken = Vec::new();
        for target in targets {
            let lock = {
                let mut locks = self.0.lock().expect("nothing panics while it holds this");
                Arc::clone(locks.entry(*target).or_default())
            };
            taken.push(lock.lock_owned().await);
        }
        taken
    }
}

/// Whether enough faults were effective.
pub(crate) fn enough(history: &History, faults_min: usize) -> Outcome<()> {
    let count = history.count();
    ensure(
        count >= faults_min,
        format!("only {count} faults, not {faults_min}"),
    )
}
