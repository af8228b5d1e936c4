//! The metrics of the worker queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};
use nonce::{Mode, NonceComponent, Outcome, QueueSettings, RejectPolicy, Settings};

use super::kit::*;

/// Records counters and gauges by name and labels.
#[derive(Default)]
struct MetricsRecorder(Mutex<BTreeMap<String, Arc<Value>>>);

#[derive(Default)]
struct Value(Mutex<f64>);

impl MetricsRecorder {
    fn value(&self, key: &Key) -> Arc<Value> {
        let labels = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()));
        let name = format!("{} {}", key.name(), labels.collect::<Vec<_>>().join(","));
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }

    fn read(&self, name: &str) -> f64 {
        let values = self.0.lock().unwrap();
        values
            .get(name)
            .map_or(0.0, |value| *value.0.lock().unwrap())
    }
}

impl CounterFn for Value {
    fn increment(&self, value: u64) {
        *self.0.lock().unwrap() += value as f64;
    }

    fn absolute(&self, value: u64) {
        *self.0.lock().unwrap() = value as f64;
    }
}

impl GaugeFn for Value {
    fn increment(&self, value: f64) {
        *self.0.lock().unwrap() += value;
    }

    fn decrement(&self, value: f64) {
        *self.0.lock().unwrap() -= value;
    }

    fn set(&self, value: f64) {
        *self.0.lock().unwrap() = value;
    }
}

impl Recorder for MetricsRecorder {
    fn describe_counter(&self, _key: KeyName, _unit: Option<Unit>, _text: SharedString) {}

    fn describe_gauge(&self, _key: KeyName, _unit: Option<Unit>, _text: SharedString) {}

    fn describe_histogram(&self, _key: KeyName, _unit: Option<Unit>, _text: SharedString) {}

    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key))
    }

    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key))
    }

    fn register_histogram(&self, _key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
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
    let seen = MetricsRecorder::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    let spy = Spy::on(MemoryLedger::new());
    let component = small_queue(&spy);
    component.allocate(lane(1)).await.unwrap();
    spy.latch().close();
    let (depth, rejected) = (
        || seen.read("lanekeeper_nonce_queue_depth worker=0"),
        || seen.read("lanekeeper_nonce_queue_rejected_total "),
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
    assert_eq!(seen.read("lanekeeper_nonce_allocate_total result=ok"), 5.0);
    assert_eq!(
        seen.read("lanekeeper_nonce_allocate_total result=busy"),
        2.0
    );
}

#[tokio::test(start_paused = true)]
async fn waiting_sections_count_towards_queue_depth() {
    let seen = MetricsRecorder::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    let spy = Spy::on(MemoryLedger::new());
    let component = small_queue(&spy);
    let (depth, rejected) = (
        || seen.read("lanekeeper_nonce_queue_depth worker=0"),
        || seen.read("lanekeeper_nonce_queue_rejected_total "),
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
