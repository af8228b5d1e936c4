//! What the worker queue tells of itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};
use nonce::{Mode, NonceComponent, Outcome, QueueSettings, RejectPolicy, Settings};

use super::kit::*;

/// Remembers the values of counters and gauges by their names and labels.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<String, Arc<Value>>>);

#[derive(Default)]
struct Value(Mutex<f64>);

impl Seen {
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

impl Recorder for Seen {
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

/// A component with one worker that has room for three.
fn small(spy: &Arc<Spy>) -> NonceComponent {
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
async fn depth_and_rejections_are_told() {
    let seen = Seen::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    let spy = Spy::on(MemoryBooks::new());
    let component = small(&spy);
    component.allocate(lane(1)).await.unwrap();
    spy.gate().shut();
    let (depth, rejected) = (
        || seen.read("lanekeeper_nonce_queue_depth worker=0"),
        || seen.read("lanekeeper_nonce_queue_rejected_total "),
    );
    let first = component.allocate(lane(1));
    let others = async {
        until("it is busy", async || (spy.begun() == 2).then_some(())).await;
        assert_eq!((depth(), rejected()), (0.0, 0.0));
        let crowd = join_all((0..5).map(|_| component.allocate(lane(1))));
        let look = async {
            until("two are refused", async || {
                (rejected() == 2.0).then_some(())
            })
            .await;
            assert_eq!(depth(), 3.0);
            spy.gate().reopen();
        };
        tokio::join!(crowd, look).0
    };
    let (first, others) = tokio::join!(first, others);
    first.unwrap();
    assert_eq!(others.iter().filter(|lent| lent.is_err()).count(), 2);
    assert_eq!(depth(), 0.0);
    assert_eq!(seen.read("lanekeeper_nonce_allocate_total result=ok"), 5.0);
    assert_eq!(
        seen.read("lanekeeper_nonce_allocate_total result=busy"),
        2.0
    );
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_for_a_turn_are_told_too() {
    let seen = Seen::default();
    let _recording = metrics::set_default_local_recorder(&seen);
    let spy = Spy::on(MemoryBooks::new());
    let component = small(&spy);
    let (depth, rejected) = (
        || seen.read("lanekeeper_nonce_queue_depth worker=0"),
        || seen.read("lanekeeper_nonce_queue_rejected_total "),
    );
    let gate = Gate::open();
    gate.shut();
    let section = async || {
        let business = async |_| {
            gate.pass().await;
            Ok::<_, ()>(Outcome::Used(hash(1), ()))
        };
        component.with_nonce(lane(1), business).await
    };
    let look = async {
        until("one is inside and two are refused", async || {
            (spy.begun() == 1 && rejected() == 2.0).then_some(())
        })
        .await;
        assert_eq!(depth(), 3.0);
        gate.reopen();
    };
    let (ended, ()) = tokio::join!(join_all((0..6).map(|_| section())), look);
    assert_eq!(ended.iter().filter(|ended| ended.is_err()).count(), 2);
    assert_eq!(depth(), 0.0);
}
