//! Metrics of the worker queue and of the sweep, with the recorder that the program uses.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use nonce::{Mode, NonceComponent, Outcome, QueueSettings, RejectPolicy, Settings};

use super::kit::*;

fn recorder() -> PrometheusRecorder {
    PrometheusBuilder::new().build_recorder()
}

/// The value of a series; 0 before it is first recorded.
fn read(recorder: &PrometheusRecorder, series: &str) -> f64 {
    let page = recorder.handle().render();
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

/// A component with one worker and a capacity of three.
fn small_queue(spy: &Arc<Spy>) -> NonceComponent {
    let queue = QueueSettings {
        workers: 1,
        capacity: 3,
        reject: RejectPolicy::FailFast,
        ..QueueSettings::default()
    };
    let settings = Settings {
        mode: Mode::WorkerQueue(queue),
        ..Settings::default()
    };
    component(settings, Arc::clone(spy) as Arc<_>, &FakeChain::new(CHAIN))
}

#[tokio::test(start_paused = true)]
async fn queue_depth_and_rejections_are_counted() {
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let spy = Spy::on(MemoryLedger::new());
    let component = small_queue(&spy);
    component.allocate(lane(1)).await.unwrap();
    spy.latch().close();
    let (depth, rejected) = (
        || read(&recorder, "lanekeeper_nonce_queue_depth{worker=\"0\"}"),
        || read(&recorder, "lanekeeper_nonce_queue_rejected_total"),
    );
    let first = component.allocate(lane(1));
    let others = async {
        wait_for("the worker is busy", async || {
            (spy.calls_begun() == 2).then_some(())
        })
        .await;
        assert_eq!((depth(), rejected()), (0.0, 0.0));
        let burst = join_all((0..5).map(|_| component.allocate(lane(1))));
        let check = async {
            wait_for("two calls are refused", async || {
                (rejected() == 2.0).then_some(())
            })
            .await;
            assert_eq!(depth(), 3.0);
            spy.latch().reopen();
        };
        tokio::join!(burst, check).0
    };
    let (first, others) = tokio::join!(first, others);
    first.unwrap();
    assert_eq!(
        others.iter().filter(|reserved| reserved.is_err()).count(),
        2
    );
    assert_eq!(depth(), 0.0);
    for (result, count) in [("ok", 5.0), ("busy", 2.0)] {
        let series = format!("lanekeeper_nonce_allocate_total{{result=\"{result}\"}}");
        assert_eq!(read(&recorder, &series), count);
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_sections_count_towards_queue_depth() {
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let spy = Spy::on(MemoryLedger::new());
    let component = small_queue(&spy);
    let (depth, rejected) = (
        || read(&recorder, "lanekeeper_nonce_queue_depth{worker=\"0\"}"),
        || read(&recorder, "lanekeeper_nonce_queue_rejected_total"),
    );
    let latch = Latch::open();
    latch.close();
    let section = async || {
        let closure = async |_| {
            latch.wait_until_open().await;
            Ok::<_, ()>(Outcome::Used(hash(1), ()))
        };
        component.with_nonce(lane(1), closure).await
    };
    let check = async {
        wait_for("one section is active and two are refused", async || {
            (spy.calls_begun() == 1 && rejected() == 2.0).then_some(())
        })
        .await;
        assert_eq!(depth(), 3.0);
        latch.reopen();
    };
    let (ended, ()) = tokio::join!(join_all((0..6).map(|_| section())), check);
    assert_eq!(ended.iter().filter(|ended| ended.is_err()).count(), 2);
    assert_eq!(depth(), 0.0);
}

#[tokio::test(start_paused = true)]
async fn section_that_loses_its_place_is_counted() {
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let spy = Spy::on(MemoryLedger::new());
    let component = small_queue(&spy);
    let passed = || read(&recorder, "lanekeeper_nonce_turns_passed_total");
    let idle = component.clone();
    let hanging = tokio::spawn(async move {
        let closure = async |_| std::future::pending::<Result<Outcome<()>, ()>>().await;
        idle.with_nonce(lane(1), closure).await.unwrap();
    });
    wait_for("the section is active", async || {
        (spy.calls_begun() == 1).then_some(())
    })
    .await;
    assert_eq!(passed(), 0.0);
    let closure = async |_| Ok::<_, ()>(Outcome::Used(hash(1), ()));
    component.with_nonce(lane(1), closure).await.unwrap();
    assert_eq!(passed(), 1.0);
    hanging.abort();
}

#[tokio::test(start_paused = true)]
async fn verdicts_of_the_sweep_are_counted() {
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let settled = || {
        read(
            &recorder,
            "lanekeeper_nonce_settled_total{verdict=\"free\"}",
        )
    };
    let settings = Settings::default();
    let timeout = settings.reservation_timeout;
    let component = component(settings, MemoryLedger::new(), &FakeChain::new(CHAIN));
    component.allocate(lane(1)).await.unwrap();
    let mut sweep = component.sweep();
    tokio::time::advance(timeout + Duration::from_secs(1)).await;
    sweep.run_pass().await.unwrap();
    assert_eq!(settled(), 0.0);
    // Longer than the grace.
    tokio::time::advance(timeout).await;
    sweep.run_pass().await.unwrap();
    assert_eq!(settled(), 1.0);
}
