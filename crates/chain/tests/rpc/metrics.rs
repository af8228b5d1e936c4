//! Calls are counted, with a bounded set of labels.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use engine::ports::{BlockTag, Chain};
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use serde_json::Value;

use crate::fake_node::{FakeNode, FakeReply};
use crate::reads::block;

#[derive(Default)]
struct Counts(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<String> = key
            .labels()
            .filter(|label| label.key() != "endpoint") // its port is another one each time
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let name = format!("{} {}", key.name(), labels.join(" "));
        Counter::from_arc(self.0.lock().unwrap().entry(name).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn calls_are_counted_by_method_and_result() {
    let counts = Counts::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    with_local_recorder(&counts, || {
        runtime.block_on(async {
            let fake = FakeNode::start(|method, params| match method {
                "eth_getBlockByNumber" if params[0] == "latest" => FakeReply::Result(block(3)),
                "eth_getBlockByNumber" => FakeReply::Result(Value::Null),
                "eth_getBlockByHash" => FakeReply::raw(500, ""),
                _ => FakeReply::Error(-32000, "nothing"),
            })
            .await;
            let chain = fake.chain();
            assert_eq!(chain.headers(1, 3).await, Ok(vec![]));
            chain
                .header(BlockTag::Hash(Default::default()))
                .await
                .unwrap_err();
            let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
            chain.fee_quote(&head).await.unwrap_err();
        });
    });
    let counts = counts.0.into_inner().unwrap();
    let counted: Vec<(&str, u64)> = counts
        .iter()
        .map(|(name, count)| (name.as_str(), count.load(Ordering::Relaxed)))
        .collect();
    let of = "lanekeeper_rpc_calls_total chain=31337 method=";
    let expected = [
        // Queried again after the lost answer.
        (format!("{of}eth_chainId result=ok"), 2),
        (format!("{of}eth_feeHistory result=error"), 1),
        (format!("{of}eth_getBlockByHash result=lost"), 1),
        (format!("{of}eth_getBlockByNumber result=ok"), 4),
    ];
    let expected: Vec<(&str, u64)> = expected
        .iter()
        .map(|(name, count)| (name.as_str(), *count))
        .collect();
    assert_eq!(counted, expected);
}
