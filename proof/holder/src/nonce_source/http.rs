//! Nonces over HTTP: any node works, and the next one is tried when one does not answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Holder, Nonce, Timestamp};
use proof::network::signer;
use proof::{Answer, Api, NoAnswer, Outcome};
use reqwest::Method;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Mark, NonceSource, Refusal, ReservedNonce};
use crate::settings::Settings;

/// Request timeout. A reservation whose answer comes later is blocked until it expires.
const TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct Nodes {
    apis: Vec<Api>,
    /// Index of the node in use.
    present: AtomicUsize,
    path: String,
}

impl Nodes {
    pub(super) fn new(settings: &Settings, nodes: &[String]) -> Outcome<Self> {
        let apis: Outcome<Vec<Api>> = nodes.iter().cloned().map(Api::new).collect();
        let (chain, signer) = (settings.chain_id, signer(settings.account));
        Ok(Self {
            apis: apis?,
            present: AtomicUsize::new(0),
            path: format!("/api/v1/lanes/{chain}/{signer}/nonces"),
        })
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, Refusal> {
        let present = self.present.load(Ordering::Relaxed);
        let api = &self.apis[present % self.apis.len()];
        let response = api.request(Method::POST, path, Some(body), TIMEOUT).await;
        let use_next_node = || self.present.store(present + 1, Ordering::Relaxed);
        match response {
            Ok(answer) if answer.status.is_success() => Ok(answer.body),
            Ok(answer) => {
                let refusal = refusal(&answer);
                if answer.status.as_u16() == 503 {
                    use_next_node();
                }
                Err(refusal)
            }
            Err(why) => {
                use_next_node();
                Err(Refusal::Retryable(match why {
                    NoAnswer::NotReached => "not reached",
                    NoAnswer::Broken => "connection broken",
                    NoAnswer::TooLate => "timed out",
                }))
            }
        }
    }
}

fn parse_reserved(answer: &Value) -> Option<ReservedNonce> {
    let expires_at = OffsetDateTime::parse(answer["expiresAt"].as_str()?, &Rfc3339).ok()?;
    Some(ReservedNonce {
        nonce: Nonce(answer["nonce"].as_u64()?),
        holder: Holder(answer["holder"].as_str()?.parse().ok()?),
        expires_at: Timestamp(u64::try_from(expires_at.unix_timestamp_nanos() / 1_000_000).ok()?),
    })
}

fn refusal(answer: &Answer) -> Refusal {
    if answer.body["retryable"] == true {
        return Refusal::Retryable(match answer.status.as_u16() {
            429 => "busy",
            503 => "unavailable",
            _ => "later",
        });
    }
    Refusal::Permanent(answer.body["detail"].to_string())
}

#[async_trait]
impl NonceSource for Nodes {
    async fn allocate(&self) -> Result<ReservedNonce, Refusal> {
        let answer = self.post(&self.path, &json!({})).await?;
        parse_reserved(&answer)
            .ok_or_else(|| Refusal::Permanent(format!("not a reservation: {answer}")))
    }

    async fn mark(&self, reserved: &ReservedNonce, mark: &Mark) -> Result<(), Refusal> {
        let holder = reserved.holder.0.to_string();
        let (call, body) = match mark {
            Mark::Submitted(hash) => ("submitted", json!({"holder": holder, "txHash": hash})),
            Mark::Used(hash) => ("used", json!({"holder": holder, "txHash": hash})),
            Mark::Recyclable => (
                "recyclable",
                json!({"holder": holder, "reason": "not needed"}),
            ),
        };
        let path = format!("{}/{}/{call}", self.path, reserved.nonce.0);
        self.post(&path, &body).await.map(drop)
    }

    async fn close(&self) {}
}
