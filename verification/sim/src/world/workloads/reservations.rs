//! Clients that reserve nonces and send their own transactions: most mark them correctly, some never, some too
//! late. A marked transaction is resent until it is mined, also after faults have ended: then a nonce is reserved
//! only to close a gap.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::lane::reservations::ReservationTerms;
use domain::{Holder, LaneKey, Mark, Nonce, TxState};
use engine::ports::{Store as _, TxFilter};
use engine::reservations::MarkRequest;
use uuid::Uuid;

use super::WorkloadContext;
use crate::chain::ChainTx;
use crate::event::WorldEvent;
use crate::world::chain_plan::FEE_HIGH;
use crate::world::features::Feature;
use crate::world::reservation_plan::ReservationPlan;

/// The longest pause between two reservations.
const PAUSE_MS_MAX: u64 = 5_000;
/// The usual maximum of open reservations.
const OPEN_MAX: u64 = 8;
/// The page size for reading open txs.
const PAGE: usize = 100;

pub(super) async fn reserve_nonces(context: WorkloadContext) {
    let Some(reservations) = context.plan.reservations else {
        return;
    };
    for number in 0_u64.. {
        context.pause(0, PAUSE_MS_MAX).await;
        let is_wanted = match context.has_faults() {
            true => has_room(&context, reservations.lane()).await,
            false => has_gap(&context, reservations.lane()).await,
        };
        if is_wanted {
            // Detached: the task ends by itself, or with the world.
            drop(tokio::spawn(hold_reservation(
                context.split(),
                reservations,
                number,
            )));
        }
    }
}

async fn has_room(context: &WorkloadContext, lane: LaneKey) -> bool {
    let lanes = context.store.lanes(&[lane]).await;
    let lanes = lanes.expect("the twin's reads do not fail");
    lanes
        .iter()
        .all(|one| one.in_flight + one.queued < OPEN_MAX)
}

/// Whether a nonce has no holder and no pending transaction while a later one is in use.
async fn has_gap(context: &WorkloadContext, lane: LaneKey) -> bool {
    let next = context.chain.account_nonce(lane.signer);
    let pool = context.chain.pool();
    let of_account = pool.iter().filter(|tx| tx.envelope.signer == lane.signer);
    let mut used: BTreeSet<Nonce> = of_account.map(|tx| tx.envelope.nonce).collect();
    let mut last = next;
    for state in [TxState::Allocated, TxState::Tracking, TxState::Stuck] {
        let filter = TxFilter {
            signer: Some(lane.signer),
            state: Some(state),
            limit: PAGE,
            ..TxFilter::default()
        };
        let page = context.store.txs(&filter).await;
        let page = page.expect("the twin's reads do not fail");
        let held = page.txs.iter().filter_map(|record| record.tx.nonce);
        for nonce in held {
            last = last.max(nonce);
            used.insert(nonce);
        }
    }
    (next.0..last.0).any(|nonce| !used.contains(&Nonce(nonce)))
}

/// Counts holders that have not sent their last mark: a mark may open a lane that was idle.
/// Clones share the count.
#[derive(Clone, Default)]
pub(in crate::world) struct ActiveHolders(Arc<AtomicUsize>);

/// One of them, until it is dropped.
struct ActiveHolder(ActiveHolders);

impl ActiveHolders {
    pub(in crate::world) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn register(&self) -> ActiveHolder {
        self.0.fetch_add(1, Ordering::Relaxed);
        ActiveHolder(self.clone())
    }
}

impl Drop for ActiveHolder {
    fn drop(&mut self) {
        let Self(ActiveHolders(count)) = self;
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client that holds a nonce.
struct ReservationHolder {
    context: WorkloadContext,
    lane: LaneKey,
    holder: Holder,
    nonce: Nonce,
    number: u64,
}

async fn hold_reservation(context: WorkloadContext, reservations: ReservationPlan, number: u64) {
    let active_holder = context.active_holders.register();
    let (lane, holder) = (
        reservations.lane(),
        Holder(Uuid::from_u128(context.rng.bits_128())),
    );
    let seen = context.chain.account_nonce(lane.signer);
    let terms = ReservationTerms {
        timeout: reservations.timeout,
        at_least: if context.rng.permille(300) {
            seen
        } else {
            Nonce(0)
        },
    };
    let machine = context.pick_running_node().clone();
    let answer = context.call_node(&machine, |node| async move {
        node.reserve_nonce(lane, holder, terms).await
    });
    // Without a clear answer the client has no reservation; one that was granted anyway expires.
    let Some(Ok(reservation)) = answer.await else {
        return;
    };
    context.trace.fire(Feature::Reservations);
    context.trace.record(WorldEvent::NonceReserved {
        lane,
        nonce: reservation.nonce,
        holder,
    });
    let has_faults = context.has_faults();
    let reservation_holder = ReservationHolder {
        context,
        lane,
        holder,
        nonce: reservation.nonce,
        number,
    };
    match reservation_holder.context.rng.below(10) {
        // So that everything ends: a nonce that blocks later ones is used.
        _ if !has_faults => reservation_holder.mark_and_send(active_holder).await,
        0..=4 => reservation_holder.mark_and_send(active_holder).await,
        5 => reservation_holder.send_unmarked(),
        6 => {} // the holder disappears
        7 => reservation_holder.mark_then_recycle().await,
        _ => reservation_holder.recycle().await,
    }
}

impl ReservationHolder {
    /// Marks the transaction before it sends it, and resends it until it is mined.
    async fn mark_and_send(self, active_holder: ActiveHolder) {
        self.context.pause(0, 2_000).await;
        let mut made = self.make_tx(0);
        if !self.mark(Mark::Submitted(made.hash)).await {
            return; // the mark was too late
        }
        self.send(&made);
        if self.context.rng.permille(200) {
            // The transaction is replaced, but the first one may still be mined.
            self.context.pause(0, 3_000).await;
            let other = self.make_tx(1);
            if self.mark(Mark::Submitted(other.hash)).await {
                made = other;
            }
        }
        let marks_used = self.context.rng.permille(300);
        let mut active_holder = Some(active_holder);
        loop {
            if self.context.chain.account_nonce(self.lane.signer) <= self.nonce {
                self.send(&made);
            } else if let Some(last_mark) = active_holder.take() {
                if marks_used {
                    self.mark(Mark::Used(made.hash)).await; // refused if the other one was mined
                }
                drop(last_mark);
            }
            self.context.pause(1_000, 5_000).await;
        }
    }

    /// Sends at once without any mark.
    fn send_unmarked(&self) {
        self.send(&self.make_tx(0));
    }

    /// Marks a transaction that it then does not send.
    async fn mark_then_recycle(&self) {
        let hash = self.make_tx(0).hash;
        if self.mark(Mark::Submitted(hash)).await {
            self.context.pause(0, 20_000).await;
            let free = Mark::Recyclable {
                reason: "not sent after all".to_owned(),
                asked: Some(hash),
            };
            self.mark(free).await;
        }
    }

    /// Recycles the nonce, sometimes twice, and sometimes marks it afterwards.
    async fn recycle(&self) {
        self.context.pause(0, 5_000).await;
        let free = || Mark::Recyclable {
            reason: "not needed".to_owned(),
            asked: None,
        };
        if self.mark(free()).await && self.context.rng.permille(500) {
            self.context.pause(0, 20_000).await;
            let late = match self.context.rng.below(3) {
                0 => free(),
                1 => Mark::Submitted(self.make_tx(0).hash),
                _ => Mark::Used(self.make_tx(0).hash),
            };
            self.mark(late).await;
        }
    }

    /// Sends a mark to one node after another, until one accepts it or refuses it permanently.
    async fn mark(&self, mark: Mark) -> bool {
        let record = |accepted: Option<bool>| {
            self.context.trace.record(WorldEvent::NonceMarked {
                lane: self.lane,
                nonce: self.nonce,
                holder: self.holder,
                mark: mark.clone(),
                accepted,
            });
        };
        record(None);
        loop {
            let call = MarkRequest {
                lane: self.lane,
                nonce: self.nonce,
                holder: self.holder,
                mark: mark.clone(),
            };
            let machine = self.context.pick_running_node().clone();
            let answer = self
                .context
                .call_node(&machine, |node| async move { node.mark(call).await });
            match answer.await {
                Some(Ok(_)) => {
                    record(Some(true));
                    return true;
                }
                Some(Err(error)) if !error.is_worth_repeating() => {
                    record(Some(false));
                    return false;
                }
                Some(Err(_)) | None => self.context.pause(100, 3_000).await,
            }
        }
    }

    /// The n-th transaction of this holder.
    fn make_tx(&self, version: u64) -> Arc<ChainTx> {
        // The prefix is part of recorded worlds: other bytes make other hashes.
        let data = format!("loan-{}-{version}", self.number);
        // A later version replaces the earlier one in any mempool.
        let per_gas = 2 * FEE_HIGH * (1 + u128::from(version));
        let chain = &self.context.chain;
        chain.foreign_tx(self.lane.signer, self.nonce, &data, per_gas)
    }

    fn send(&self, made: &Arc<ChainTx>) {
        let endpoints = u64::try_from(self.context.plan.chain.endpoints).expect("few endpoints");
        let endpoint = usize::try_from(self.context.rng.below(endpoints)).expect("few endpoints");
        self.context.chain.send_foreign(made, endpoint);
    }
}
