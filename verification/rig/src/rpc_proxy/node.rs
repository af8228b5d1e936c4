//! The node behind the proxy.

use std::sync::LazyLock;

use hyper::body::Bytes;
use reqwest::{Client, header};
use serde_json::{Value, json};

#[derive(Debug)]
pub(super) struct Node {
    /// Created at the first use: its connections belong to that runtime.
    client: LazyLock<Client>,
    url: String,
}

pub(super) struct NodeResponse {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

pub(super) struct Unreachable;

impl Node {
    pub(super) fn at(url: &str) -> Self {
        Self {
            client: LazyLock::new(crate::http::client),
            url: url.to_owned(),
        }
    }

    /// Forwards a body unchanged.
    pub(super) async fn forward(
        &self,
        body: impl Into<reqwest::Body>,
    ) -> Result<NodeResponse, Unreachable> {
        let request = self
            .client
            .post(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body);
        // The reason does not matter here: there is no response.
        let unreachable = |_: reqwest::Error| Unreachable;
        let response = request.send().await.map_err(unreachable)?;
        Ok(NodeResponse {
            status: response.status().as_u16(),
            body: response.bytes().await.map_err(unreachable)?,
        })
    }

    /// A call by the proxy itself: the response with its `result` or `error`.
    pub(super) async fn call(&self, method: &str, params: Value) -> Result<Value, Unreachable> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answered = self.forward(body.to_string()).await?;
        // A response that is not JSON counts as none.
        serde_json::from_slice(&answered.body).map_err(|_malformed| Unreachable)
    }
}
