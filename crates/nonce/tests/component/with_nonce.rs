//! A nonce for as long as business code runs: what becomes of it however that ends.

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

/// What a test's business says when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failed;

struct Stage {
    books: Arc<MemoryBooks>,
    spy: Arc<Spy>,
    chain: Arc<FakeChain>,
    component: NonceComponent,
}

impl Stage {
    fn new(mode: Mode) -> Self {
        let (books, chain) = (MemoryBooks::new(), FakeChain::new(CHAIN));
        let spy = Spy::on(Arc::clone(&books) as Arc<_>);
        let settings = Settings {
            mode,
            ..Settings::default()
        };
        let component = component(settings, Arc::clone(&spy) as Arc<_>, &chain);
        Self {
            books,
            spy,
            chain,
            component,
        }
    }

    fn state(&self, nonce: u64) -> domain::ReservationState {
        self.books.row(lane(1), nonce).expect("it was lent").state
    }

    async fn comes_back(&self, nonce: u64) {
        until("it is given back", async || {
            (self.state(nonce) == Recyclable).then_some(())
        })
        .await;
    }
}

fn both() -> [Stage; 2] {
    [Stage::new(Mode::Basic), Stage::new(queued())]
}

#[tokio::test(start_paused = true)]
async fn the_result_says_what_becomes_of_the_nonce() {
    for stage in both() {
        let with_nonce = async |outcome: Outcome<u8>| {
            let business = async |_| Ok::<_, Failed>(outcome);
            stage.component.with_nonce(lane(1), business).await.unwrap()
        };
        assert_eq!(with_nonce(Outcome::Used(hash(7), 1)).await, 1);
        assert_eq!(stage.state(0), Used);
        assert_eq!(stage.books.row(lane(1), 0).unwrap().tx_hash, Some(hash(7)));
        assert_eq!(with_nonce(Outcome::Release("no funds".into(), 2)).await, 2);
        let freed = stage.books.row(lane(1), 1).unwrap();
        assert_eq!(
            (freed.state, freed.reason),
            (Recyclable, Some("no funds".into()))
        );
        assert_eq!(with_nonce(Outcome::Hold(3)).await, 3);
        assert_eq!(
            stage.state(1),
            Reserved,
            "the free one was lent again, and is held"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_gives_the_nonce_back() {
    for stage in both() {
        let business = async |_| Err::<Outcome<()>, _>(Failed);
        let ended = stage.component.with_nonce(lane(1), business).await;
        assert!(matches!(ended, Err(WithNonceError::Business(Failed))));
        assert_eq!(stage.state(0), Recyclable);
    }
}

/// The chain shows nothing when it is asked; then a transaction is named, and then the answer comes.
#[tokio::test(start_paused = true)]
async fn what_is_named_while_the_chain_is_asked_is_not_given_back() {
    for stage in both() {
        let component = &stage.component;
        let lent = component.allocate(lane(1)).await.unwrap();
        let (nonce, holder) = (lent.nonce, lent.holder);
        let submit = async |name| {
            component
                .mark_submitted(lane(1), nonce, holder, hash(name))
                .await
        };
        submit(1).await.unwrap();
        let asked = stage.chain.asked();
        stage.chain.gate().shut();
        let give_back = component.mark_recyclable(lane(1), nonce, holder, "not sent");
        let name_another = async {
            until("the chain is asked", async || {
                (stage.chain.asked() > asked).then_some(())
            })
            .await;
            submit(2).await.unwrap();
            stage.chain.gate().reopen();
        };
        let (given_back, ()) = tokio::join!(give_back, name_another);
        let two_named = ReservationError::Refused(MarkRefusal::TwoNamed(nonce));
        assert_eq!(given_back.unwrap_err(), two_named);
        let row = stage.books.row(lane(1), nonce.0).unwrap();
        assert_eq!((row.state, row.tx_hash), (Reserved, Some(hash(2))));
        // Asked again, nobody knows of both that they are nowhere.
        let again = component.mark_recyclable(lane(1), nonce, holder, "not sent");
        assert_eq!(again.await.unwrap_err(), two_named);
    }
}

/// A business fails while a clone of its nonce is still in somebody's hands, who announces a transaction.
#[tokio::test(start_paused = true)]
async fn what_is_announced_while_a_failure_is_told_is_not_given_back() {
    for stage in both() {
        let (give, given) = oneshot::channel();
        let business = async |borrowed: nonce::Borrowed| {
            stage.chain.gate().shut();
            let asked = stage.chain.asked();
            give.send((borrowed, asked)).ok().expect("somebody waits");
            Err::<Outcome<()>, _>(Failed)
        };
        let announce = async {
            let (borrowed, asked): (nonce::Borrowed, usize) = given.await.unwrap();
            until("the chain is asked", async || {
                (stage.chain.asked() > asked).then_some(())
            })
            .await;
            borrowed.submitted(hash(7)).await.unwrap();
            stage.chain.gate().reopen();
        };
        let with_nonce = stage.component.with_nonce(lane(1), business);
        let (ended, ()) = tokio::join!(with_nonce, announce);
        assert!(matches!(ended, Err(WithNonceError::Business(Failed))));
        let row = stage.books.row(lane(1), 0).unwrap();
        assert_eq!((row.state, row.tx_hash), (Reserved, Some(hash(7))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_a_submission_gives_nothing_back() {
    for stage in both() {
        let business = async |borrowed: nonce::Borrowed| {
            borrowed.submitted(hash(7)).await.unwrap();
            Err::<Outcome<()>, _>(Failed)
        };
        let ended = stage.component.with_nonce(lane(1), business).await;
        assert!(matches!(ended, Err(WithNonceError::Business(Failed))));
        assert_eq!(stage.state(0), Reserved);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_gives_nothing_back_that_the_chain_shows_or_that_it_cannot_deny() {
    for stage in both() {
        let business = async |borrowed: nonce::Borrowed| {
            stage.chain.send(lane(1).signer, borrowed.nonce.0, hash(9)); // and told nobody
            Err::<Outcome<()>, _>(Failed)
        };
        let ended = stage.component.with_nonce(lane(1), business).await;
        assert!(matches!(ended, Err(WithNonceError::Business(Failed))));
        assert_eq!(stage.state(0), Reserved);
        stage.chain.empty_pool();
        let business = async |_| {
            stage.chain.be_silent(true);
            Err::<Outcome<()>, _>(Failed)
        };
        let ended = stage.component.with_nonce(lane(1), business).await;
        assert!(matches!(ended, Err(WithNonceError::Business(Failed))));
        assert_eq!(stage.state(1), Reserved);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_gives_the_nonce_back_and_goes_on() {
    for stage in both() {
        let business = async |_| -> Result<Outcome<()>, Failed> { panic!("what a business") };
        let section = stage.component.with_nonce(lane(1), business);
        let panic = AssertUnwindSafe(section).catch_unwind().await;
        let panic = panic.map(|_| ()).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"what a business"));
        let freed = stage.books.row(lane(1), 0).unwrap();
        let reason = Some("its business panicked: what a business".into());
        assert_eq!((freed.state, freed.reason), (Recyclable, reason));
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_first_await_gives_the_nonce_back() {
    for stage in both() {
        let business = |_| -> std::future::Ready<Result<Outcome<()>, Failed>> { panic!("at once") };
        let section = stage.component.with_nonce(lane(1), business);
        assert!(AssertUnwindSafe(section).catch_unwind().await.is_err());
        assert_eq!(stage.state(0), Recyclable);
    }
}

/// Runs `with_nonce` in a task whose business tells that it runs and then waits for ever.
fn hanging(stage: &Stage, submits: bool) -> (tokio::task::JoinHandle<()>, oneshot::Receiver<()>) {
    let (component, (tell, told)) = (stage.component.clone(), oneshot::channel());
    let task = tokio::spawn(async move {
        let business = async |borrowed: nonce::Borrowed| {
            if submits {
                borrowed.submitted(hash(7)).await.unwrap();
            }
            tell.send(()).unwrap();
            std::future::pending::<Result<Outcome<()>, Failed>>().await
        };
        component.with_nonce(lane(1), business).await.unwrap();
    });
    (task, told)
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_business_gives_the_nonce_back() {
    for stage in both() {
        let (task, runs) = hanging(&stage, false);
        runs.await.unwrap();
        task.abort();
        stage.comes_back(0).await;
        assert_eq!(stage.component.allocate(lane(1)).await.unwrap().nonce.0, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_business_gives_nothing_back_that_was_submitted() {
    for stage in both() {
        let (task, runs) = hanging(&stage, true);
        runs.await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        // All that it left behind is over when the component is closed.
        stage.component.close(WITHIN).await.unwrap();
        assert_eq!(stage.state(0), Reserved);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_loan_is_given_back() {
    for stage in both() {
        stage.spy.gate().shut();
        let component = stage.component.clone();
        let task = tokio::spawn(async move { component.allocate(lane(1)).await });
        until("it is under way", async || {
            (stage.spy.begun() > 0).then_some(())
        })
        .await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        stage.spy.gate().reopen();
        until("it is lent", async || stage.books.row(lane(1), 0)).await;
        stage.comes_back(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_last_word_is_said_even_if_its_caller_goes_away_meanwhile() {
    for stage in both() {
        let (component, gate) = (stage.component.clone(), Arc::clone(&stage.spy));
        let task = tokio::spawn(async move {
            let business = async |_| {
                gate.gate().shut();
                Ok::<_, Failed>(Outcome::Used(hash(7), ()))
            };
            component.with_nonce(lane(1), business).await.unwrap();
        });
        until("it is said", async || {
            (stage.spy.begun() == 2).then_some(())
        })
        .await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        stage.spy.gate().reopen();
        until("it is used", async || {
            (stage.state(0) == Used).then_some(())
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_down_brings_the_value_back() {
    for stage in both() {
        let business = async |borrowed: nonce::Borrowed| {
            let (nonce, holder) = (borrowed.nonce, borrowed.holder);
            let given = stage
                .component
                .mark_recyclable(lane(1), nonce, holder, "no");
            given.await.unwrap();
            Ok::<_, Failed>(Outcome::Used(hash(7), "sent"))
        };
        let ended = stage.component.with_nonce(lane(1), business).await;
        let Err(WithNonceError::NotMarked { value, cause }) = ended else {
            panic!("{ended:?}")
        };
        assert_eq!(value, "sent");
        assert!(matches!(cause, ReservationError::Refused(_)), "{cause}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_sees_how_much_time_he_has() {
    for stage in both() {
        let business = async |borrowed: nonce::Borrowed| {
            let before = borrowed.time_left();
            tokio::time::advance(Duration::from_secs(59)).await;
            let after = borrowed.time_left();
            tokio::time::advance(Duration::from_secs(2)).await;
            let left = (before, after, borrowed.time_left());
            Ok::<_, Failed>(Outcome::Hold(left))
        };
        let (before, after, late) = stage.component.with_nonce(lane(1), business).await.unwrap();
        assert!(before <= Duration::from_secs(60) && after <= Duration::from_secs(1));
        assert!(before > Duration::from_secs(59));
        assert_eq!(late, Duration::ZERO);
    }
}
