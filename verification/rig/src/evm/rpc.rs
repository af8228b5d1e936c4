//! A small blocking JSON-RPC client for use inside and outside of a runtime.

use std::sync::{LazyLock, mpsc};

use reqwest::Client;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// One runtime for all calls of this process, so that connections are reused.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("rig-rpc")
        .enable_all()
        .build()
        .expect("a runtime needs no more than a few file handles")
});
static CLIENT: LazyLock<Client> = LazyLock::new(crate::http::client);

/// A JSON-RPC endpoint.
#[derive(Clone, Debug)]
pub struct Rpc {
    url: String,
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RpcError {
    /// No response, or none that is JSON-RPC.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// The node returned an error.
    #[error("{message} ({code})")]
    Refused {
        code: i64,
        message: String,
        data: Option<Value>,
    },
}

impl Rpc {
    pub fn at(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Panics on an error.
    pub fn call(&self, method: &str, params: Value) -> Value {
        self.try_call(method, params)
            .unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    pub fn try_call(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = wait_for(post(self.url.clone(), request))?;
        parse_result(answer)
    }

    /// The results of a batch of calls of one method, in order.
    pub fn try_batch(
        &self,
        method: &str,
        params: &[Value],
    ) -> Result<Vec<Result<Value, RpcError>>, RpcError> {
        let calls = params.iter().enumerate();
        let request: Vec<Value> = calls
            .map(|(id, params)| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .collect();
        let answer = wait_for(post(self.url.clone(), Value::Array(request)))?;
        let Some(answers) = answer.as_array() else {
            return parse_result(answer).map(|_| Vec::new());
        };
        let of = |id: usize| {
            let found = answers.iter().find(|answer| answer["id"] == json!(id));
            let missing = || RpcError::NoAnswer(format!("number {id} of the batch is missing"));
            found.cloned().ok_or_else(missing).and_then(parse_result)
        };
        Ok((0..params.len()).map(of).collect())
    }
}

/// Runs a future in the shared runtime and blocks until it ends.
fn wait_for<T: Send + 'static>(
    future: impl Future<Output = Result<T, RpcError>> + Send + 'static,
) -> Result<T, RpcError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    RUNTIME.spawn(async move {
        sender
            .send(future.await)
            .expect("the caller waits until the end");
    });
    receiver
        .recv()
        .unwrap_or_else(|_| panic!("the call panicked: its message is above"))
}

async fn post(url: String, request: Value) -> Result<Value, RpcError> {
    let no_answer = |error: reqwest::Error| RpcError::NoAnswer(format!("{error:?}"));
    let sent = CLIENT.post(&url).json(&request).send().await;
    let response = sent.map_err(no_answer)?;
    let status = response.status();
    let body = response.bytes().await.map_err(no_answer)?;
    serde_json::from_slice(&body).map_err(|error| {
        let text = String::from_utf8_lossy(&body);
        RpcError::NoAnswer(format!("HTTP {status}, {error}: {text}"))
    })
}

fn parse_result(answer: Value) -> Result<Value, RpcError> {
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        return Err(RpcError::Refused {
            code: error["code"].as_i64().unwrap_or_default(),
            message: error["message"].as_str().unwrap_or_default().to_owned(),
            data: error.get("data").cloned(),
        });
    }
    match answer.get("result") {
        Some(result) => Ok(result.clone()),
        None => Err(RpcError::NoAnswer(format!("not JSON-RPC: {answer}"))),
    }
}
