//! Scrapes of `/metrics`, and the calls that a scenario makes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::table::{Kind, METRICS, Metric, ReachedBy, find_metric};
use super::{CHAIN_ID, DEADLINE};
use crate::support::{ALICE, BOB};

/// One scrape.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) types: BTreeMap<String, String>,
    /// Values by name and labels, as in `name{label="value"}`.
    pub(super) samples: BTreeMap<String, f64>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').expect("a name and a type");
                page.types.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a series and a value");
                let value = value.parse().expect("a value is a number");
                page.samples.insert(series.to_owned(), value);
            }
        }
        page
    }

    /// Whether this series is above zero. An asterisk at its end stands for any labels.
    fn has(&self, wanted: &str) -> bool {
        let is_wanted = |series: &str| match wanted.strip_suffix('*') {
            Some(start) => series.starts_with(start),
            None => series == wanted,
        };
        let mut samples = self.samples.iter();
        samples.any(|(series, value)| is_wanted(series) && *value > 0.0)
    }

    /// The metric of a series: histograms have several series per metric.
    fn metric_of(&self, series: &str) -> &'static Metric {
        let name = series.split('{').next().unwrap_or_default();
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix))
            .find(|base| {
                self.types
                    .get(*base)
                    .is_some_and(|kind| kind == "histogram")
            });
        let name = base.unwrap_or(name);
        find_metric(name).unwrap_or_else(|| panic!("{name} is exported and not in METRICS"))
    }

    /// Checks everything on the page against the table, and that the page has all of the scenario's metrics.
    pub(super) fn check(&self, scenario: ReachedBy) {
        let mut seen = BTreeSet::new();
        for series in self.samples.keys() {
            let metric = self.metric_of(series);
            let labels: Vec<_> = label_names(series)
                .into_iter()
                .filter(|label| *label != "le")
                .collect();
            assert_eq!(labels, metric.labels, "labels of {series}");
            let kind = self.types.get(metric.name).map(String::as_str);
            let expected = match metric.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            assert_eq!(kind, Some(expected), "type of {}", metric.name);
            seen.insert(metric.name);
        }
        for metric in METRICS {
            assert!(
                metric.reached_by != scenario || seen.contains(metric.name),
                "{} is not exported",
                metric.name
            );
        }
    }
}

/// The names of a series' labels, in order.
fn label_names(series: &str) -> Vec<&str> {
    let Some((_, labels)) = series.split_once('{') else {
        return Vec::new();
    };
    let labels = labels.strip_suffix("\"}").expect("labels end with a brace");
    let labels = labels.split("\",");
    labels.filter_map(|label| label.split('=').next()).collect()
}

/// A node and a client of it.
pub(super) struct ScrapedNode {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
}

impl ScrapedNode {
    pub(super) fn new(url: &str, key: Option<&str>) -> Self {
        Self {
            http: http_client(),
            url: url.to_owned(),
            key: key.map(str::to_owned),
        }
    }

    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        self.exchange(self.http.get(format!("{}{path}", self.url)))
            .await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let request = self.http.post(format!("{}{path}", self.url)).json(body);
        self.exchange(request).await
    }

    /// A call as another node makes it, but without a MAC.
    pub(super) async fn post_as_peer(&self, path: &str, body: &Value) -> (u16, String) {
        let request = self.http.post(format!("{}{path}", self.url)).json(body);
        let request = request.header("lanekeeper-hop", "1");
        self.exchange(request.header("lanekeeper-deadline", "5000"))
            .await
    }

    async fn exchange(&self, request: reqwest::RequestBuilder) -> (u16, String) {
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let response = request.send().await.expect("the node answers");
        let status = response.status().as_u16();
        (status, response.text().await.expect("the answer is text"))
    }

    pub(super) async fn send(&self, request_id: &str) -> u16 {
        let body = json!({
            "chainId": CHAIN_ID, "signer": ALICE, "requestId": request_id,
            "payload": { "to": BOB, "value": "1" },
        });
        self.post("/api/v1/tx", &body).await.0
    }

    pub(super) async fn scrape(&self) -> Page {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, 200, "{text}");
        Page::parse(&text)
    }

    /// All of these series rise soon after the action.
    pub(super) async fn assert_counts(&self, action: impl AsyncFn(), series: &[&str]) {
        let before = self.scrape().await;
        action().await;
        let has_risen = |page: &Page, series: &str| {
            page.samples.get(series) > before.samples.get(series).or(Some(&0.0))
        };
        self.await_page(series, has_risen, async || {}).await;
    }

    /// Repeats the step until all of these series are above zero. An asterisk at the end stands for any labels.
    pub(super) async fn await_series(&self, series: &[&str], step: impl AsyncFn()) {
        self.await_page(series, Page::has, step).await;
    }

    /// Repeats the step until a page is as wanted for all of these series.
    async fn await_page(
        &self,
        series: &[&str],
        is_reached: impl Fn(&Page, &str) -> bool,
        step: impl AsyncFn(),
    ) {
        let until = tokio::time::Instant::now() + DEADLINE;
        loop {
            step().await;
            let page = self.scrape().await;
            let mut missing = series.to_vec();
            missing.retain(|series| !is_reached(&page, series));
            if missing.is_empty() {
                return;
            }
            let is_late = tokio::time::Instant::now() > until;
            assert!(!is_late, "never exported: {missing:#?}; {page:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn http_client() -> reqwest::Client {
    // Another test of this process may have installed it.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    reqwest::Client::new()
}

/// Calls the dev chain's control API.
pub(super) async fn control_chain(url: &str, method: &str, params: Value) -> Value {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let client = http_client();
    let answer = client.post(url).json(&call).send().await;
    let answer = answer.expect("the chain answers").text().await;
    let answer = answer.expect("a body");
    let mut answer: Value = serde_json::from_str(&answer).expect("JSON-RPC is JSON");
    assert!(answer.get("error").is_none(), "{method}: {answer}");
    answer["result"].take()
}
