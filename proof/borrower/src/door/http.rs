//! Over HTTP: any node will do, and when one does not answer the next is asked.

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

use super::{Door, Refusal, ReservationTerms, Word};
use crate::settings::Settings;

/// How long a node may take. A loan whose answer comes later is nobody's until its time is over.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) struct Nodes {
    apis: Vec<Api>,
    /// Which one answered last.
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
        let asked = api.ask(Method::POST, path, Some(body), PATIENCE).await;
        let leave = || self.present.store(present + 1, Ordering::Relaxed);
        match asked {
            Ok(answer) if answer.status.is_success() => Ok(answer.body),
            Ok(answer) => {
                let refusal = refusal(&answer);
                if answer.status.as_u16() == 503 {
                    leave();
                }
                Err(refusal)
            }
            Err(why) => {
                leave();
                Err(Refusal::Later(match why {
                    NoAnswer::NotReached => "not reached",
                    NoAnswer::Broken => "broken off",
                    NoAnswer::TooLate => "too late",
                }))
            }
        }
    }
}

fn loan(lent: &Value) -> Option<ReservationTerms> {
    let expires_at = OffsetDateTime::parse(lent["expiresAt"].as_str()?, &Rfc3339).ok()?;
    Some(ReservationTerms {
        nonce: Nonce(lent["nonce"].as_u64()?),
        holder: Holder(lent["holder"].as_str()?.parse().ok()?),
        expires_at: Timestamp(u64::try_from(expires_at.unix_timestamp_nanos() / 1_000_000).ok()?),
    })
}

fn refusal(answer: &Answer) -> Refusal {
    if answer.body["retryable"] == true {
        return Refusal::Later(match answer.status.as_u16() {
            429 => "busy",
            503 => "unavailable",
            _ => "later",
        });
    }
    Refusal::ForGood(answer.body["detail"].to_string())
}

#[async_trait]
impl Door for Nodes {
    async fn allocate(&self) -> Result<ReservationTerms, Refusal> {
        let lent = self.post(&self.path, &json!({})).await?;
        loan(&lent).ok_or_else(|| Refusal::ForGood(format!("not a loan: {lent}")))
    }

    async fn say(&self, loan: &ReservationTerms, word: &Word) -> Result<(), Refusal> {
        let holder = loan.holder.0.to_string();
        let (call, body) = match word {
            Word::Submitted(hash) => ("submitted", json!({"holder": holder, "txHash": hash})),
            Word::Used(hash) => ("used", json!({"holder": holder, "txHash": hash})),
            Word::Recyclable => (
                "recyclable",
                json!({"holder": holder, "reason": "not needed"}),
            ),
        };
        let path = format!("{}/{}/{call}", self.path, loan.nonce.0);
        self.post(&path, &body).await.map(drop)
    }

    async fn close(&self) {}
}
