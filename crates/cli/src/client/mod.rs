//! The HTTP client of the commands: requests to one node, its answers and its problem documents.

mod sse;
mod views;

use std::time::Duration;

use clap::Args;
use reqwest::header::ACCEPT;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use sse::{EventFeed, Message};
pub use views::{EventView, LaneView, MemberView, TxView};

use crate::failure::{Failure, root_cause};
use crate::output::safe;

/// The longest `?wait=` that a node accepts.
pub const WAIT_MAX: Duration = Duration::from_secs(120);
/// How long a node may take to answer, in addition to a requested wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How many characters of an answer that is not a problem document are shown.
const FOREIGN_ANSWER_SHOWN_MAX: usize = 200;

/// The node that a command talks to.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// The node's address
    #[arg(
        long,
        env = "LANEKEEPER_URL",
        default_value = "http://127.0.0.1:8645",
        help_heading = "Node"
    )]
    pub url: String,
    /// The API key
    #[arg(
        long,
        env = "LANEKEEPER_KEY",
        hide_env_values = true,
        help_heading = "Node"
    )]
    pub key: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// A client of one node.
#[derive(Clone)]
pub struct Client {
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
    pub fn new(args: &NodeArgs) -> Result<Self, Failure> {
        let url = reqwest::Url::parse(&args.url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| {
                Failure::Usage(format!(
                    "--url {:?} is not an http:// or https:// address",
                    args.url
                ))
            })?;
        let key = args.key.as_deref();
        if key.is_some_and(|key| !key.bytes().all(|b| b.is_ascii_graphic())) {
            // The key is not shown: it is a secret.
            let message = "--key is not an API key: it has a space, a line break or another character that no key has";
            return Err(Failure::Usage(message.into()));
        }
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

    pub async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        self.get_waiting(path, query, Duration::ZERO).await
    }

    /// Sends a GET that the node may hold for `wait`.
    pub async fn get_waiting(
        &self,
        path: &str,
        query: &[(&str, String)],
        wait: Duration,
    ) -> Result<Value, Failure> {
        let request = self.build_request(Method::GET, path, query);
        self.request_json(request.timeout(wait + ANSWER_TIMEOUT))
            .await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.build_request(Method::POST, path, &[]).json(body);
        self.request_json(request.timeout(ANSWER_TIMEOUT)).await
    }

    /// Sends a GET whose answer is plain text.
    pub async fn get_text(&self, path: &str) -> Result<String, Failure> {
        let request = self
            .build_request(Method::GET, path, &[])
            .timeout(ANSWER_TIMEOUT);
        let response = self.send(request).await?;
        response.text().await.map_err(|e| self.unreachable(&e))
    }

    /// Sends a GET whose answer is an endless event stream.
    async fn get_stream(&self, path: &str, query: &[(&str, String)]) -> Result<Response, Failure> {
        let request = self.build_request(Method::GET, path, query);
        self.send(request.header(ACCEPT, "text/event-stream")).await
    }

    fn build_request(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
    ) -> RequestBuilder {
        let mut url = reqwest::Url::parse(&format!("{}{path}", self.base))
            .expect("the base URL was parsed and paths are constants");
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.http.request(method, url);
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn request_json(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let response = self.send(request).await?;
        response.json().await.map_err(|e| self.unreachable(&e))
    }

    /// Sends a request and turns every unsuccessful answer into a failure.
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
            "the answer is not one of a Lanekeeper node ({status}; check --url): {}",
            safe(start.trim())
        ));
    };
    let (title, detail) = (
        safe(&problem.title),
        safe(&problem.detail.unwrap_or_default()),
    );
    // Details often repeat the title first.
    let mut message = if detail.to_lowercase().starts_with(&title.to_lowercase()) {
        detail
    } else if detail.is_empty() {
        title
    } else {
        format!("{title}: {detail}")
    };
    if problem.effect.as_deref() == Some("unknown") {
        message += " (it may have been stored: repeat it, with the same --request-id if it has one, to find out)";
    } else if problem.retryable {
        message += " (nothing was stored; trying again may help)";
    }
    Failure::Refused(format!("{message} [{}]", status.as_u16()))
}

/// Decodes an answer.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, Failure> {
    T::deserialize(value).map_err(|e| {
        Failure::Unreachable(format!("the answer is not one of a Lanekeeper node: {e}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_that_no_header_can_carry_is_a_usage_error() {
        for key in ["lk_a\nb", "lk a", "lk_\u{e4}"] {
            let args = NodeArgs {
                url: "http://127.0.0.1:1".into(),
                key: Some(key.into()),
                json: false,
            };
            let is_usage =
                matches!(Client::new(&args), Err(Failure::Usage(why)) if !why.contains("lk"));
            assert!(is_usage, "{key:?}");
        }
    }

    #[test]
    fn problem_documents_become_one_line_failures() {
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
