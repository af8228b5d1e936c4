//! Those who borrow nonces and send by themselves: most with care, some without a word, some too late. What was
//! sent with care is sent again until a block has it, also when all is well again: then a nonce is borrowed only
//! where others wait for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::lane::reserve::ReservationTerms;
use domain::{Holder, LaneKey, Mark, Nonce, TxState};
use engine::ports::{Store as _, TxFilter};
use engine::reservations::MarkRequest;
use uuid::Uuid;

use super::Scene;
use crate::chain::ChainTx;
use crate::event::WorldEvent;
use crate::world::chain_plan::FEE_DEAR;
use crate::world::loans::Loans;

/// The longest pause between two who borrow.
const PAUSE_MS_MAX: u64 = 5_000;
/// How many loans are open at once, as a rule.
const OPEN_MAX: u64 = 8;
/// How many open loans are looked at.
const PAGE: usize = 100;

pub(super) async fn borrow_for_ever(scene: Scene) {
    let Some(loans) = scene.plan.loans else {
        return;
    };
    for number in 0_u64.. {
        scene.rest(0, PAUSE_MS_MAX).await;
        let is_wanted = match scene.is_restless() {
            true => has_room(&scene, loans.lane()).await,
            false => is_waited_for(&scene, loans.lane()).await,
        };
        if is_wanted {
            // The handle is let go: whoever borrowed ends by himself, or with the world.
            drop(tokio::spawn(borrow(scene.split(), loans, number)));
        }
    }
}

async fn has_room(scene: &Scene, lane: LaneKey) -> bool {
    let lanes = scene.store.lanes(&[lane]).await;
    let lanes = lanes.expect("the twin's reads do not fail");
    lanes
        .iter()
        .all(|one| one.in_flight + one.queued < OPEN_MAX)
}

/// Whether a nonce is nobody's, nothing waits with it in a pool, and somebody has a later one.
async fn is_waited_for(scene: &Scene, lane: LaneKey) -> bool {
    let next = scene.chain.account_nonce(lane.signer);
    let pool = scene.chain.pool();
    let of_account = pool.iter().filter(|tx| tx.envelope.signer == lane.signer);
    let mut taken: BTreeSet<Nonce> = of_account.map(|tx| tx.envelope.nonce).collect();
    let mut last = next;
    for state in [TxState::Allocated, TxState::Tracking, TxState::Stuck] {
        let filter = TxFilter {
            signer: Some(lane.signer),
            state: Some(state),
            limit: PAGE,
            ..TxFilter::default()
        };
        let page = scene.store.txs(&filter).await;
        let page = page.expect("the twin's reads do not fail");
        let held = page.txs.iter().filter_map(|record| record.tx.nonce);
        for nonce in held {
            last = last.max(nonce);
            taken.insert(nonce);
        }
    }
    (next.0..last.0).any(|nonce| !taken.contains(&Nonce(nonce)))
}

/// How many have borrowed and have not said all that they will say: a word may open a lane that had come to rest.
/// Clones are the same count.
#[derive(Clone, Default)]
pub(in crate::world) struct Speakers(Arc<AtomicUsize>);

/// One of them, until it is dropped.
struct Speaker(Speakers);

impl Speakers {
    pub(in crate::world) fn are_silent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn one_more(&self) -> Speaker {
        self.0.fetch_add(1, Ordering::Relaxed);
        Speaker(self.clone())
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        let Self(Speakers(count)) = self;
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Somebody who has a nonce.
struct Borrower {
    scene: Scene,
    lane: LaneKey,
    holder: Holder,
    nonce: Nonce,
    number: u64,
}

async fn borrow(scene: Scene, loans: Loans, number: u64) {
    let speaker = scene.speakers.one_more();
    let (lane, holder) = (loans.lane(), Holder(Uuid::from_u128(scene.rng.bits_128())));
    let seen = scene.chain.account_nonce(lane.signer);
    let loan = ReservationTerms {
        timeout: loans.timeout,
        at_least: if scene.rng.permille(300) {
            seen
        } else {
            Nonce(0)
        },
    };
    let machine = scene.some_node().clone();
    let asked = scene.lease_request(&machine, |node| async move {
        node.lend(lane, holder, loan).await
    });
    // Whoever gets no clear answer has nothing: what was lent to him all the same comes back by itself.
    let Some(Ok(lent)) = asked.await else {
        return;
    };
    scene.trace.tell(WorldEvent::ReservedAccounts {
        lane,
        nonce: lent.nonce,
        holder,
    });
    let is_restless = scene.is_restless();
    let borrower = Borrower {
        scene,
        lane,
        holder,
        nonce: lent.nonce,
        number,
    };
    match borrower.scene.rng.below(10) {
        // So that everything ends: a nonce that others wait for is used.
        _ if !is_restless => borrower.send_with_care(speaker).await,
        0..=4 => borrower.send_with_care(speaker).await,
        5 => borrower.send_without_a_word(),
        6 => {} // gone
        7 => borrower.think_better_of_it().await,
        _ => borrower.give_back().await,
    }
}

impl Borrower {
    /// Names the transaction before it leaves, and sees to it that it is mined.
    async fn send_with_care(self, speaker: Speaker) {
        self.scene.rest(0, 2_000).await;
        let mut made = self.make(0);
        if !self.say(Mark::Submitted(made.hash)).await {
            return; // it came too late
        }
        self.send(&made);
        if self.scene.rng.permille(200) {
            // It is replaced, and the first may be mined all the same.
            self.scene.rest(0, 3_000).await;
            let other = self.make(1);
            if self.say(Mark::Submitted(other.hash)).await {
                made = other;
            }
        }
        let says_used = self.scene.rng.permille(300);
        let mut speaker = Some(speaker);
        loop {
            if self.scene.chain.account_nonce(self.lane.signer) <= self.nonce {
                self.send(&made);
            } else if let Some(last_word) = speaker.take() {
                if says_used {
                    self.say(Mark::Used(made.hash)).await; // refused where the other one was mined
                }
                drop(last_word);
            }
            self.scene.rest(1_000, 5_000).await;
        }
    }

    /// Sends at once and is never heard of again.
    fn send_without_a_word(&self) {
        self.send(&self.make(0));
    }

    /// Names a transaction that he then does not send.
    async fn think_better_of_it(&self) {
        let hash = self.make(0).hash;
        if self.say(Mark::Submitted(hash)).await {
            self.scene.rest(0, 20_000).await;
            let free = Mark::Recyclable {
                reason: "not sent after all".to_owned(),
                asked: Some(hash),
            };
            self.say(free).await;
        }
    }

    /// Gives it back, perhaps twice, and perhaps speaks as if he still had it.
    async fn give_back(&self) {
        self.scene.rest(0, 5_000).await;
        let free = || Mark::Recyclable {
            reason: "not needed".to_owned(),
            asked: None,
        };
        if self.say(free()).await && self.scene.rng.permille(500) {
            self.scene.rest(0, 20_000).await;
            let late = match self.scene.rng.below(3) {
                0 => free(),
                1 => Mark::Submitted(self.make(0).hash),
                _ => Mark::Used(self.make(0).hash),
            };
            self.say(late).await;
        }
    }

    /// Says it to one node after another, until one has heard it or refuses it for good.
    async fn say(&self, mark: Mark) -> bool {
        let tell = |taken: Option<bool>| {
            self.scene.trace.tell(WorldEvent::Said {
                lane: self.lane,
                nonce: self.nonce,
                holder: self.holder,
                mark: mark.clone(),
                taken,
            });
        };
        tell(None);
        loop {
            let call = MarkRequest {
                lane: self.lane,
                nonce: self.nonce,
                holder: self.holder,
                mark: mark.clone(),
            };
            let machine = self.scene.some_node().clone();
            let asked = self
                .scene
                .lease_request(&machine, |node| async move { node.mark(call).await });
            match asked.await {
                Some(Ok(_)) => {
                    tell(Some(true));
                    return true;
                }
                Some(Err(error)) if !error.is_worth_repeating() => {
                    tell(Some(false));
                    return false;
                }
                Some(Err(_)) | None => self.scene.rest(100, 3_000).await,
            }
        }
    }

    /// The n-th transaction that he makes.
    fn make(&self, version: u64) -> Arc<ChainTx> {
        let data = format!("loan-{}-{version}", self.number);
        // A later one replaces the earlier in any pool.
        let per_gas = 2 * FEE_DEAR * (1 + u128::from(version));
        let chain = &self.scene.chain;
        chain.made_elsewhere(self.lane.signer, self.nonce, &data, per_gas)
    }

    fn send(&self, made: &Arc<ChainTx>) {
        let endpoints = u64::try_from(self.scene.plan.chain.endpoints).expect("few endpoints");
        let endpoint = usize::try_from(self.scene.rng.below(endpoints)).expect("few endpoints");
        self.scene.chain.send_elsewhere(made, endpoint);
    }
}
