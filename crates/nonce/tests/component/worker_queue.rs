//! Worker-queue mode: serialisation, limits, nesting and shutdown.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{LaneKey, Reservation};
use engine::ports::ReservationError;
use futures::future::join_all;
use futures::{StreamExt, stream};
use nonce::{
    HeldNonce, Mode, NonceComponent, Outcome, QueueSettings, RejectPolicy, Settings, WithNonceError,
};
use tokio::runtime::Handle;

use super::kit::*;

struct Fixture {
    spy: Arc<Spy>,
    component: NonceComponent,
}

fn fixture(queue: QueueSettings) -> Fixture {
    fixture_in(Mode::WorkerQueue(queue))
}

fn fixture_in(mode: Mode) -> Fixture {
    let spy = Spy::on(MemoryLedger::new());
    let settings = Settings {
        mode,
        ..Settings::default()
    };
    let component = component(settings, Arc::clone(&spy) as Arc<_>, &FakeChain::new(CHAIN));
    Fixture { spy, component }
}

fn queue(workers: usize, capacity: usize, reject: RejectPolicy) -> QueueSettings {
    QueueSettings {
        workers,
        capacity,
        reject,
        ..QueueSettings::default()
    }
}

/// Reserves and marks used, many times concurrently.
async fn load(component: &NonceComponent, lanes: &[LaneKey], each: usize) {
    let one = async |lane: LaneKey| {
        let reserved = component.allocate(lane).await?;
        component
            .mark_used(lane, reserved.nonce, reserved.holder, hash(1))
            .await
    };
    let calls = lanes.iter().flat_map(|lane| (0..each).map(|_| one(*lane)));
    for ended in join_all(calls).await {
        ended.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_lane_never_overlap() {
    let basic = fixture_in(Mode::Basic);
    load(&basic.component, &[lane(1)], 100).await;
    assert!(
        basic.spy.calls_per_lane_max() > 1,
        "the spy detects overlapping calls"
    );
    for reject in [RejectPolicy::FailFast, RejectPolicy::CallerRuns] {
        let queued = fixture(queue(4, 1_000, reject));
        load(&queued.component, &[lane(1), lane(2), lane(3)], 100).await;
        assert_eq!(queued.spy.calls_per_lane_max(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn different_lanes_run_in_parallel() {
    let fixture = fixture(queue(8, 100, RejectPolicy::FailFast));
    fixture.spy.latch().close();
    let lanes: Vec<LaneKey> = (0..40).map(lane).collect();
    let calls = lanes.iter().map(|lane| fixture.component.allocate(*lane));
    let release = async {
        // Every worker has one lane, and each lane one call.
        wait_for("all workers are busy", async || {
            (fixture.spy.lanes_max() == 8).then_some(())
        })
        .await;
        fixture.spy.latch().reopen();
    };
    let (reserved, ()) = tokio::join!(join_all(calls), release);
    assert!(reserved.iter().all(Result::is_ok));
    assert_eq!(fixture.spy.calls_per_lane_max(), 1);
}

#[tokio::test(start_paused = true)]
async fn full_queue_refuses_at_once_and_a_retry_succeeds() {
    let fixture = fixture(queue(1, 2, RejectPolicy::FailFast));
    fixture.component.allocate(lane(1)).await.unwrap();
    fixture.spy.latch().close();
    // One call is with the worker, two wait.
    let first = fixture.component.allocate(lane(1));
    let others = async {
        wait_for("the worker is busy", async || {
            (fixture.spy.calls_begun() == 2).then_some(())
        })
        .await;
        let waiting = (0..2).map(|_| fixture.component.allocate(lane(1)));
        let overflow = async {
            let refused = fixture.component.allocate(lane(1)).await.unwrap_err();
            fixture.spy.latch().reopen();
            refused
        };
        tokio::join!(join_all(waiting), overflow)
    };
    let (first, (waiting, refused)) = tokio::join!(first, others);
    assert_eq!(refused, ReservationError::Busy);
    assert!(refused.is_worth_repeating());
    let reserved = [first].into_iter().chain(waiting);
    let nonces: Vec<u64> = reserved.map(|reserved| reserved.unwrap().nonce.0).collect();
    assert_eq!(nonces, [1, 2, 3]);
    assert_eq!(
        fixture.component.allocate(lane(1)).await.unwrap().nonce.0,
        4
    );
}

#[tokio::test(start_paused = true)]
async fn caller_runs_overflow_without_overlap_in_a_lane() {
    let fixture = fixture(queue(1, 1, RejectPolicy::CallerRuns));
    let lanes: Vec<LaneKey> = (0..10).map(lane).collect();
    load(&fixture.component, &lanes, 30).await;
    assert_eq!(fixture.spy.calls_per_lane_max(), 1);
    assert!(
        fixture.spy.lanes_max() > 1,
        "callers ran the overflow beside the only worker"
    );
}

/// Nests calls of all kinds and returns how many sections ended.
async fn run_nested_calls(
    component: &NonceComponent,
    outer: LaneKey,
    inner: LaneKey,
    spawns: bool,
) -> usize {
    let closure = async |held: HeldNonce| {
        let again = component.clone();
        let calls = async move {
            let reserved = again.allocate(inner).await.unwrap();
            let (nonce, holder) = (reserved.nonce, reserved.holder);
            again
                .mark_submitted(inner, nonce, holder, hash(2))
                .await
                .unwrap();
            again
                .mark_used(inner, nonce, holder, hash(2))
                .await
                .unwrap();
            let deepest = async |_| Ok::<_, ()>(Outcome::Release("tried".into(), 1));
            again.with_nonce(inner, deepest).await.unwrap()
        };
        let ended = match spawns {
            true => tokio::spawn(calls).await.unwrap(),
            false => calls.await,
        };
        let tx_hash = hash(1);
        held.submitted(tx_hash).await.unwrap();
        Ok::<_, ()>(Outcome::Used(tx_hash, ended + 1))
    };
    component.with_nonce(outer, closure).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn nested_calls_do_not_deadlock() {
    let one_each = [RejectPolicy::FailFast, RejectPolicy::CallerRuns].map(|r| queue(1, 1, r));
    for queue in one_each {
        for spawns in [false, true] {
            let fixture = fixture(queue);
            let nested = run_nested_calls(&fixture.component, lane(1), lane(1), spawns);
            let ended = tokio::time::timeout(WITHIN, nested).await;
            assert_eq!(ended, Ok(2), "spawned: {spawns}");
            assert_eq!(fixture.spy.calls_per_lane_max(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn crosswise_nested_calls_do_not_deadlock() {
    for spawns in [false, true] {
        let fixture = fixture(queue(2, 100, RejectPolicy::FailFast));
        let both = async {
            let one = run_nested_calls(&fixture.component, lane(1), lane(2), spawns);
            let other = run_nested_calls(&fixture.component, lane(2), lane(1), spawns);
            tokio::join!(one, other)
        };
        let ended = tokio::time::timeout(WITHIN, both).await;
        assert_eq!(ended, Ok((2, 2)), "spawned: {spawns}");
        assert_eq!(fixture.spy.calls_per_lane_max(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nested_calls_bypass_a_full_queue() {
    let fixture = fixture(queue(1, 1, RejectPolicy::FailFast));
    let full = Arc::new(Mutex::new(Vec::new()));
    let closure = async |held: HeldNonce| {
        // Calls from outside fill the worker and its queue.
        fixture.spy.latch().close();
        for waits_for in [2, 2] {
            let (component, begun) = (fixture.component.clone(), fixture.spy.calls_begun());
            let stranger = tokio::spawn(async move { component.allocate(lane(waits_for)).await });
            full.lock().unwrap().push(stranger);
            if begun == 1 {
                let busy = async || (fixture.spy.calls_begun() == 2).then_some(());
                wait_for("the worker is busy", busy).await;
            }
        }
        // The queue has no room for another call from outside.
        let component = fixture.component.clone();
        let outside = tokio::spawn(async move {
            while component.allocate(lane(3)).await != Err(ReservationError::Busy) {}
        });
        outside.await.unwrap();
        let submitted = held.submitted(hash(1));
        let reopen = async { fixture.spy.latch().reopen() };
        let (submitted, ()) = tokio::join!(submitted, reopen);
        submitted.unwrap();
        Ok::<_, ()>(Outcome::Used(hash(1), ()))
    };
    fixture
        .component
        .with_nonce(lane(1), closure)
        .await
        .unwrap();
    let strangers = std::mem::take(&mut *full.lock().unwrap());
    for stranger in strangers {
        stranger.await.unwrap().unwrap();
    }
}

/// Runs sections with several awaits and returns the largest number of concurrent ones.
async fn max_concurrent_sections(component: &NonceComponent, lanes: &[LaneKey]) -> usize {
    let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let section = async |lane: LaneKey| {
        let closure = async |_| {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(300)).await; // simulates sending
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ()>(Outcome::Used(hash(1), ()))
        };
        component.with_nonce(lane, closure).await.unwrap();
    };
    join_all(lanes.iter().map(|lane| section(*lane))).await;
    most.into_inner()
}

#[tokio::test(start_paused = true)]
async fn sections_overlap_across_lanes_but_not_within_one() {
    for reject in [RejectPolicy::FailFast, RejectPolicy::CallerRuns] {
        let fixture = fixture(queue(4, 100, reject));
        assert_eq!(
            max_concurrent_sections(&fixture.component, &[lane(1); 12]).await,
            1
        );
        let lanes: Vec<LaneKey> = (0..12).map(lane).collect();
        assert_eq!(
            max_concurrent_sections(&fixture.component, &lanes).await,
            12
        );
    }
    let basic = fixture_in(Mode::Basic);
    assert_eq!(
        max_concurrent_sections(&basic.component, &[lane(1); 12]).await,
        12
    );
}

#[tokio::test(start_paused = true)]
async fn section_is_refused_when_too_many_wait() {
    for (reject, most_ended) in [(RejectPolicy::FailFast, 3), (RejectPolicy::CallerRuns, 8)] {
        let fixture = fixture(queue(1, 2, reject));
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let section = async || {
            let closure = async |_| {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(300)).await; // simulates sending
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, ()>(Outcome::Used(hash(1), ()))
            };
            fixture.component.with_nonce(lane(1), closure).await
        };
        // One is active, two wait.
        let ended = join_all((0..8).map(|_| section())).await;
        assert_eq!(
            ended.iter().filter(|ended| ended.is_ok()).count(),
            most_ended
        );
        for refused in ended.into_iter().filter_map(Result::err) {
            let busy =
                matches!(&refused, WithNonceError::NotReserved(why) if why.is_worth_repeating());
            assert!(busy, "{refused:?}");
        }
        assert_eq!(most.load(Ordering::SeqCst), 1, "{reject:?}");
        section().await.unwrap(); // the queue is empty again
    }
}

#[tokio::test(start_paused = true)]
async fn nested_spawned_task_does_not_wait_for_its_section() {
    let fixture = fixture(QueueSettings::default());
    let began = tokio::time::Instant::now();
    let closure = async |held: HeldNonce| {
        let component = fixture.component.clone();
        let nested = async move {
            let closure = async |_| Ok::<_, ()>(Outcome::Hold(()));
            component.with_nonce(lane(1), closure).await.unwrap();
        };
        tokio::spawn(held.nest(nested)).await.unwrap();
        Ok::<_, ()>(Outcome::Hold(()))
    };
    fixture
        .component
        .with_nonce(lane(1), closure)
        .await
        .unwrap();
    assert!(began.elapsed() < QueueSettings::default().section_idle_timeout);
}

/// The lane's lock goes to the next call in order, which may be a future that its task does not poll while it waits
/// for the call behind it.
#[tokio::test(start_paused = true)]
async fn concurrent_nested_calls_in_one_task_do_not_deadlock() {
    let fixture = fixture(QueueSettings::default());
    let closure = async |_| {
        let calls = stream::iter(0..4).map(|_| fixture.component.allocate(lane(1)));
        let recycle = async |reserved: Result<Reservation, ReservationError>| {
            let Reservation { nonce, holder, .. } = reserved.unwrap();
            let recycled = fixture
                .component
                .mark_recyclable(lane(1), nonce, holder, "not needed");
            recycled.await.unwrap();
        };
        calls.buffer_unordered(4).for_each(recycle).await;
        Ok::<_, ()>(Outcome::Used(hash(1), ()))
    };
    let all = fixture.component.with_nonce(lane(1), closure);
    let ended = tokio::time::timeout(WITHIN, all).await;
    ended.expect("no deadlock").unwrap();
}

#[tokio::test(start_paused = true)]
async fn hanging_section_blocks_its_lane_for_one_idle_timeout() {
    let fixture = fixture(QueueSettings::default());
    let component = fixture.component.clone();
    let hanging = tokio::spawn(async move {
        let closure = async |_| std::future::pending::<Result<Outcome<()>, ()>>().await;
        component.with_nonce(lane(1), closure).await.unwrap();
    });
    wait_for("the section is active", async || {
        (fixture.spy.calls_begun() == 1).then_some(())
    })
    .await;
    let began = tokio::time::Instant::now();
    let idle_timeout = QueueSettings::default().section_idle_timeout;
    for _ in 0..3 {
        let closure = async |_| Ok::<_, ()>(Outcome::Used(hash(1), ()));
        fixture
            .component
            .with_nonce(lane(1), closure)
            .await
            .unwrap();
    }
    let waited = began.elapsed();
    assert!(
        (idle_timeout..idle_timeout * 2).contains(&waited),
        "{waited:?}: one timeout in total"
    );
    hanging.abort();
}

/// The next `with_nonce` in order may be a future that its task does not poll while it waits for the one behind it.
#[tokio::test(start_paused = true)]
async fn concurrent_sections_in_one_task_do_not_deadlock() {
    let fixture = fixture(QueueSettings::default());
    let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let section = async || {
        let closure = async |_| {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ()>(Outcome::Used(hash(1), ()))
        };
        fixture
            .component
            .with_nonce(lane(1), closure)
            .await
            .unwrap();
    };
    let sections = stream::iter(0..4).map(|_| section()).buffer_unordered(4);
    let began = tokio::time::Instant::now();
    let all = sections.for_each(|()| section());
    let ended = tokio::time::timeout(WITHIN, all).await;
    ended.expect("no deadlock");
    assert_eq!(most.into_inner(), 1, "a removed waiter queues again");
    // Waiters that are not polled are removed together: one timeout for each section behind them.
    let idle_timeout = QueueSettings::default().section_idle_timeout;
    assert!(began.elapsed() < idle_timeout * 4, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn basic_mode_has_no_tasks_and_close_leaves_none() {
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let basic = fixture_in(Mode::Basic);
    load(&basic.component, &[lane(1)], 20).await;
    assert_eq!(alive(), before);
    for _restart in 0..3 {
        let queued = fixture(queue(16, 100, RejectPolicy::FailFast));
        assert_eq!(alive(), before + 16);
        load(&queued.component, &[lane(1), lane(2)], 20).await;
        queued.component.close(WITHIN).await.unwrap();
        assert_eq!(alive(), before);
    }
}

#[tokio::test(start_paused = true)]
async fn close_finishes_queued_calls_and_refuses_new_ones() {
    let fixture = fixture(queue(1, 10, RejectPolicy::FailFast));
    fixture.component.allocate(lane(1)).await.unwrap();
    fixture.spy.latch().close();
    let calls: Vec<_> = (0..5)
        .map(|_| fixture.component.allocate(lane(1)))
        .collect();
    let close = async {
        wait_for("the worker is busy", async || {
            (fixture.spy.calls_begun() == 2).then_some(())
        })
        .await;
        let refused = async {
            let refused = async || fixture.component.allocate(lane(1)).await.err();
            let refused = wait_for("a call is refused", refused).await;
            fixture.spy.latch().reopen();
            refused
        };
        let (closed, refused) = tokio::join!(fixture.component.close(WITHIN), refused);
        closed.unwrap();
        refused
    };
    let (reserved, refused) = tokio::join!(join_all(calls), close);
    assert!(reserved.iter().all(Result::is_ok), "{reserved:?}");
    assert!(
        matches!(refused, ReservationError::Unavailable(_)),
        "{refused}"
    );
    let late = reserved[0].as_ref().unwrap();
    let marked = fixture
        .component
        .mark_used(lane(1), late.nonce, late.holder, hash(1));
    assert!(matches!(
        marked.await,
        Err(ReservationError::Unavailable(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_running_sections_and_their_marks() {
    for mode in [Mode::Basic, worker_queue_mode()] {
        let fixture = fixture_in(mode);
        let closing = tokio::sync::Notify::new();
        let closure = async |held: HeldNonce| {
            closing.notify_one();
            tokio::time::sleep(Duration::from_millis(500)).await;
            held.submitted(hash(1)).await.unwrap();
            Ok::<_, ()>(Outcome::Used(hash(1), ()))
        };
        let section = fixture.component.with_nonce(lane(1), closure);
        let close = async {
            closing.notified().await;
            fixture.component.close(WITHIN).await.unwrap();
        };
        let (used, ()) = tokio::join!(section, close);
        used.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn close_aborts_calls_at_its_deadline() {
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let fixture = fixture(queue(1, 10, RejectPolicy::FailFast));
    fixture.component.allocate(lane(1)).await.unwrap();
    fixture.spy.latch().close(); // and never reopened
    let call = fixture.component.allocate(lane(1));
    let close = async {
        wait_for("the worker is busy", async || {
            (fixture.spy.calls_begun() == 2).then_some(())
        })
        .await;
        let began = tokio::time::Instant::now();
        fixture
            .component
            .close(Duration::from_secs(3))
            .await
            .unwrap();
        began.elapsed()
    };
    let (cut_off, took) = tokio::join!(call, close);
    assert!(
        matches!(cut_off, Err(ReservationError::Unknown(_))),
        "{cut_off:?}"
    );
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(alive(), before);
}

#[tokio::test(start_paused = true)]
async fn panicking_call_does_not_stop_its_worker() {
    let fixture = fixture(queue(1, 10, RejectPolicy::FailFast));
    fixture.spy.panic_next();
    let broken = fixture.component.allocate(lane(1)).await;
    assert!(
        matches!(broken, Err(ReservationError::Unknown(_))),
        "{broken:?}"
    );
    assert_eq!(
        fixture.component.allocate(lane(1)).await.unwrap().nonce.0,
        0
    );
}
