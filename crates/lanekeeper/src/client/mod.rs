//! The HTTP client of the commands: one node, its answers and its problem documents.

mod sse;
mod views;

use std::time::Duration;

use clap::Args;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use sse::{Feed, Message};
pub(crate) use views::{EventView, LaneView, MemberView, TxView};

use crate::failure::{Failure, root_cause};
use crate::output::safe;

/// The longest `?wait=` that a node takes.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(120);
/// How long a node may take beyond the wait that it was asked for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Of an answer that is no problem document, this much is shown.
const FOREIGN_ANSWER_SHOWN_MAX: usize = 200;

/// Which node to ask.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeArgs {
    /// The node's address
    #[arg(
        long,
        env = "LANEKEEPER_URL",
        default_value = "http://127.0.0.1:8645",
        help_heading = "Node"
    )]
    pub(crate) url: String,
    /// The API key
    #[arg(
        long,
        env = "LANEKEEPER_KEY",
        hide_env_values = true,
        help_heading = "Node"
    )]
    pub(crate) key: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// A node to ask.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

/// A problem document.
#[derive(Debug, Deserialize)]
struct Problem {
    title: String,
    #[serde(default)]
    detail: Option<String>,
    #[serde(default)]
    retryable: bool,
    #[serde(default)]
    effect: Option<String>,
}

impl Client {
    pub(crate) fn new(args: &NodeArgs) -> Result<Self, Failure> {
        let url = reqwest::Url::parse(&args.url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| {
                Failure::Usage(format!(
                    "--url {:?} is not an http:// or https:// address",
                    args.url
                ))
            })?;
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|e| Failure::Usage(format!("no HTTP client: {}", root_cause(&e))))?;
        let base = url.as_str().trim_end_matches('/').to_owned();
        Ok(Self {
            http,
            base,
            key: args.key.clone(),
        })
    }

    /// A GET with a JSON answer.
    pub(crate) async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        self.get_within(path, query, ANSWER_TIMEOUT).await
    }

    /// A GET that waits at the node for `wait`, with a JSON answer.
    pub(crate) async fn get_waiting(
        &self,
        path: &str,
        query: &[(&str, String)],
        wait: Duration,
    ) -> Result<Value, Failure> {
        self.get_within(path, query, wait + ANSWER_TIMEOUT).await
    }

    async fn get_within(
        &self,
        path: &str,
        query: &[(&str, String)],
        timeout: Duration,
    ) -> Result<Value, Failure> {
        self.ask(self.request(Method::GET, path, query).timeout(timeout))
            .await
    }

    /// A POST of JSON with a JSON answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.request(Method::POST, path, &[]).json(body);
        self.ask(request.timeout(ANSWER_TIMEOUT)).await
    }

    /// A GET with an answer in plain text.
    pub(crate) async fn text(&self, path: &str) -> Result<String, Failure> {
        let request = self.request(Method::GET, path, &[]).timeout(ANSWER_TIMEOUT);
        let response = self.send(request).await?;
        response.text().await.map_err(|e| self.unreachable(&e))
    }

    /// A GET whose answer never ends.
    async fn stream(&self, path: &str, query: &[(&str, String)]) -> Result<Response, Failure> {
        let accept = (reqwest::header::ACCEPT, "text/event-stream");
        self.send(
            self.request(Method::GET, path, query)
                .header(accept.0, accept.1),
        )
        .await
    }

    fn request(&self, method: Method, path: &str, query: &[(&str, String)]) -> RequestBuilder {
        let mut url = reqwest::Url::parse(&format!("{}{path}", self.base))
            .expect("the base was parsed, and paths are ours");
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.http.request(method, url);
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn ask(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let response = self.send(request).await?;
        response.json().await.map_err(|e| self.unreachable(&e))
    }

    /// Sends, and turns every answer that is not a success into a failure.
    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.bytes().await.map_err(|e| self.unreachable(&e))?;
        Err(refusal(status, &body))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        Failure::Unreachable(format!(
            "{} does not answer: {}. Is the node running (`lanekeeper dev`), and is --url right?",
            self.base,
            root_cause(error)
        ))
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    let Ok(problem) = serde_json::from_slice::<Problem>(body) else {
        let body = String::from_utf8_lossy(body);
        let start: String = body.chars().take(FOREIGN_ANSWER_SHOWN_MAX).collect();
        return Failure::Unreachable(format!(
            "this does not answer like a Lanekeeper node ({status}): {}",
            safe(start.trim())
        ));
    };
    let (title, detail) = (
        safe(&problem.title),
        safe(&problem.detail.unwrap_or_default()),
    );
    // Details often begin by saying the title again.
    let mut message = if detail.to_lowercase().starts_with(&title.to_lowercase()) {
        detail
    } else if detail.is_empty() {
        title
    } else {
        format!("{title}: {detail}")
    };
    if problem.effect.as_deref() == Some("unknown") {
        message += " (it may have been stored: repeat with the same --request-id to find out)";
    } else if problem.retryable {
        message += " (nothing was stored; trying again may help)";
    }
    Failure::Refused(format!("{message} [{}]", status.as_u16()))
}

/// Reads an answer as what it should be.
pub(crate) fn view<T: DeserializeOwned>(value: &Value) -> Result<T, Failure> {
    T::deserialize(value).map_err(|e| {
        Failure::Unreachable(format!("this does not answer like a Lanekeeper node: {e}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_become_sentences() {
        let body = br#"{"type":"t","title":"Queue full","status":429,"detail":"wait a moment","retryable":true,"effect":"none"}"#;
        let failure = refusal(StatusCode::TOO_MANY_REQUESTS, body);
        assert_eq!(
            failure,
            Failure::Refused(
                "Queue full: wait a moment (nothing was stored; trying again may help) [429]"
                    .into()
            )
        );
        let html = refusal(StatusCode::BAD_GATEWAY, b"<html>\x1b[31mbad</html>");
        assert!(
            matches!(&html, Failure::Unreachable(m) if !m.contains('\u{1b}')),
            "{html:?}"
        );
    }
}
