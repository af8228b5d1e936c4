//! Who keeps which lane: acquiring, renewing, adopting, and the truth after a lost answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::lane::{ChainNonces, ChainQuery};
use domain::lease::Trust;
use domain::{GrantId, LaneKey, Moment, Right};
use metrics::counter;

use crate::core::Core;
use crate::ports::{Acquired, Member, Regranted, Renewal, StoreError};
use crate::shard::{Message, NotOpened};

/// How long the opening of a lane waits for its chain.
const CHAIN_PATIENCE: Duration = Duration::from_secs(2);
/// The most lanes of one renewal statement.
const RENEW_CHUNK: usize = 500;

/// The lanes that this node holds, and how long it may trust that.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<BTreeMap<LaneKey, Held>>,
}

#[derive(Clone, Copy)]
struct Held {
    right: Right,
    trust: Trust,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Held>> {
        self.held
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    /// For how long bytes of this lane may leave from now on; zero when they may not. The chain cannot
    /// check a fence, so this is asked immediately before every send, and the send ends with it.
    pub(crate) fn may_send_for(&self, lane: LaneKey, now: Moment) -> Duration {
        self.lock()
            .get(&lane)
            .map_or(Duration::ZERO, |held| held.trust.left(now))
    }

    pub(crate) fn forget(&self, lane: LaneKey) {
        self.lock().remove(&lane);
    }

    /// Forgets this very holding; a newer one stays.
    fn forget_right(&self, lane: LaneKey, right: Right) {
        let mut held = self.lock();
        if held.get(&lane).is_some_and(|held| held.right == right) {
            held.remove(&lane);
        }
    }

    fn hold(&self, lane: LaneKey, right: Right, trust: Trust) {
        self.lock().insert(lane, Held { right, trust });
    }

    fn renewed(&self, lane: LaneKey, right: Right, trust: Trust) {
        if let Some(held) = self.lock().get_mut(&lane)
            && held.right == right
        {
            held.trust = trust;
        }
    }

    fn all(&self) -> Vec<(LaneKey, Right)> {
        self.lock()
            .iter()
            .map(|(lane, held)| (*lane, held.right))
            .collect()
    }
}

/// Acquires a lane and reads it: two calls, because one statement would read a stale snapshot.
/// After failures in a row it waits a little first, so that a store in trouble is not run down.
pub(crate) async fn open(core: &Core, lane: LaneKey, failures: u32) {
    if let Some(mut tries) = failures.checked_sub(1) {
        core.back_off(&mut tries).await;
    }
    let message = match acquire_and_read(core, lane).await {
        Ok(opened) => opened,
        Err(why) => Message::NotOpened { lane, why },
    };
    core.tell_shard(lane, message).await;
}

async fn acquire_and_read(core: &Core, lane: LaneKey) -> Result<Message, NotOpened> {
    let store = &core.ports.store;
    // Read before the question leaves: the lease may have begun any time after this.
    let asked_at = core.ports.clock.moment();
    let grant = core.ports.clock.grant_id();
    let answers = store.acquire(&core.ask, &[(lane, grant)]).await;
    let answer = answers.map(|mut answers| answers.pop());
    let (right, taken_from) = match answer {
        Ok(Some(Acquired::Granted { right, taken_from })) => (right, taken_from),
        Ok(Some(Acquired::NotKeeper { lease })) => {
            counter!("lanekeeper_lease_acquire_total", "result" => "not_keeper").increment(1);
            return Err(NotOpened::NotKeeper(lease.owner));
        }
        Ok(None) => return Err(NotOpened::Store("the store answered nothing".into())),
        Err(error) => {
            counter!("lanekeeper_lease_acquire_total", "result" => "error").increment(1);
            return Err(NotOpened::Store(error.to_string()));
        }
    };
    let result = if taken_from.is_some() {
        "taken"
    } else {
        "inserted"
    };
    counter!("lanekeeper_lease_acquire_total", "result" => result).increment(1);
    core.leases
        .hold(lane, right, Trust::from(asked_at, core.ask.duration));
    let watch_depth = core.chain(lane.chain_id).rules.lane.watch_depth;
    match store.load(lane, right, watch_depth).await {
        Ok(Some(image)) => {
            let nonces = learn_of_chain(core, lane).await;
            Ok(Message::Opened {
                lane,
                image: Box::new(image),
                taken_from,
                nonces,
            })
        }
        Ok(None) => {
            core.leases.forget(lane);
            Err(NotOpened::Store(
                "the lane changed hands while it was read".into(),
            ))
        }
        Err(error) => {
            core.leases.forget(lane);
            Err(NotOpened::Store(error.to_string()))
        }
    }
}

/// Waits a moment for what a lane needs to deal nonces and sign, so that its first answers carry both.
/// Without it the lane takes requests all the same, and deals when the chain answers.
async fn learn_of_chain(core: &Core, lane: LaneKey) -> Option<ChainNonces> {
    let part = core.chain(lane.chain_id);
    let query = part.rules.lane.chain_query;
    let learn = async {
        part.view.known().await;
        if query == ChainQuery::Off {
            return None;
        }
        part.chain.nonces(lane.signer, query).await.ok() // the lane asks again by itself
    };
    tokio::select! {
        biased;
        nonces = learn => nonces,
        () = core.ports.clock.sleep(CHAIN_PATIENCE) => None,
    }
}

/// A commit's answer was lost. Granting the lane anew waits for the old batch or kills it; only then
/// does the last batch tell the truth. A plain read would not: the commit may still land after it.
pub(crate) async fn resolve(core: &Core, lane: LaneKey, right: Right) {
    let mut tries = 0;
    let grant = core.ports.clock.grant_id();
    let mut rights = vec![right];
    let outcome = loop {
        match regrant_any(core, &rights, grant).await {
            Ok(outcome) => break outcome,
            Err(error) => {
                tracing::warn!(%lane, %error, "the store does not tell what became of a commit");
                core.back_off(&mut tries).await;
                // The regrant itself may have landed although its answer was lost too.
                rights = vec![Right { grant, ..right }, right];
            }
        }
    };
    core.tell_shard(lane, Message::Resolved { lane, outcome })
        .await;
}

async fn regrant_any(
    core: &Core,
    rights: &[Right],
    grant: GrantId,
) -> Result<Regranted, StoreError> {
    for right in rights {
        let outcome = core.ports.store.regrant(*right, grant).await?;
        if matches!(outcome, Regranted::Held { .. }) {
            return Ok(outcome);
        }
    }
    Ok(Regranted::Fenced)
}

/// Extends all leases, again and again.
pub(crate) async fn renew_for_ever(core: Arc<Core>) {
    loop {
        core.ports
            .clock
            .sleep(core.config.lease.renew_interval)
            .await;
        for chunk in core.leases.all().chunks(RENEW_CHUNK) {
            renew(&core, chunk).await;
        }
    }
}

async fn renew(core: &Arc<Core>, lanes: &[(LaneKey, Right)]) {
    let asked_at = core.ports.clock.moment();
    let rights: Vec<Right> = lanes.iter().map(|(_, right)| *right).collect();
    let answers = match core.ports.store.renew(&core.ask, &rights).await {
        Ok(answers) => answers,
        Err(error) => {
            // Trust runs out by itself: nothing is sent until a renewal gets through.
            counter!("lanekeeper_lease_renew_failed_total").increment(1);
            tracing::warn!(%error, lanes = lanes.len(), "leases were not renewed");
            return;
        }
    };
    let trust = Trust::from(asked_at, core.ask.duration);
    for ((lane, right), answer) in lanes.iter().zip(answers) {
        match answer {
            Renewal::Renewed => core.leases.renewed(*lane, *right, trust),
            Renewal::Busy => {}
            Renewal::Lost => {
                counter!("lanekeeper_lease_fenced_total", "op" => "renew").increment(1);
                tracing::warn!(%lane, token = %right.token, "the lease was lost");
                tell_lost(core, *lane, *right);
            }
        }
    }
}

/// Told by a task of its own: a full inbox of one shard must not hold up the renewals of all.
fn tell_lost(core: &Arc<Core>, lane: LaneKey, right: Right) {
    core.leases.forget_right(lane, right);
    let telling = Arc::clone(core);
    core.tasks.spawn("lost lease", async move {
        telling
            .tell_shard(lane, Message::Lost { lane, right })
            .await;
    });
}

/// Finds lanes with work that nobody keeps, now and then; the first time at once.
pub(crate) async fn adopt_for_ever(core: Arc<Core>) {
    loop {
        if !core.is_draining() {
            match core.ports.store.lanes_with_work(&core.ask).await {
                Ok(found) => {
                    for work in found {
                        if core.lanes.contains_key(&work.lane) {
                            let has_queued = work.has_queued;
                            let wake = Message::Wake {
                                lane: work.lane,
                                has_queued,
                            };
                            core.tell_shard(work.lane, wake).await;
                        }
                    }
                }
                Err(error) => tracing::warn!(%error, "lanes with work could not be looked for"),
            }
        }
        core.ports
            .clock
            .sleep(core.config.lease.renew_interval)
            .await;
    }
}

/// Says that this node lives. A node whose place was taken by another life of it ends itself.
pub(crate) async fn heartbeat_for_ever(core: Arc<Core>, mut member: Member) {
    loop {
        core.ports
            .clock
            .sleep(core.config.lease.renew_interval)
            .await;
        member.seen_at = core.ports.clock.now();
        member.draining = core.is_draining();
        match core.ports.store.heartbeat(&member).await {
            Ok(true) => core.wrote_heartbeat(),
            Ok(false) => {
                tracing::error!(node = %member.node, "another process runs under this node's name; ending");
                core.tasks.kill();
                return;
            }
            Err(error) => tracing::warn!(%error, "the heartbeat was not written"),
        }
    }
}
