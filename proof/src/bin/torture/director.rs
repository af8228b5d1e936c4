//! Lets the plan happen: each fault at its time, several at once, never two at the same target.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use proof::{Outcome, demand};
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};
use tokio::task::JoinSet;

use crate::kind::{Kind, Target};
use crate::plan::Strike;
use crate::strikes::{self, Done};
use crate::world::World;

/// No fault takes longer, with all that it has to undo.
const STRIKE_WITHIN: Duration = Duration::from_secs(120);

/// A fault that happened, or happens.
#[derive(Clone, Debug)]
pub(crate) struct Struck {
    pub(crate) strike: Strike,
    pub(crate) from: Instant,
    /// When it was undone; `None` while it lasts.
    pub(crate) until: Option<Instant>,
    /// What it did, or why it could not.
    pub(crate) did: Result<Done, String>,
}

impl Struck {
    /// When work was possible again, if that is over.
    pub(crate) fn works_again(&self) -> Option<Instant> {
        let told = self.did.as_ref().ok().and_then(|done| done.works_again);
        told.or(self.until)
    }
}

/// What happened, in the order of time.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<BTreeMap<usize, Struck>>>);

impl History {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Struck>> {
        self.0.lock().expect("nothing panics while it holds this")
    }

    pub(crate) fn all(&self) -> Vec<Struck> {
        let mut all: Vec<Struck> = self.lock().values().cloned().collect();
        all.sort_by_key(|struck| struck.from);
        all
    }

    /// Those that last now, for people.
    pub(crate) fn under_way(&self) -> Vec<String> {
        let all = self.lock();
        let now = all.values().filter(|struck| struck.until.is_none());
        now.map(|struck| struck.strike.text()).collect()
    }

    /// How many have done something.
    pub(crate) fn count(&self) -> usize {
        let all = self.lock();
        let done = all
            .values()
            .filter(|struck| struck.until.is_some() && struck.did.is_ok());
        done.count()
    }

    /// How often each kind has done something.
    pub(crate) fn by_kind(&self) -> BTreeMap<Kind, usize> {
        let mut kinds = BTreeMap::new();
        for struck in self.lock().values().filter(|struck| struck.did.is_ok()) {
            *kinds.entry(struck.strike.kind).or_default() += 1;
        }
        kinds
    }
}

/// Runs the plan to its end and waits until everything is undone.
pub(crate) async fn direct(world: &Arc<World>, plan: &[Strike], history: &History) -> Outcome<()> {
    let began = Instant::now();
    let locks = Locks::default();
    let mut under_way = JoinSet::new();
    for strike in plan {
        tokio::time::sleep_until((began + strike.at).into()).await;
        let taken = locks.clone();
        let (world, history) = (Arc::clone(world), history.clone());
        let strike = strike.clone();
        under_way.spawn(async move {
            let _targets = taken.take(&strike.targets()).await;
            run(&world, strike, &history).await;
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
    tokio::time::timeout(2 * STRIKE_WITHIN, rest).await?
}

async fn run(world: &World, strike: Strike, history: &History) {
    let number = strike.number;
    let struck = Struck {
        strike: strike.clone(),
        from: Instant::now(),
        until: None,
        did: Ok(Done::default()),
    };
    history.lock().insert(number, struck);
    // Boxed: the futures of all faults together are large.
    let work = Box::pin(strikes::carry_out(world, &strike));
    let did = match tokio::time::timeout(STRIKE_WITHIN, work).await {
        Ok(did) => did.map_err(|error| error.to_string()),
        Err(_) => Err("it took too long".to_owned()),
    };
    if let Some(struck) = history.lock().get_mut(&number) {
        struck.until = Some(Instant::now());
        struck.did = did;
    }
}

/// One lock per target.
#[derive(Clone, Default)]
struct Locks(Arc<Mutex<BTreeMap<Target, Arc<Lock<()>>>>>);

impl Locks {
    /// Takes them in order, so that nobody waits in a circle.
    async fn take(&self, targets: &[Target]) -> Vec<OwnedMutexGuard<()>> {
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

/// Whether enough happened.
pub(crate) fn enough(history: &History, faults_min: usize) -> Outcome<()> {
    let count = history.count();
    demand(
        count >= faults_min,
        format!("only {count} faults, not {faults_min}"),
    )
}
