//! Metrics of faults that a real node reaches only when its store, its chain or a peer fails, with the recorder that the
//! program uses. `crates/lanekeeper/tests/cli/metrics/` has the others and the list of all.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::node::Refusal;
use engine::ports::CommitOutcome;
use futures::future::join_all;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tokio::sync::Notify;

use crate::support::{Cluster, CommitScript, RENEW, TAKEOVER, sleep, transfer};

/// More requests than one queue to a peer and the calls under way have room for.
const FLOOD: usize = 6_000;

fn recorder() -> PrometheusRecorder {
    PrometheusBuilder::new().build_recorder()
}

/// The value of a counter without labels; `None` before its first increment.
fn count(recorder: &PrometheusRecorder, name: &str) -> Option<u64> {
    let page = recorder.handle().render();
    let is_counter = page.contains(&format!("# TYPE {name} counter\n"));
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    assert_eq!(line.is_some(), is_counter, "{page}");
    line.map(|value| value.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn locked_row_and_failed_renewals_are_counted() {
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (locked, failed) = (
        || count(&recorder, "lanekeeper_lease_locked_total"),
        || count(&recorder, "lanekeeper_lease_renew_failed_total"),
    );
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    sleep(RENEW * 2).await;
    assert_eq!((locked(), failed()), (None, None));

    test_node
        .script
        .script(CommitScript::Return(CommitOutcome::Locked));
    let accepted = test_node.node.handle().create(transfer(1, "second")).await;
    assert!(accepted.unwrap().is_new);
    assert_eq!(locked(), Some(1));

    test_node.script.fail_renewals.store(true, Ordering::SeqCst);
    sleep(RENEW * 2).await;
    assert!(failed() >= Some(1), "{:?}", failed());
}

#[tokio::test(start_paused = true)]
async fn release_of_an_unreachable_chains_lanes_is_counted() {
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let released = || count(&recorder, "lanekeeper_lanes_given_back_total");
    let cluster = Cluster::new();
    let _keeper = cluster.start_warm("a").await;
    let _other = cluster.start("b").await;
    sleep(TAKEOVER).await;
    assert_eq!(released(), None);
    cluster.chain.set_down(0, true);
    // The next poll fails, and so do all during one lease.
    sleep(TAKEOVER * 3).await;
    assert!(released() >= Some(1), "{:?}", released());
}

#[tokio::test(start_paused = true)]
async fn request_beyond_the_queue_to_a_peer_is_refused_and_counted() {
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let rejected = || count(&recorder, "lanekeeper_forward_rejected_total");
    let cluster = Cluster::new();
    // The keeper has room for all of them, and answers none while its commit is held.
    let keeper = cluster
        .start_with("a", |config| config.inbox = FLOOD * 4)
        .await;
    let first = keeper.node.handle().create(transfer(1, "first")).await;
    assert!(first.is_ok(), "{first:?}");
    let other = cluster.start("b").await;
    sleep(RENEW * 2).await;
    let learned = other.node.handle().create(transfer(1, "learned")).await;
    assert!(learned.is_ok(), "it knows the keeper now: {learned:?}");
    let wakeup = Arc::new(Notify::new());
    keeper
        .script
        .script(CommitScript::Hold(Arc::clone(&wakeup)));
    let handle = other.node.handle();
    let requests = (0..FLOOD).map(|n| handle.create(transfer(1, &format!("r{n}"))));
    let release = async {
        sleep(Duration::from_secs(1)).await;
        wakeup.notify_one();
    };
    let (answers, ()) = tokio::join!(join_all(requests), release);
    let busy = answers
        .iter()
        .filter(|answer| matches!(answer, Err(Refusal::Busy)))
        .count();
    assert!(rejected() > Some(0), "{:?}", rejected());
    assert!(rejected() <= u64::try_from(busy).ok(), "each is refused");
}

#[tokio::test(start_paused = true)]
async fn changed_history_of_the_store_is_counted() {
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let changes = || count(&recorder, "lanekeeper_store_history_changes_total");
    let cluster = Cluster::new();
    let _keeper = cluster.start_warm("a").await;
    sleep(RENEW * 2).await;
    assert_eq!(changes(), None);
    cluster.store.fail_over();
    sleep(RENEW * 2).await;
    assert_eq!(changes(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn lane_that_a_restored_backup_has_set_back_is_counted() {
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let cluster = Cluster::new();
    cluster.store.stop_standby();
    let keeper = cluster.start_warm("a").await;
    sleep(Duration::from_secs(2)).await;
    keeper.tasks.kill();
    cluster.store.restore_snapshot();
    let _restarted = cluster.start("a").await;
    assert_eq!(count(&recorder, "lanekeeper_witness_losses_total"), Some(1));
}
