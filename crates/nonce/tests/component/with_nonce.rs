//! `with_nonce`: the state of the nonce however the closure ends.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use domain::MarkRefusal;
use domain::ReservationState::{Recyclable, Reserved, Used};
use engine::ports::ReservationError;
use futures::FutureExt;
use nonce::{Mode, NonceComponent, Outcome, Settings, WithNonceError};
use tokio::sync::oneshot;

use super::kit::*;

/// The error of a failing closure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failed;

struct Fixture {
    ledger: Arc<MemoryLedger>,
    spy: Arc<Spy>,
    chain: Arc<FakeChain>,
    component: NonceComponent,
}

impl Fixture {
    fn new(mode: Mode) -> Self {
        let (ledger, chain) = (MemoryLedger::new(), FakeChain::new(CHAIN));
        let spy = Spy::on(Arc::clone(&ledger) as Arc<_>);
        let settings = Settings {
            mode,
            ..Settings::default()
        };
        let component = component(settings, Arc::clone(&spy) as Arc<_>, &chain);
        Self {
            ledger,
            spy,
            chain,
            component,
        }
    }

    fn state(&self, nonce: u64) -> domain::ReservationState {
        self.ledger
            .row(lane(1), nonce)
            .expect("the nonce is reserved")
            .state
    }

    async fn wait_until_recyclable(&self, nonce: u64) {
        wait_for("the nonce is recyclable", async || {
            (self.state(nonce) == Recyclable).then_some(())
        })
        .await;
    }
}

fn both_modes() -> [Fixture; 2] {
    [Fixture::new(Mode::Basic), Fixture::new(worker_queue_mode())]
}

#[tokio::test(start_paused = true)]
async fn outcome_decides_the_state_of_the_nonce() {
    for fixture in both_modes() {
        let with_nonce = async |outcome: Outcome<u8>| {
            let closure = async |_| Ok::<_, Failed>(outcome);
            fixture
                .component
                .with_nonce(lane(1), closure)
                .await
                .unwrap()
        };
        assert_eq!(with_nonce(Outcome::Used(hash(7), 1)).await, 1);
        assert_eq!(fixture.state(0), Used);
        assert_eq!(
            fixture.ledger.row(lane(1), 0).unwrap().tx_hash,
            Some(hash(7))
        );
        assert_eq!(with_nonce(Outcome::Release("no funds".into(), 2)).await, 2);
        let freed = fixture.ledger.row(lane(1), 1).unwrap();
        assert_eq!(
            (freed.state, freed.reason),
            (Recyclable, Some("no funds".into()))
        );
        assert_eq!(with_nonce(Outcome::Hold(3)).await, 3);
        assert_eq!(
            fixture.state(1),
            Reserved,
            "the recycled nonce was reserved again, and is held"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failed_closure_releases_the_nonce() {
    for fixture in both_modes() {
        let closure = async |_| Err::<Outcome<()>, _>(Failed);
        let ended = fixture.component.with_nonce(lane(1), closure).await;
        assert!(matches!(ended, Err(WithNonceError::Closure(Failed))));
        assert_eq!(fixture.state(0), Recyclable);
    }
}

/// The chain shows nothing at the query; another hash is submitted before its answer arrives.
#[tokio::test(start_paused = true)]
async fn hash_submitted_during_the_chain_check_blocks_recycling() {
    for fixture in both_modes() {
        let component = &fixture.component;
        let reserved = component.allocate(lane(1)).await.unwrap();
        let (nonce, holder) = (reserved.nonce, reserved.holder);
        let submit = async |name| {
            component
                .mark_submitted(lane(1), nonce, holder, hash(name))
                .await
        };
        submit(1).await.unwrap();
        let queries_before = fixture.chain.nonce_queries();
        fixture.chain.latch().close();
        let recycle = component.mark_recyclable(lane(1), nonce, holder, "not sent");
        let name_another = async {
            wait_for("the chain is queried", async || {
                (fixture.chain.nonce_queries() > queries_before).then_some(())
            })
            .await;
            submit(2).await.unwrap();
            fixture.chain.latch().reopen();
        };
        let (recycled, ()) = tokio::join!(recycle, name_another);
        let two_named = ReservationError::Refused(MarkRefusal::TwoNamed(nonce));
        assert_eq!(recycled.unwrap_err(), two_named);
        let row = fixture.ledger.row(lane(1), nonce.0).unwrap();
        assert_eq!((row.state, row.tx_hash), (Reserved, Some(hash(2))));
        // A retry cannot check both hashes.
        let again = component.mark_recyclable(lane(1), nonce, holder, "not sent");
        assert_eq!(again.await.unwrap_err(), two_named);
    }
}

/// A closure fails while a clone of its nonce exists, whose owner submits a hash.
#[tokio::test(start_paused = true)]
async fn hash_submitted_while_a_failure_is_recorded_keeps_the_nonce() {
    for fixture in both_modes() {
        let (sender, receiver) = oneshot::channel();
        let closure = async |held: nonce::HeldNonce| {
            fixture.chain.latch().close();
            let queries_before = fixture.chain.nonce_queries();
            sender
                .send((held, queries_before))
                .ok()
                .expect("the receiver waits");
            Err::<Outcome<()>, _>(Failed)
        };
        let announce = async {
            let (held, queries_before): (nonce::HeldNonce, usize) = receiver.await.unwrap();
            wait_for("the chain is queried", async || {
                (fixture.chain.nonce_queries() > queries_before).then_some(())
            })
            .await;
            held.submitted(hash(7)).await.unwrap();
            fixture.chain.latch().reopen();
        };
        let with_nonce = fixture.component.with_nonce(lane(1), closure);
        let (ended, ()) = tokio::join!(with_nonce, announce);
        assert!(matches!(ended, Err(WithNonceError::Closure(Failed))));
        let row = fixture.ledger.row(lane(1), 0).unwrap();
        assert_eq!((row.state, row.tx_hash), (Reserved, Some(hash(7))));
    }
}

#[tokio::test(start_paused = true)]
async fn failed_closure_keeps_a_submitted_nonce() {
    for fixture in both_modes() {
        let closure = async |held: nonce::HeldNonce| {
            held.submitted(hash(7)).await.unwrap();
            Err::<Outcome<()>, _>(Failed)
        };
        let ended = fixture.component.with_nonce(lane(1), closure).await;
        assert!(matches!(ended, Err(WithNonceError::Closure(Failed))));
        assert_eq!(fixture.state(0), Reserved);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_closure_keeps_nonce_with_chain_evidence_or_no_answer() {
    for fixture in both_modes() {
        let closure = async |held: nonce::HeldNonce| {
            fixture.chain.send(lane(1).signer, held.nonce.0, hash(9)); // without mark_submitted
            Err::<Outcome<()>, _>(Failed)
        };
        let ended = fixture.component.with_nonce(lane(1), closure).await;
        assert!(matches!(ended, Err(WithNonceError::Closure(Failed))));
        assert_eq!(fixture.state(0), Reserved);
        fixture.chain.empty_pool();
        let closure = async |_| {
            fixture.chain.set_unreachable(true);
            Err::<Outcome<()>, _>(Failed)
        };
        let ended = fixture.component.with_nonce(lane(1), closure).await;
        assert!(matches!(ended, Err(WithNonceError::Closure(Failed))));
        assert_eq!(fixture.state(1), Reserved);
    }
}

#[tokio::test(start_paused = true)]
async fn panicking_closure_releases_the_nonce_and_propagates() {
    for fixture in both_modes() {
        let closure = async |_| -> Result<Outcome<()>, Failed> { panic!("out of coffee") };
        let section = fixture.component.with_nonce(lane(1), closure);
        let panic = AssertUnwindSafe(section).catch_unwind().await;
        let panic = panic.map(|_| ()).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"out of coffee"));
        let freed = fixture.ledger.row(lane(1), 0).unwrap();
        let reason = Some("the closure panicked: out of coffee".into());
        assert_eq!((freed.state, freed.reason), (Recyclable, reason));
    }
}

#[tokio::test(start_paused = true)]
async fn panic_before_the_first_await_releases_the_nonce() {
    for fixture in both_modes() {
        let closure = |_| -> std::future::Ready<Result<Outcome<()>, Failed>> { panic!("at once") };
        let section = fixture.component.with_nonce(lane(1), closure);
        assert!(AssertUnwindSafe(section).catch_unwind().await.is_err());
        assert_eq!(fixture.state(0), Recyclable);
    }
}

/// Runs `with_nonce` in a task whose closure signals that it runs and then never ends.
fn spawn_hanging(
    fixture: &Fixture,
    submits: bool,
) -> (tokio::task::JoinHandle<()>, oneshot::Receiver<()>) {
    let (component, (sender, receiver)) = (fixture.component.clone(), oneshot::channel());
    let task = tokio::spawn(async move {
        let closure = async |held: nonce::HeldNonce| {
            if submits {
                held.submitted(hash(7)).await.unwrap();
            }
            sender.send(()).unwrap();
            std::future::pending::<Result<Outcome<()>, Failed>>().await
        };
        component.with_nonce(lane(1), closure).await.unwrap();
    });
    (task, receiver)
}

#[tokio::test(start_paused = true)]
async fn cancelled_closure_releases_the_nonce() {
    for fixture in both_modes() {
        let (task, runs) = spawn_hanging(&fixture, false);
        runs.await.unwrap();
        task.abort();
        fixture.wait_until_recyclable(0).await;
        assert_eq!(
            fixture.component.allocate(lane(1)).await.unwrap().nonce.0,
            0
        );
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_closure_keeps_a_submitted_nonce() {
    for fixture in both_modes() {
        let (task, runs) = spawn_hanging(&fixture, true);
        runs.await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        // The close waits for everything that the task left unfinished.
        fixture.component.close(WITHIN).await.unwrap();
        assert_eq!(fixture.state(0), Reserved);
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_allocation_is_recycled() {
    for fixture in both_modes() {
        fixture.spy.latch().close();
        let component = fixture.component.clone();
        let task = tokio::spawn(async move { component.allocate(lane(1)).await });
        wait_for("the allocation is in progress", async || {
            (fixture.spy.calls_begun() > 0).then_some(())
        })
        .await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        fixture.spy.latch().reopen();
        wait_for("the nonce is reserved", async || {
            fixture.ledger.row(lane(1), 0)
        })
        .await;
        fixture.wait_until_recyclable(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn final_mark_is_recorded_although_the_caller_is_cancelled() {
    for fixture in both_modes() {
        let (component, latch) = (fixture.component.clone(), Arc::clone(&fixture.spy));
        let task = tokio::spawn(async move {
            let closure = async |_| {
                latch.latch().close();
                Ok::<_, Failed>(Outcome::Used(hash(7), ()))
            };
            component.with_nonce(lane(1), closure).await.unwrap();
        });
        wait_for("the mark is in progress", async || {
            (fixture.spy.calls_begun() == 2).then_some(())
        })
        .await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        fixture.spy.latch().reopen();
        wait_for("the nonce is used", async || {
            (fixture.state(0) == Used).then_some(())
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn refused_final_mark_returns_the_closures_value() {
    for fixture in both_modes() {
        let closure = async |held: nonce::HeldNonce| {
            let (nonce, holder) = (held.nonce, held.holder);
            let receiver = fixture
                .component
                .mark_recyclable(lane(1), nonce, holder, "no");
            receiver.await.unwrap();
            Ok::<_, Failed>(Outcome::Used(hash(7), "sent"))
        };
        let ended = fixture.component.with_nonce(lane(1), closure).await;
        let Err(WithNonceError::NotMarked { value, cause }) = ended else {
            panic!("{ended:?}")
        };
        assert_eq!(value, "sent");
        assert!(matches!(cause, ReservationError::Refused(_)), "{cause}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_left_counts_down_to_the_expiry() {
    for fixture in both_modes() {
        let closure = async |held: nonce::HeldNonce| {
            let before = held.time_left();
            tokio::time::advance(Duration::from_secs(59)).await;
            let after = held.time_left();
            tokio::time::advance(Duration::from_secs(2)).await;
            let left = (before, after, held.time_left());
            Ok::<_, Failed>(Outcome::Hold(left))
        };
        let (before, after, late) = fixture
            .component
            .with_nonce(lane(1), closure)
            .await
            .unwrap();
        assert!(before <= Duration::from_secs(60) && after <= Duration::from_secs(1));
        assert!(before > Duration::from_secs(59));
        assert_eq!(late, Duration::ZERO);
    }
}
