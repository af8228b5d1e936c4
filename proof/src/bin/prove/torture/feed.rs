//! A client that reads the event feed from any responding node: no event may be missing or repeated, whatever
//! happens to the nodes, and every tx starts with its acceptance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use proof::{Api, Outcome, ensure, eventually};
use reqwest::Method;
use serde_json::Value;

/// At the end of the feed.
const POLL_PERIOD: Duration = Duration::from_millis(200);

/// Then it tries another node.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// A stored result appears in the feed before this.
const REPORTED_WITHIN: Duration = Duration::from_secs(20);

/// More violations are not recorded.
const WRONG_MAX: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct Feed(Mutex<Read>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Read {
    after: Option<String>,
    seqs: BTreeMap<String, u64>,
    accepted: BTreeSet<String>,
    /// When the feed reported a tx as final.
    pub(crate) confirmed: BTreeMap<String, Instant>,
    pub(crate) counts: BTreeMap<String, u64>,
    /// Violations.
    pub(crate) wrong: Vec<String>,
}

impl Feed {
    fn lock(&self) -> MutexGuard<'_, Read> {
        self.0.lock().expect("nothing panics while it holds this")
    }

    pub(crate) fn read(&self) -> Read {
        self.lock().clone()
    }

    pub(crate) fn confirmed_count(&self) -> usize {
        self.lock().confirmed.len()
    }

    /// Reads without end, from one node after the other.
    pub(crate) async fn follow(&self, apis: &[Api]) {
        for api in apis.iter().cycle() {
            // A node that does not respond or refuses is skipped.
            let is_end = self.page(api).await.unwrap_or(true);
            if is_end {
                tokio::time::sleep(POLL_PERIOD).await;
            }
        }
    }

    /// Reads until all of these are final, or until the feed's latency bound.
    pub(crate) async fn finish(&self, api: &Api, tx_ids: &[String]) -> Outcome<()> {
        let what = format!("{} txs are reported as final", tx_ids.len());
        let reported = eventually(&what, REPORTED_WITHIN, || async {
            while !self.page(api).await? {}
            let read = self.lock();
            let are_reported = tx_ids.iter().all(|id| read.confirmed.contains_key(id));
            Ok(are_reported.then_some(()))
        });
        if let Err(error) = reported.await {
            self.lock().record_violation(error.to_string());
        }
        Ok(())
    }

    /// Reads a page; true if it was the last one.
    async fn page(&self, api: &Api) -> Outcome<bool> {
        let after = self.lock().after.clone();
        let query = after.as_ref().map(|after| format!("&after={after}"));
        let path = format!("/api/v1/events?limit=1000{}", query.unwrap_or_default());
        let answer = api.request(Method::GET, &path, None, REQUEST_TIMEOUT).await;
        let answer = answer.map_err(|why| format!("{path}: {why:?}"))?;
        let (status, page) = (answer.status, answer.body);
        ensure(status.is_success(), format!("{path}: {status} {page}"))?;
        let mut read = self.lock();
        for event in page["events"].as_array().into_iter().flatten() {
            read.apply_event(event);
        }
        let next = page["next"].as_str().map(str::to_owned);
        let is_end = next.is_none() || next == after;
        read.after = next.or(after);
        Ok(is_end)
    }
}

impl Read {
    fn apply_event(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let (kind, tx_id) = (text("type"), text("txId"));
        let seq = event["seq"].as_u64().unwrap_or_default();
        let last = self.seqs.insert(text("signer"), seq).unwrap_or(0);
        if seq != last + 1 {
            self.record_violation(format!("event {seq} follows event {last}: {event}"));
        }
        if kind == "TxAccepted" {
            if !self.accepted.insert(tx_id.clone()) {
                self.record_violation(format!("accepted twice: {event}"));
            }
        } else if !tx_id.is_empty() && !self.accepted.contains(&tx_id) {
            self.record_violation(format!("it was not accepted before: {event}"));
        }
        if kind == "TxConfirmed" {
            self.confirmed.insert(tx_id, Instant::now());
        }
        *self.counts.entry(kind).or_default() += 1;
    }

    fn record_violation(&mut self, text: String) {
        if self.wrong.len() < WRONG_MAX {
            self.wrong.push(text);
        }
    }
}
