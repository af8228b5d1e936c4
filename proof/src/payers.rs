//! A known number of payments, posted as fast as a number of clients can: one POST per tx, or in batches.

use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};

use crate::ledger::{Ledger, Promise};
use crate::{Api, Outcome, demand};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client rests that was told to come later.
const REPEAT_AFTER: Duration = Duration::from_millis(20);
/// The most txs of one batch.
const BATCH_MAX: usize = 500;

/// What is posted.
pub struct Payers<'a> {
    /// To which node.
    pub api: &'a Api,
    /// Where payments are written down.
    pub ledger: &'a Ledger,
    /// From which accounts, in turn.
    pub lanes: &'a [String],
    /// How many post at once.
    pub clients: usize,
}

/// When a number of payments was posted.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// When the first was sent.
    pub began: Instant,
    /// When the last was accepted.
    pub ended: Instant,
    /// How many were accepted with their hash: those that were to be sent at once.
    pub with_hash: usize,
}

impl Payers<'_> {
    /// One POST per payment, with gas given. All are prepared before the first is sent.
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

    /// The same in batches, for proofs in which the accepting is not the point.
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
            self.ledger.ask_with_gas(signer, &format!("p{number}"))
        };
        numbered.map(ask).collect()
    }

    /// Until it is accepted; says whether its hash was known already.
    async fn post_one(&self, body: &Value) -> Outcome<bool> {
        loop {
            let answer = self
                .api
                .ask(Method::POST, "/api/v1/tx", Some(body), PATIENCE);
            let answer = answer.await.map_err(|why| format!("no answer: {why:?}"))?;
            match answer.status.as_u16() {
                200 | 202 => return self.promised(body, &answer.body),
                429 => tokio::time::sleep(REPEAT_AFTER).await,
                status => return Err(format!("{status}: {}", answer.body).into()),
            }
        }
    }

    /// Until all are accepted; says how many hashes were known already.
    async fn post_batch(&self, txs: &[Value]) -> Outcome<usize> {
        let mut left: Vec<&Value> = txs.iter().collect();
        let mut with_hash = 0;
        while !left.is_empty() {
            let body = json!({"txs": left});
            let path = "/api/v1/tx/batch";
            let answer = self.api.ask(Method::POST, path, Some(&body), PATIENCE);
            let answer = answer.await.map_err(|why| format!("no answer: {why:?}"))?;
            let results = answer.body["results"].as_array();
            let results = results.ok_or_else(|| format!("no results: {answer:?}"))?;
            demand(results.len() == left.len(), "a result is missing")?;
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
                tokio::time::sleep(REPEAT_AFTER).await;
            }
            left = later;
        }
        Ok(with_hash)
    }

    fn promised(&self, body: &Value, tx: &Value) -> Outcome<bool> {
        let request_id = body["requestId"].as_str().unwrap_or_default();
        self.ledger.promised(request_id, Promise::read(tx))?;
        Ok(tx["txHash"].is_string())
    }
}
