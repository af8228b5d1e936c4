//! Worker-queue mode: what seed and design ask of it, line by line.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{LaneKey, Reservation};
use engine::ports::ReservationError;
use futures::future::join_all;
use futures::{StreamExt, stream};
use nonce::{
    Borrowed, Mode, NonceComponent, Outcome, QueueSettings, RejectPolicy, Settings, WithNonceError,
};
use tokio::runtime::Handle;

use super::kit::*;

struct Stage {
    spy: Arc<Spy>,
    component: NonceComponent,
}

fn stage(queue: QueueSettings) -> Stage {
    stage_in(Mode::WorkerQueue(queue))
}

fn stage_in(mode: Mode) -> Stage {
    let spy = Spy::on(MemoryBooks::new());
    let settings = Settings {
        mode,
        ..Settings::default()
    };
    let component = component(settings, Arc::clone(&spy) as Arc<_>, &FakeChain::new(CHAIN));
    Stage { spy, component }
}

fn queue(workers: usize, capacity: usize, reject: RejectPolicy) -> QueueSettings {
    QueueSettings {
        workers,
        capacity,
        reject,
        ..QueueSettings::default()
    }
}

/// Borrows and uses, many times at once.
async fn load(component: &NonceComponent, lanes: &[LaneKey], each: usize) {
    let one = async |lane: LaneKey| {
        let lent = component.allocate(lane).await?;
        component
            .mark_used(lane, lent.nonce, lent.holder, hash(1))
            .await
    };
    let calls = lanes.iter().flat_map(|lane| (0..each).map(|_| one(*lane)));
    for ended in join_all(calls).await {
        ended.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_lane_never_interleave() {
    let basic = stage_in(Mode::Basic);
    load(&basic.component, &[lane(1)], 100).await;
    assert!(
        basic.spy.of_one_lane() > 1,
        "the spy sees it where it happens"
    );
    for reject in [RejectPolicy::FailFast, RejectPolicy::CallerRuns] {
        let queued = stage(queue(4, 1_000, reject));
        load(&queued.component, &[lane(1), lane(2), lane(3)], 100).await;
        assert_eq!(queued.spy.of_one_lane(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn different_lanes_run_in_parallel() {
    let stage = stage(queue(8, 100, RejectPolicy::FailFast));
    stage.spy.gate().shut();
    let lanes: Vec<LaneKey> = (0..40).map(lane).collect();
    let calls = lanes.iter().map(|lane| stage.component.allocate(*lane));
    let release = async {
        // Every worker has a lane, and each lane only one call.
        until("all are busy", async || {
            (stage.spy.lanes() == 8).then_some(())
        })
        .await;
        stage.spy.gate().reopen();
    };
    let (lent, ()) = tokio::join!(join_all(calls), release);
    assert!(lent.iter().all(Result::is_ok));
    assert_eq!(stage.spy.of_one_lane(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once_and_a_repetition_helps() {
    let stage = stage(queue(1, 2, RejectPolicy::FailFast));
    stage.component.allocate(lane(1)).await.unwrap();
    stage.spy.gate().shut();
    // One is with the worker, two wait.
    let first = stage.component.allocate(lane(1));
    let others = async {
        until("it is busy", async || {
            (stage.spy.begun() == 2).then_some(())
        })
        .await;
        let waiting = (0..2).map(|_| stage.component.allocate(lane(1)));
        let overflow = async {
            let refused = stage.component.allocate(lane(1)).await.unwrap_err();
            stage.spy.gate().reopen();
            refused
        };
        tokio::join!(join_all(waiting), overflow)
    };
    let (first, (waiting, refused)) = tokio::join!(first, others);
    assert_eq!(refused, ReservationError::Busy);
    assert!(refused.is_worth_repeating());
    let lent = [first].into_iter().chain(waiting);
    let nonces: Vec<u64> = lent.map(|lent| lent.unwrap().nonce.0).collect();
    assert_eq!(nonces, [1, 2, 3]);
    assert_eq!(stage.component.allocate(lane(1)).await.unwrap().nonce.0, 4);
}

#[tokio::test(start_paused = true)]
async fn the_caller_runs_what_overflows_and_still_nothing_interleaves() {
    let stage = stage(queue(1, 1, RejectPolicy::CallerRuns));
    let lanes: Vec<LaneKey> = (0..10).map(lane).collect();
    load(&stage.component, &lanes, 30).await;
    assert_eq!(stage.spy.of_one_lane(), 1);
    assert!(
        stage.spy.lanes() > 1,
        "callers ran some of it beside the only worker"
    );
}

/// Nests calls of all kinds, and gives how many came to their end.
async fn nest(component: &NonceComponent, outer: LaneKey, inner: LaneKey, spawns: bool) -> usize {
    let business = async |borrowed: Borrowed| {
        let again = component.clone();
        let calls = async move {
            let lent = again.allocate(inner).await.unwrap();
            let (nonce, holder) = (lent.nonce, lent.holder);
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
        borrowed.submitted(tx_hash).await.unwrap();
        Ok::<_, ()>(Outcome::Used(tx_hash, ended + 1))
    };
    component.with_nonce(outer, business).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn nested_calls_do_not_deadlock() {
    let one_each = [RejectPolicy::FailFast, RejectPolicy::CallerRuns].map(|r| queue(1, 1, r));
    for queue in one_each {
        for spawns in [false, true] {
            let stage = stage(queue);
            let nested = nest(&stage.component, lane(1), lane(1), spawns);
            let ended = tokio::time::timeout(WITHIN, nested).await;
            assert_eq!(ended, Ok(2), "spawned: {spawns}");
            assert_eq!(stage.spy.of_one_lane(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nested_calls_do_not_deadlock_crosswise() {
    for spawns in [false, true] {
        let stage = stage(queue(2, 100, RejectPolicy::FailFast));
        let both = async {
            let one = nest(&stage.component, lane(1), lane(2), spawns);
            let other = nest(&stage.component, lane(2), lane(1), spawns);
            tokio::join!(one, other)
        };
        let ended = tokio::time::timeout(WITHIN, both).await;
        assert_eq!(ended, Ok((2, 2)), "spawned: {spawns}");
        assert_eq!(stage.spy.of_one_lane(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nested_calls_run_in_place_also_when_the_queue_is_full() {
    let stage = stage(queue(1, 1, RejectPolicy::FailFast));
    let full = Arc::new(Mutex::new(Vec::new()));
    let business = async |borrowed: Borrowed| {
        // A stranger's calls fill the worker and its queue.
        stage.spy.gate().shut();
        for waits_for in [2, 2] {
            let (component, begun) = (stage.component.clone(), stage.spy.begun());
            let stranger = tokio::spawn(async move { component.allocate(lane(waits_for)).await });
            full.lock().unwrap().push(stranger);
            if begun == 1 {
                let busy = async || (stage.spy.begun() == 2).then_some(());
                until("the worker is busy", busy).await;
            }
        }
        // From outside there is no room any more.
        let component = stage.component.clone();
        let outside = tokio::spawn(async move {
            while component.allocate(lane(3)).await != Err(ReservationError::Busy) {}
        });
        outside.await.unwrap();
        let submitted = borrowed.submitted(hash(1));
        let reopen = async { stage.spy.gate().reopen() };
        let (submitted, ()) = tokio::join!(submitted, reopen);
        submitted.unwrap();
        Ok::<_, ()>(Outcome::Used(hash(1), ()))
    };
    stage.component.with_nonce(lane(1), business).await.unwrap();
    let strangers = std::mem::take(&mut *full.lock().unwrap());
    for stranger in strangers {
        stranger.await.unwrap().unwrap();
    }
}

/// Runs sections that step out and in again, and gives the most that were inside at once.
async fn most_inside(component: &NonceComponent, lanes: &[LaneKey]) -> usize {
    let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let section = async |lane: LaneKey| {
        let business = async |_| {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(300)).await; // stands for sending
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ()>(Outcome::Used(hash(1), ()))
        };
        component.with_nonce(lane, business).await.unwrap();
    };
    join_all(lanes.iter().map(|lane| section(*lane))).await;
    most.into_inner()
}

#[tokio::test(start_paused = true)]
async fn sections_of_one_lane_do_not_interleave_and_those_of_others_do() {
    for reject in [RejectPolicy::FailFast, RejectPolicy::CallerRuns] {
        let stage = stage(queue(4, 100, reject));
        assert_eq!(most_inside(&stage.component, &[lane(1); 12]).await, 1);
        let lanes: Vec<LaneKey> = (0..12).map(lane).collect();
        assert_eq!(most_inside(&stage.component, &lanes).await, 12);
    }
    let basic = stage_in(Mode::Basic);
    assert_eq!(most_inside(&basic.component, &[lane(1); 12]).await, 12);
}

#[tokio::test(start_paused = true)]
async fn one_that_would_wait_for_a_turn_is_refused_when_too_many_do() {
    for (reject, most_ended) in [(RejectPolicy::FailFast, 3), (RejectPolicy::CallerRuns, 8)] {
        let stage = stage(queue(1, 2, reject));
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let section = async || {
            let business = async |_| {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(300)).await; // stands for sending
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, ()>(Outcome::Used(hash(1), ()))
            };
            stage.component.with_nonce(lane(1), business).await
        };
        // One is inside, two wait.
        let ended = join_all((0..8).map(|_| section())).await;
        assert_eq!(
            ended.iter().filter(|ended| ended.is_ok()).count(),
            most_ended
        );
        for refused in ended.into_iter().filter_map(Result::err) {
            let busy = matches!(&refused, WithNonceError::NotLent(why) if why.is_worth_repeating());
            assert!(busy, "{refused:?}");
        }
        assert_eq!(most.load(Ordering::SeqCst), 1, "{reject:?}");
        section().await.unwrap(); // nobody waits any more: there is room
    }
}

#[tokio::test(start_paused = true)]
async fn a_spawned_task_that_is_said_to_be_inside_waits_for_nobody() {
    let stage = stage(QueueSettings::default());
    let began = tokio::time::Instant::now();
    let business = async |borrowed: Borrowed| {
        let component = stage.component.clone();
        let nested = async move {
            let business = async |_| Ok::<_, ()>(Outcome::Hold(()));
            component.with_nonce(lane(1), business).await.unwrap();
        };
        tokio::spawn(borrowed.inside(nested)).await.unwrap();
        Ok::<_, ()>(Outcome::Hold(()))
    };
    stage.component.with_nonce(lane(1), business).await.unwrap();
    assert!(began.elapsed() < QueueSettings::default().section_patience);
}

/// The lock of the lane goes to the next call in its order, and that one may be a future that its own task does not
/// poll while it waits for the call behind it.
#[tokio::test(start_paused = true)]
async fn several_nested_calls_in_one_task_do_not_deadlock() {
    let stage = stage(QueueSettings::default());
    let business = async |_| {
        let calls = stream::iter(0..4).map(|_| stage.component.allocate(lane(1)));
        let give_back = async |lent: Result<Reservation, ReservationError>| {
            let Reservation { nonce, holder, .. } = lent.unwrap();
            let given = stage
                .component
                .mark_recyclable(lane(1), nonce, holder, "not needed");
            given.await.unwrap();
        };
        calls.buffer_unordered(4).for_each(give_back).await;
        Ok::<_, ()>(Outcome::Used(hash(1), ()))
    };
    let all = stage.component.with_nonce(lane(1), business);
    let ended = tokio::time::timeout(WITHIN, all).await;
    ended.expect("nobody waits for himself").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_section_that_hangs_keeps_its_lane_only_for_a_while() {
    let stage = stage(QueueSettings::default());
    let component = stage.component.clone();
    let hangs = tokio::spawn(async move {
        let business = async |_| std::future::pending::<Result<Outcome<()>, ()>>().await;
        component.with_nonce(lane(1), business).await.unwrap();
    });
    until("it is inside", async || {
        (stage.spy.begun() == 1).then_some(())
    })
    .await;
    let began = tokio::time::Instant::now();
    let patience = QueueSettings::default().section_patience;
    for _ in 0..3 {
        let business = async |_| Ok::<_, ()>(Outcome::Used(hash(1), ()));
        stage.component.with_nonce(lane(1), business).await.unwrap();
    }
    let waited = began.elapsed();
    assert!(
        (patience..patience * 2).contains(&waited),
        "{waited:?}: once, not each time"
    );
    hangs.abort();
}

/// The turn goes to the next `with_nonce` in its order, and that one may be a future that its own task does not poll
/// while it waits for the one behind it.
#[tokio::test(start_paused = true)]
async fn several_sections_in_one_task_do_not_deadlock() {
    let stage = stage(QueueSettings::default());
    let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let section = async || {
        let business = async |_| {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ()>(Outcome::Used(hash(1), ()))
        };
        stage.component.with_nonce(lane(1), business).await.unwrap();
    };
    let sections = stream::iter(0..4).map(|_| section()).buffer_unordered(4);
    let began = tokio::time::Instant::now();
    let all = sections.for_each(|()| section());
    let ended = tokio::time::timeout(WITHIN, all).await;
    ended.expect("nobody waits for himself");
    assert_eq!(most.into_inner(), 1, "whoever was passed over waits again");
    // Those that are not polled are passed over together: once for each section that waits behind them.
    let patience = QueueSettings::default().section_patience;
    assert!(began.elapsed() < patience * 4, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn basic_mode_has_no_tasks_and_a_closed_component_leaves_none() {
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let basic = stage_in(Mode::Basic);
    load(&basic.component, &[lane(1)], 20).await;
    assert_eq!(alive(), before);
    for _restart in 0..3 {
        let queued = stage(queue(16, 100, RejectPolicy::FailFast));
        assert_eq!(alive(), before + 16);
        load(&queued.component, &[lane(1), lane(2)], 20).await;
        queued.component.close(WITHIN).await.unwrap();
        assert_eq!(alive(), before);
    }
}

#[tokio::test(start_paused = true)]
async fn closing_finishes_what_waits_and_refuses_what_comes() {
    let stage = stage(queue(1, 10, RejectPolicy::FailFast));
    stage.component.allocate(lane(1)).await.unwrap();
    stage.spy.gate().shut();
    let calls: Vec<_> = (0..5).map(|_| stage.component.allocate(lane(1))).collect();
    let close = async {
        until("it is busy", async || {
            (stage.spy.begun() == 2).then_some(())
        })
        .await;
        let refused = async {
            let refused = async || stage.component.allocate(lane(1)).await.err();
            let refused = until("it refuses", refused).await;
            stage.spy.gate().reopen();
            refused
        };
        let (closed, refused) = tokio::join!(stage.component.close(WITHIN), refused);
        closed.unwrap();
        refused
    };
    let (lent, refused) = tokio::join!(join_all(calls), close);
    assert!(lent.iter().all(Result::is_ok), "{lent:?}");
    assert!(
        matches!(refused, ReservationError::Unavailable(_)),
        "{refused}"
    );
    let late = lent[0].as_ref().unwrap();
    let marked = stage
        .component
        .mark_used(lane(1), late.nonce, late.holder, hash(1));
    assert!(matches!(
        marked.await,
        Err(ReservationError::Unavailable(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_whoever_is_inside_and_takes_his_last_word() {
    for mode in [Mode::Basic, queued()] {
        let stage = stage_in(mode);
        let closing = tokio::sync::Notify::new();
        let business = async |borrowed: Borrowed| {
            closing.notify_one();
            tokio::time::sleep(Duration::from_millis(500)).await;
            borrowed.submitted(hash(1)).await.unwrap();
            Ok::<_, ()>(Outcome::Used(hash(1), ()))
        };
        let section = stage.component.with_nonce(lane(1), business);
        let close = async {
            closing.notified().await;
            stage.component.close(WITHIN).await.unwrap();
        };
        let (used, ()) = tokio::join!(section, close);
        used.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_cuts_off_what_does_not_end() {
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let stage = stage(queue(1, 10, RejectPolicy::FailFast));
    stage.component.allocate(lane(1)).await.unwrap();
    stage.spy.gate().shut(); // for ever
    let call = stage.component.allocate(lane(1));
    let close = async {
        until("it is busy", async || {
            (stage.spy.begun() == 2).then_some(())
        })
        .await;
        let began = tokio::time::Instant::now();
        stage.component.close(Duration::from_secs(3)).await.unwrap();
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
async fn a_call_that_panics_takes_nobody_along() {
    let stage = stage(queue(1, 10, RejectPolicy::FailFast));
    stage.spy.break_next();
    let broken = stage.component.allocate(lane(1)).await;
    assert!(
        matches!(broken, Err(ReservationError::Unknown(_))),
        "{broken:?}"
    );
    assert_eq!(stage.component.allocate(lane(1)).await.unwrap().nonce.0, 0);
}
