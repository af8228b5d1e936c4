//! A fixed number of payments, posted by several clients as fast as possible: one by one or in batches.

use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};

use crate::ledger::{Ledger, Promise};
use crate::{Api, Outcome, ensure};

/// The timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Before a retry.
const RETRY_AFTER: Duration = Duration::from_millis(20);
const BATCH_MAX: usize = 500;

/// The clients and their target.
pub struct Payers<'a> {
    pub api: &'a Api,
    pub ledger: &'a Ledger,
    /// The sending accounts, in turn.
    pub lanes: &'a [String],
    /// The number of concurrent clients.
    pub clients: usize,
}

/// The result of posting.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    pub began: Instant,
    pub ended: Instant,
    /// How many were accepted with a hash, i.e. signed at once.
    pub with_hash: usize,
}

impl Payers<'_> {
    /// One POST per payment, with gas. All are prepared before the first is sent.
    pub async fn post(&self, count: usize) -> Outcome<Posted> {
        let bodies = self.prepare(count);
        let began = Instant::now();
        let posts = stream::iter(bodies.iter().map(|body| self.post_one(body)));
        let answers: Vec<bool> = posts.buffer_unordered(self.clients).try_collect().await?;
        Ok(Posted {
            began,
            ended: Instant::now(),
            with_hash: answers.into_iter().filter(|has_hash| *has_hash).count(),
        })
    }

    /// In batches, for proofs that do not measure acceptance.
    pub async fn post_in_batches(&self, count: usize) -> Outcome<Posted> {
        let bodies = self.prepare(count);
        let began = Instant::now();
        let posts = stream::iter(bodies.chunks(BATCH_MAX).map(|txs| self.post_batch(txs)));
        let answers: Vec<usize> = posts.buffer_unordered(self.clients).try_collect().await?;
        Ok(Posted {
            began,
            ended: Instant::now(),
            with_hash: answers.into_iter().sum(),
        })
    }

    fn prepare(&self, count: usize) -> Vec<Value> {
        let first = self.ledger.payments().len();
        let signers = self.lanes.iter().cycle();
        let numbered = (first..first + count).zip(signers);
        let ask = |(number, signer): (usize, &String)| {
            self.ledger
                .transfer_body_with_gas(signer, &format!("p{number}"))
        };
        numbered.map(ask).collect()
    }

    /// Retries until it is accepted; true if the response has its hash.
    async fn post_one(&self, body: &Value) -> Outcome<bool> {
        loop {
            let answer = self
                .api
                .request(Method::POST, "/api/v1/tx", Some(body), REQUEST_TIMEOUT);
            let answer = answer.await.map_err(|why| format!("no answer: {why:?}"))?;
            match answer.status.as_u16() {
                200 | 202 => return self.promised(body, &answer.body),
                429 => tokio::time::sleep(RETRY_AFTER).await,
                status => return Err(format!("{status}: {}", answer.body).into()),
            }
        }
    }

    /// Retries until all are accepted; returns how many responses have a hash.
    async fn post_batch(&self, txs: &[Value]) -> Outcome<usize> {
        let mut left: Vec<&Value> = txs.iter().collect();
        let mut with_hash = 0;
        while !left.is_empty() {
            let body = json!({"txs": left});
            let path = "/api/v1/tx/batch";
            let answer = self
                .api
                .request(Method::POST, path, Some(&body), REQUEST_TIMEOUT);
            let answer = answer.await.map_err(|why| format!("no answer: {why:?}"))?;
            let results = answer.body["results"].as_array();
            let results = results.ok_or_else(|| format!("no results: {answer:?}"))?;
            ensure(results.len() == left.len(), "a result is missing")?;
            let mut later = Vec::new();
            for (tx, result) in left.iter().zip(results) {
                match result["status"].as_u64() {
                    Some(200 | 202) => {
                        with_hash += usize::from(self.promised(tx, &result["tx"])?);
                    }
                    Some(429) => later.push(*tx),
                    _ => return Err(format!("refused: {result}").into()),
                }
            }
            if !later.is_empty() {
                tokio::time::sleep(RETRY_AFTER).await;
            }
            left = later;
        }
        Ok(with_hash)
    }

    fn promised(&self, body: &Value, tx: &Value) -> Outcome<bool> {
        let request_id = body["requestId"].as_str().unwrap_or_default();
        self.ledger.record_promise(request_id, Promise::read(tx))?;
        Ok(tx["txHash"].is_string())
    }
}
