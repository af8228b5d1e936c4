//! A business that reads the event feed at whichever node answers: no event may be missing or come twice,
//! whatever happens to the nodes, and every tx begins with its acceptance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use proof::{Api, Outcome, demand, eventually};
use reqwest::Method;
use serde_json::Value;

/// How often it asks when it has read all there is.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// How long it waits for an answer before it asks another node.
const PATIENCE: Duration = Duration::from_secs(3);

/// A result that is in the store is in the feed before this.
const TOLD_WITHIN: Duration = Duration::from_secs(20);

/// More of what is wrong is not remembered.
const WRONG_MAX: usize = 20;

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Feed(Mutex<Read>);

/// What was read so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Read {
    after: Option<String>,
    seqs: BTreeMap<String, u64>,
    accepted: BTreeSet<String>,
    /// When the feed told that a tx is final.
    pub(crate) confirmed: BTreeMap<String, Instant>,
    /// Events by type.
    pub(crate) counts: BTreeMap<String, u64>,
    /// What does not fit.
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

    /// Reads for ever, at one node after the other.
    pub(crate) async fn follow(&self, apis: &[Api]) {
        for api in apis.iter().cycle() {
            // A node that does not answer, or refuses, is left for the next one.
            let is_end = self.page(api).await.unwrap_or(true);
            if is_end {
                tokio::time::sleep(ASK_EVERY).await;
            }
        }
    }

    /// Reads on until all of these are told as final, or for as long as the feed may be late.
    pub(crate) async fn finish(&self, api: &Api, tx_ids: &[String]) -> Outcome<()> {
        let what = format!("{} txs are told as final", tx_ids.len());
        let told = eventually(&what, TOLD_WITHIN, || async {
            while !self.page(api).await? {}
            let read = self.lock();
            let are_told = tx_ids.iter().all(|id| read.confirmed.contains_key(id));
            Ok(are_told.then_some(()))
        });
        if let Err(error) = told.await {
            self.lock().complain(error.to_string());
        }
        Ok(())
    }

    /// Reads a page; says whether it was the last.
    async fn page(&self, api: &Api) -> Outcome<bool> {
        let after = self.lock().after.clone();
        let query = after.as_ref().map(|after| format!("&after={after}"));
        let path = format!("/api/v1/events?limit=1000{}", query.unwrap_or_default());
        let answer = api.ask(Method::GET, &path, None, PATIENCE).await;
        let answer = answer.map_err(|why| format!("{path}: {why:?}"))?;
        let (status, page) = (answer.status, answer.body);
        demand(status.is_success(), format!("{path}: {status} {page}"))?;
        let mut read = self.lock();
        for event in page["events"].as_array().into_iter().flatten() {
            read.take(event);
        }
        let next = page["next"].as_str().map(str::to_owned);
        let is_end = next.is_none() || next == after;
        read.after = next.or(after);
        Ok(is_end)
    }
}

impl Read {
    fn take(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let (kind, tx_id) = (text("type"), text("txId"));
        let seq = event["seq"].as_u64().unwrap_or_default();
        let last = self.seqs.insert(text("signer"), seq).unwrap_or(0);
        if seq != last + 1 {
            self.complain(format!("event {seq} follows event {last}: {event}"));
        }
        if kind == "TxAccepted" {
            if !self.accepted.insert(tx_id.clone()) {
                self.complain(format!("accepted twice: {event}"));
            }
        } else if !tx_id.is_empty() && !self.accepted.contains(&tx_id) {
            self.complain(format!("it was not accepted before: {event}"));
        }
        if kind == "TxConfirmed" {
            self.confirmed.insert(tx_id, Instant::now());
        }
        *self.counts.entry(kind).or_default() += 1;
    }

    fn complain(&mut self, text: String) {
        if self.wrong.len() < WRONG_MAX {
            self.wrong.push(text);
        }
    }
}
