//! HTTP clients for the API of a node and for a chain's JSON-RPC.

use std::time::Duration;

use alloy_primitives::{Address, U256};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::Outcome;

/// The API of a node.
#[derive(Clone)]
pub struct Api {
    url: String,
    http: Client,
    key: Option<String>,
}

/// A response of a node, with any status.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    pub retry_after: Option<String>,
    /// `null` without a JSON body.
    pub body: Value,
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No connection: certainly nothing was sent.
    NotReached,
    /// The connection broke after the request may have been sent.
    Broken,
    /// Not within the timeout.
    TooLate,
}

/// The JSON-RPC of a chain.
#[derive(Clone)]
pub struct Chain {
    url: String,
    http: Client,
}

/// A new address: its balance shows what arrived.
pub fn random_address() -> String {
    Address::from(rand::random::<[u8; 20]>()).to_checksum(None)
}

fn client() -> Outcome<Client> {
    // A second installation of the provider is refused, and the first one is used.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    Ok(Client::builder()
        .timeout(Duration::from_secs(150))
        .no_proxy()
        .build()?)
}

impl Api {
    pub fn new(url: String) -> Outcome<Self> {
        Ok(Self {
            url,
            http: client()?,
            key: None,
        })
    }

    /// With an API key.
    pub fn with_key(&self, key: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
            ..self.clone()
        }
    }

    fn build_request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Waits at most `timeout` for the whole response.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<Answer, NoAnswer> {
        let mut request = self.build_request(method, path).timeout(timeout);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request
            .send()
            .await
            .map_err(|error| classify_error(&error))?;
        let status = answer.status();
        let retry_after = answer.headers().get("retry-after");
        let retry_after = retry_after.and_then(|value| Some(value.to_str().ok()?.to_owned()));
        let bytes = answer
            .bytes()
            .await
            .map_err(|error| classify_error(&error))?;
        Ok(Answer {
            status,
            retry_after,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        })
    }

    /// The body as text.
    pub async fn text(&self, path: &str) -> Outcome<String> {
        let answer = self.build_request(Method::GET, path).send().await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Status and JSON.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Outcome<(StatusCode, Value)> {
        let mut request = self.build_request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await?;
        let status = answer.status();
        Ok((status, answer.json().await.unwrap_or(Value::Null)))
    }

    pub async fn get(&self, path: &str) -> Outcome<(StatusCode, Value)> {
        self.call(Method::GET, path, None).await
    }

    pub async fn create(&self, body: Value, query: &str) -> Outcome<(StatusCode, Value)> {
        self.call(Method::POST, &format!("/api/v1/tx{query}"), Some(body))
            .await
    }

    /// Posts JSON with further headers.
    pub async fn post_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Outcome<(StatusCode, Value)> {
        let mut request = self.build_request(Method::POST, path).json(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await?;
        let status = answer.status();
        Ok((status, answer.json().await.unwrap_or(Value::Null)))
    }

    /// Posts raw bytes.
    pub async fn post_raw(
        &self,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Outcome<(StatusCode, String, Value)> {
        let request = self.build_request(Method::POST, path);
        let answer = request
            .header("content-type", content_type)
            .body(body)
            .send()
            .await?;
        let status = answer.status();
        let kind = answer
            .headers()
            .get("content-type")
            .and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        Ok((status, kind, answer.json().await.unwrap_or(Value::Null)))
    }

    /// All txs, page by page.
    pub async fn all_txs(&self) -> Outcome<Vec<Value>> {
        let mut txs = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let after = cursor
                .as_ref()
                .map(|c| format!("&cursor={c}"))
                .unwrap_or_default();
            let (status, page) = self.get(&format!("/api/v1/tx?limit=1000{after}")).await?;
            crate::ensure(
                status == StatusCode::OK,
                format!("list answered {status}: {page}"),
            )?;
            txs.extend(page["txs"].as_array().cloned().unwrap_or_default());
            match page["next"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => return Ok(txs),
            }
        }
    }
}

impl Chain {
    pub fn new(url: String) -> Outcome<Self> {
        Ok(Self {
            url,
            http: client()?,
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// A JSON-RPC call.
    pub async fn call(&self, method: &str, params: Value) -> Outcome<Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = self.post(&body).await?;
        match answer.get("error") {
            Some(error) if !error.is_null() => Err(format!("{method}: {error}").into()),
            _ => Ok(answer["result"].clone()),
        }
    }

    /// Many calls of one method in JSON-RPC batches; results in order.
    pub async fn call_many(&self, method: &str, params: &[Value]) -> Outcome<Vec<Value>> {
        let mut results = Vec::with_capacity(params.len());
        for chunk in params.chunks(500) {
            let numbered = chunk.iter().enumerate();
            let body: Value = numbered
                .map(|(id, params)| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
                .collect();
            let answers = self.post(&body).await?;
            let mut answers = answers
                .as_array()
                .cloned()
                .ok_or("not a batch of answers")?;
            answers.sort_by_key(|answer| answer["id"].as_u64());
            for answer in answers {
                crate::ensure(answer["error"].is_null(), format!("{method}: {answer}"))?;
                results.push(answer["result"].clone());
            }
        }
        Ok(results)
    }

    async fn post(&self, body: &Value) -> Outcome<Value> {
        let response = self.http.post(&self.url).json(body).send().await?;
        Ok(response.json().await?)
    }

    /// Wei of an account.
    pub async fn balance(&self, address: &str) -> Outcome<U256> {
        number(
            &self
                .call("eth_getBalance", json!([address, "latest"]))
                .await?,
        )
    }

    /// Wei of many accounts.
    pub async fn balances(&self, addresses: &[String]) -> Outcome<Vec<U256>> {
        let params: Vec<Value> = addresses.iter().map(|a| json!([a, "latest"])).collect();
        self.call_many("eth_getBalance", &params)
            .await?
            .iter()
            .map(number)
            .collect()
    }

    /// The number of the newest block.
    pub async fn height(&self) -> Outcome<u64> {
        Ok(u64::try_from(number(
            &self.call("eth_blockNumber", json!([])).await?,
        )?)?)
    }

    /// The account's next nonce.
    pub async fn nonce(&self, address: &str) -> Outcome<u64> {
        self.nonce_at(address, "latest").await
    }

    /// The account's next nonce, including the pool.
    pub async fn pending_nonce(&self, address: &str) -> Outcome<u64> {
        self.nonce_at(address, "pending").await
    }

    async fn nonce_at(&self, address: &str, block: &str) -> Outcome<u64> {
        let asked = self.call("eth_getTransactionCount", json!([address, block]));
        Ok(u64::try_from(number(&asked.await?)?)?)
    }
}

fn classify_error(error: &reqwest::Error) -> NoAnswer {
    // A connection timeout is both; nothing was sent in this case either.
    if error.is_connect() {
        NoAnswer::NotReached
    } else if error.is_timeout() {
        NoAnswer::TooLate
    } else {
        NoAnswer::Broken
    }
}

fn number(value: &Value) -> Outcome<U256> {
    Ok(value.as_str().ok_or("a number was expected")?.parse()?)
}
