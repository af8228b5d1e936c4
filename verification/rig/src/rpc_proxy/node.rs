//! The node behind the proxy.

use std::sync::LazyLock;

use hyper::body::Bytes;
use reqwest::{Client, header};
use serde_json::{Value, json};

/// A node, with connections of its own.
#[derive(Debug)]
pub(super) struct Node {
    /// Made where it is used first: its connections belong to that runtime.
    client: LazyLock<Client>,
    url: String,
}

/// What the node answered.
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

/// The node did not answer.
pub(super) struct Unreachable;

impl Node {
    pub(super) fn at(url: &str) -> Self {
        Self {
            client: LazyLock::new(crate::http::client),
            url: url.to_owned(),
        }
    }

    /// Passes a body on.
    pub(super) async fn pass(
        &self,
        body: impl Into<reqwest::Body>,
    ) -> Result<Answered, Unreachable> {
        let request = self
            .client
            .post(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body);
        // Why is the node's own affair; what counts here is that there is no answer.
        let unreachable = |_: reqwest::Error| Unreachable;
        let response = request.send().await.map_err(unreachable)?;
        Ok(Answered {
            status: response.status().as_u16(),
            body: response.bytes().await.map_err(unreachable)?,
        })
    }

    /// A question of the proxy's own: the answer with its `result` or `error`.
    pub(super) async fn ask(&self, method: &str, params: Value) -> Result<Value, Unreachable> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answered = self.pass(body.to_string()).await?;
        // A node that answers no JSON is as good as none.
        serde_json::from_slice(&answered.body).map_err(|_malformed| Unreachable)
    }
}
