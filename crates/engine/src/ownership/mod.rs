//! Who keeps which lane: acquiring, renewing, adopting, and the truth after a lost answer.

mod settle;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::lane::{ChainQuery, EndpointNonces};
use domain::lease::LeaseTrust;
use domain::mutation::{self, Mutation};
use domain::{GrantId, LaneKey, LeaseGrant, MonotonicTime, NodeName, Token};
use metrics::counter;
use tokio::sync::{Semaphore, mpsc};

use crate::core::Core;
use crate::ports::{
    AcquireOutcome, HeartbeatOutcome, Quorum, RegrantOutcome, RenewOutcome, StoreError, Work,
};
use crate::routing;
use crate::shard::{Message, NotOpened, Opened};

pub(crate) use settle::Remembered;

/// How long the opening of a lane waits for its chain.
const CHAIN_PATIENCE: Duration = Duration::from_secs(2);
/// The most lanes of one renewal statement.
const RENEW_CHUNK: usize = 500;
/// The most lanes of one acquisition.
const ACQUIRE_CHUNK: usize = 500;
/// How many lanes are read at once.
const LOADS_AT_ONCE: usize = 16;
/// As long as anything may take. (Only a deliberate bug trusts a lease like that.)
const FOR_EVER: Duration = Duration::from_secs(86_400);
/// How often lanes with work are looked for at least.
const ADOPT_PERIOD: Duration = Duration::from_secs(1);

/// The lanes that this node holds, and how long it may trust that.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<BTreeMap<LaneKey, Held>>,
}

#[derive(Clone, Copy)]
struct Held {
    lease_grant: LeaseGrant,
    trust: LeaseTrust,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Held>> {
        self.held
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    /// For how long bytes of this lane may leave from now on; zero when they may not. The chain cannot
    /// check a fence, so this is asked immediately before every send, and the send ends with it.
    pub(crate) fn may_send_for(&self, lane: LaneKey, now: MonotonicTime) -> Duration {
        if mutation::is_on(Mutation::ForgetMargin) {
            return FOR_EVER;
        }
        self.lock()
            .get(&lane)
            .map_or(Duration::ZERO, |held| held.trust.left(now))
    }

    /// Whether this node holds the lane, as far as it knows.
    pub(crate) fn holds(&self, lane: LaneKey) -> bool {
        self.lock().contains_key(&lane)
    }

    /// Whether this very right is held.
    pub(crate) fn holds_grant(&self, lane: LaneKey, lease_grant: LeaseGrant) -> bool {
        self.lock()
            .get(&lane)
            .is_some_and(|held| held.lease_grant == lease_grant)
    }

    /// The lanes that this node holds.
    pub(crate) fn lanes(&self) -> Vec<LaneKey> {
        self.lock().keys().copied().collect()
    }

    pub(crate) fn forget(&self, lane: LaneKey) {
        self.lock().remove(&lane);
    }

    /// Forgets this very holding; a newer one stays.
    fn forget_grant(&self, lane: LaneKey, lease_grant: LeaseGrant) {
        let mut held = self.lock();
        if held
            .get(&lane)
            .is_some_and(|held| held.lease_grant == lease_grant)
        {
            held.remove(&lane);
        }
    }

    fn hold(&self, lane: LaneKey, lease_grant: LeaseGrant, trust: LeaseTrust) {
        self.lock().insert(lane, Held { lease_grant, trust });
    }

    fn renewed(&self, lane: LaneKey, lease_grant: LeaseGrant, trust: LeaseTrust) {
        if let Some(held) = self.lock().get_mut(&lane)
            && held.lease_grant == lease_grant
        {
            held.trust = trust;
        }
    }

    fn all(&self) -> Vec<(LaneKey, LeaseGrant)> {
        self.lock()
            .iter()
            .map(|(lane, held)| (*lane, held.lease_grant))
            .collect()
    }
}

/// Opens lanes: acquires all that wait in one call, then reads each. Two calls, because one statement
/// would read a stale snapshot.
pub(crate) async fn open_for_ever(core: Arc<Core>, mut wanted: mpsc::Receiver<LaneKey>) {
    let readers = Arc::new(Semaphore::new(LOADS_AT_ONCE));
    let mut lanes = Vec::with_capacity(ACQUIRE_CHUNK);
    while wanted.recv_many(&mut lanes, ACQUIRE_CHUNK).await > 0 {
        let asked: Vec<LaneKey> = std::mem::take(&mut lanes);
        for (lane, answer) in acquire(&core, asked).await {
            let (core_of_task, readers) = (Arc::clone(&core), Arc::clone(&readers));
            core.tasks.spawn("open lane", async move {
                let message = match answer {
                    Ok(granted) => {
                        let read = read_lane(&core_of_task, lane, granted, &readers).await;
                        read.unwrap_or_else(|why| Message::NotOpened { lane, why })
                    }
                    Err(why) => Message::NotOpened { lane, why },
                };
                core_of_task.tell_shard(lane, message).await;
            });
        }
    }
}

/// A lane that was granted.
struct Granted {
    lease_grant: LeaseGrant,
    previous_keeper: Option<NodeName>,
    is_reconciled: bool,
}

async fn acquire(core: &Core, lanes: Vec<LaneKey>) -> Vec<(LaneKey, Result<Granted, NotOpened>)> {
    let clock = &core.ports.clock;
    look_around(core).await;
    // Read before the question leaves: the lease may have begun any time after this.
    let asked_at = clock.monotonic();
    let wanted: Vec<(LaneKey, GrantId)> =
        lanes.iter().map(|lane| (*lane, clock.grant_id())).collect();
    let answers = match core
        .ports
        .store
        .acquire(&core.lease_request(), &wanted)
        .await
    {
        Ok(answers) => answers,
        Err(error) => {
            counter!("lanekeeper_lease_acquire_total", "result" => "error")
                .increment(lanes.len() as u64);
            let why = NotOpened::Store(error.to_string());
            return lanes
                .into_iter()
                .map(|lane| (lane, Err(why.clone())))
                .collect();
        }
    };
    assert_eq!(answers.len(), lanes.len(), "the store answers every lane");
    let taken = lanes.into_iter().zip(answers);
    taken
        .map(|(lane, answer)| (lane, judge(core, lane, answer, asked_at)))
        .collect()
}

/// Before lanes are asked for: a node that was away says first that it is back, so that what it gets is
/// not taken for a dead node's; and whom it takes for silent, it looks at once more.
async fn look_around(core: &Core) {
    let lease = core.config.lease.duration;
    let was_away = core.since_heartbeat() >= lease;
    if was_away || core.cluster.is_anyone_silent(&core.config.name, lease) {
        beat(core).await.ok(); // whatever comes of it, asking is safe
    }
}

fn judge(
    core: &Core,
    lane: LaneKey,
    answer: AcquireOutcome,
    asked_at: MonotonicTime,
) -> Result<Granted, NotOpened> {
    let count = |result: &'static str| {
        counter!("lanekeeper_lease_acquire_total", "result" => result).increment(1);
    };
    match answer {
        AcquireOutcome::Granted {
            lease_grant,
            previous_keeper,
            is_reconciled,
        } => {
            count(match (&previous_keeper, lease_grant.token) {
                (Some(_), _) => "taken",
                (None, Token(1)) => "inserted",
                (None, _) => "renewed",
            });
            if previous_keeper.is_some() {
                counter!("lanekeeper_lease_token_changes_total").increment(1);
            }
            tracing::info!(%lane, token = %lease_grant.token, from = ?previous_keeper, "keeps a lane");
            let trust = LeaseTrust::from(asked_at, core.config.lease.duration);
            core.routes.forget(lane);
            core.leases.hold(lane, lease_grant, trust);
            Ok(Granted {
                lease_grant,
                previous_keeper,
                is_reconciled,
            })
        }
        AcquireOutcome::NotKeeper { lease, left } => {
            count("not_keeper");
            let now = core.ports.clock.monotonic();
            core.cluster
                .saw_lease_of(&lease.owner, lease.incarnation, now);
            let known_for = left.max(core.config.lease.renew_interval);
            let until = now.plus(known_for);
            core.routes.learn(lane, lease.owner.clone(), until);
            Err(NotOpened::NotKeeper(lease.owner))
        }
        AcquireOutcome::Halted(reason) => {
            count("halted");
            Err(NotOpened::Halted(reason))
        }
        AcquireOutcome::Busy => {
            count("busy");
            Err(NotOpened::Busy)
        }
    }
}

/// Reads a lane that was granted, and what its chain says of it.
async fn read_lane(
    core: &Core,
    lane: LaneKey,
    granted: Granted,
    readers: &Semaphore,
) -> Result<Message, NotOpened> {
    let watch_depth = core.chain(lane.chain_id).rules.lane.watch_depth;
    let lease_grant = granted.lease_grant;
    let read = async {
        // For the store only: a chain that does not answer must not hold up the lanes of others.
        let reader = readers
            .acquire()
            .await
            .expect("this semaphore is never closed");
        let image = core.ports.store.load(lane, lease_grant, watch_depth).await;
        drop(reader);
        let image = image.map_err(|error| NotOpened::Store(error.to_string()))?;
        let Some(image) = image else {
            let why = "the lane changed hands while it was read";
            return Err(NotOpened::Store(why.into()));
        };
        let was_settled = granted.is_reconciled
            && !core.moved_backwards(lane, lease_grant.token)
            && !settle::knows_more(core, &image);
        let is_reconciled = was_settled || settle::settle(core, &image).await?;
        core.forget_remembered(lane);
        core.saw_token(lane, lease_grant.token);
        Ok((image, is_reconciled))
    };
    match read.await {
        Ok((image, is_reconciled)) => Ok(Message::Opened(Box::new(Opened {
            lane,
            image,
            previous_keeper: granted.previous_keeper,
            nonces: learn_of_chain(core, lane).await,
            is_reconciled,
        }))),
        Err(why) => {
            core.leases.forget_grant(lane, lease_grant);
            // Perhaps another node can read it, or reaches its chain.
            let released = core
                .ports
                .store
                .release(&core.lease_request(), &[lease_grant])
                .await;
            released.ok(); // otherwise this node is shown it again, among the lanes with work
            Err(why)
        }
    }
}

/// Waits a moment for what a lane needs to deal nonces and sign, so that its first answers carry both.
/// Without it the lane takes requests all the same, and deals when the chain answers.
async fn learn_of_chain(core: &Core, lane: LaneKey) -> Option<EndpointNonces> {
    let part = core.chain(lane.chain_id);
    let query = part.rules.lane.chain_query;
    let learn = async {
        part.view.known().await;
        if query == ChainQuery::Off {
            return None;
        }
        let asked = part.chain.account_nonces(lane.signer, query, Quorum::One);
        asked.await.ok() // the lane asks again by itself
    };
    tokio::select! {
        biased;
        nonces = learn => nonces,
        () = core.ports.clock.sleep(CHAIN_PATIENCE) => None,
    }
}

/// A commit's answer was lost. Granting the lane anew waits for the old batch or kills it; only then
/// does the last batch tell the truth. A plain read would not: the commit may still land after it.
pub(crate) async fn resolve(core: &Core, lane: LaneKey, lease_grant: LeaseGrant) {
    let mut tries = 0;
    let grant = core.ports.clock.grant_id();
    let mut lease_grants = vec![lease_grant];
    let outcome = loop {
        match regrant_any(core, lane, &lease_grants, grant).await {
            Ok(outcome) => break outcome,
            Err(error) => {
                tracing::warn!(%lane, %error, "the store does not tell what became of a commit");
                core.back_off(&mut tries).await;
                // The regrant itself may have landed although its answer was lost too.
                lease_grants = vec![
                    LeaseGrant {
                        grant,
                        ..lease_grant
                    },
                    lease_grant,
                ];
            }
        }
    };
    core.tell_shard(lane, Message::Resolved { lane, outcome })
        .await;
}

async fn regrant_any(
    core: &Core,
    lane: LaneKey,
    lease_grants: &[LeaseGrant],
    grant: GrantId,
) -> Result<RegrantOutcome, StoreError> {
    for lease_grant in lease_grants {
        let outcome = match mutation::is_on(Mutation::ResolveUnknownByRead) {
            true => only_read(core, lane, *lease_grant).await?,
            false => core.ports.store.regrant(*lease_grant, grant).await?,
        };
        if matches!(outcome, RegrantOutcome::Held { .. }) {
            return Ok(outcome);
        }
    }
    Ok(RegrantOutcome::Fenced)
}

/// What a deliberate bug does: the old batch may land after this has looked.
async fn only_read(
    core: &Core,
    lane: LaneKey,
    lease_grant: LeaseGrant,
) -> Result<RegrantOutcome, StoreError> {
    let image = core.ports.store.load(lane, lease_grant, 0).await?;
    Ok(
        image.map_or(RegrantOutcome::Fenced, |image| RegrantOutcome::Held {
            lease_grant,
            batch_seq: image.batch_seq,
        }),
    )
}

/// Extends all leases and says that this node lives, again and again. The heartbeat follows only
/// renewals that got through: a node that others see at work does renew its lanes.
pub(crate) async fn renew_for_ever(core: Arc<Core>) {
    let interval = core.config.lease.renew_interval;
    let mut began = core.ports.clock.monotonic();
    loop {
        let took = core.ports.clock.monotonic().since(began);
        core.ports.clock.sleep(interval.saturating_sub(took)).await;
        began = core.ports.clock.monotonic();
        let mut all_renewed = true;
        for chunk in core.leases.all().chunks(RENEW_CHUNK) {
            all_renewed &= renew(&core, chunk).await;
        }
        if all_renewed && !heartbeat(&core).await {
            return;
        }
    }
}

/// Says whether the store took the question.
async fn renew(core: &Arc<Core>, lanes: &[(LaneKey, LeaseGrant)]) -> bool {
    let asked_at = core.ports.clock.monotonic();
    let lease_grants: Vec<LeaseGrant> = lanes.iter().map(|(_, lease_grant)| *lease_grant).collect();
    let answers = match core
        .ports
        .store
        .renew(&core.lease_request(), &lease_grants)
        .await
    {
        Ok(answers) => answers,
        Err(error) => {
            // Trust runs out by itself: nothing is sent until a renewal gets through.
            counter!("lanekeeper_lease_renew_failed_total").increment(lanes.len() as u64);
            tracing::warn!(%error, lanes = lanes.len(), "leases were not renewed");
            return false;
        }
    };
    let trust = LeaseTrust::from(asked_at, core.config.lease.duration);
    for ((lane, lease_grant), answer) in lanes.iter().zip(answers) {
        match answer {
            RenewOutcome::Renewed => core.leases.renewed(*lane, *lease_grant, trust),
            RenewOutcome::Busy => {}
            RenewOutcome::Lost => {
                counter!("lanekeeper_lease_fenced_total", "op" => "renew").increment(1);
                tracing::warn!(%lane, token = %lease_grant.token, "the lease was lost");
                tell_lost(core, *lane, *lease_grant);
            }
        }
    }
    true
}

/// Told by a task of its own: a full inbox of one shard must not hold up the renewals of all.
fn tell_lost(core: &Arc<Core>, lane: LaneKey, lease_grant: LeaseGrant) {
    core.leases.forget_grant(lane, lease_grant);
    let telling = Arc::clone(core);
    core.tasks.spawn("lost lease", async move {
        telling
            .tell_shard(lane, Message::Lost { lane, lease_grant })
            .await;
    });
}

/// Says that this node lives, and learns who else does. `false`: a node whose place was taken by another
/// life of it ends itself.
pub(crate) async fn heartbeat(core: &Arc<Core>) -> bool {
    match beat(core).await {
        Ok(Life::GoesOn) => {
            if core.history_moved.swap(false, Ordering::AcqRel) {
                history_changed(core);
            }
        }
        Ok(Life::Replaced) => {
            let node = &core.config.name;
            tracing::error!(%node, "another process runs under this node's name; ending");
            core.tasks.kill();
            return false;
        }
        Err(error) => tracing::warn!(%error, "the heartbeat was not written"),
    }
    true
}

/// What a heartbeat says of this life of the node.
pub(crate) enum Life {
    GoesOn,
    Replaced,
}

/// One heartbeat. A changed history of the store is noted, and acted upon by the next regular one.
pub(crate) async fn beat(core: &Core) -> Result<Life, StoreError> {
    let asked_at = core.ports.clock.monotonic();
    match core.ports.store.heartbeat(&core.member()).await? {
        HeartbeatOutcome::Taken { members, history } => {
            let now = core.ports.clock.monotonic();
            let look_counts = core.config.lease.renew_interval.saturating_mul(2);
            core.cluster.observe(members, asked_at, now, look_counts);
            core.wrote_heartbeat();
            core.saw_history(history);
            core.tell_load();
            Ok(Life::GoesOn)
        }
        HeartbeatOutcome::Replaced => Ok(Life::Replaced),
    }
}

/// A standby was promoted: its last commits may be gone. Every lane leaves memory, and is opened again
/// only when it agrees with the chain.
fn history_changed(core: &Arc<Core>) {
    counter!("lanekeeper_store_history_changes_total").increment(1);
    tracing::error!(
        "the store's history changed (a standby was promoted): every lane is compared with its chain \
         before it takes work again"
    );
    for (lane, lease_grant) in core.leases.all() {
        core.leases.forget_grant(lane, lease_grant);
        let telling = Arc::clone(core);
        core.tasks.spawn("history changed", async move {
            let lost = Message::Lost { lane, lease_grant };
            telling.tell_shard(lane, lost).await;
            let has_queued = false;
            let wake = Message::Wake { lane, has_queued };
            telling.tell_shard(lane, wake).await;
        });
    }
}

/// Finds lanes with work that nobody keeps, and queued txs of lanes that this node keeps, in one query
/// per tick; the first time at once.
pub(crate) async fn adopt_for_ever(core: Arc<Core>) {
    let period = core.config.lease.renew_interval.min(ADOPT_PERIOD);
    let mut orphans = Orphans::default();
    loop {
        if !core.is_draining() {
            match core
                .ports
                .store
                .lanes_with_work(&core.lease_request())
                .await
            {
                Ok(found) => {
                    let now = core.ports.clock.monotonic();
                    for Work { lane, has_queued } in orphans.ours(&core, found, now) {
                        let wake = Message::Wake { lane, has_queued };
                        core.tell_shard(lane, wake).await;
                    }
                }
                Err(error) => tracing::warn!(%error, "lanes with work could not be looked for"),
            }
        }
        core.ports.clock.sleep(period).await;
    }
}

/// Lanes with work that nobody keeps, and since when they are seen.
#[derive(Default)]
struct Orphans(BTreeMap<LaneKey, MonotonicTime>);

impl Orphans {
    /// Which of these are for this node: its own, those that it should keep, and those that whoever
    /// should keep them has left alone for a while.
    fn ours(&mut self, core: &Core, found: Vec<Work>, now: MonotonicTime) -> Vec<Work> {
        let before = std::mem::take(&mut self.0);
        let mut ours = Vec::new();
        for work in found {
            let is_cared_for = core.leases.holds(work.lane) && !work.has_queued;
            if is_cared_for || !core.lanes.contains_key(&work.lane) {
                continue;
            }
            if core.is_deaf(work.lane.chain_id, now) {
                continue; // others may do better, and it does not while nobody hears its chain
            }
            let since = before.get(&work.lane).copied().unwrap_or(now);
            let is_for_me = core.leases.holds(work.lane)
                || routing::successor(core, work.lane, now).as_ref() == Some(&core.config.name)
                || now.since(since) >= core.config.lease.renew_interval;
            if is_for_me {
                ours.push(work);
            } else {
                self.0.insert(work.lane, since);
            }
        }
        ours
    }
}
