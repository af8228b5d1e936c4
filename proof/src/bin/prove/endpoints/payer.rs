//! A steady sequence of payments on one lane, each with the times at which it was posted, accepted and mined.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::{Api, Outcome, random_address};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Between two payments.
const PACE: Duration = Duration::from_millis(250);

/// Before a refused payment is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The timeout of one POST; a client repeats it then.
const POST_TIMEOUT: Duration = Duration::from_secs(30);

/// A payment that is not mined by then never is.
pub(super) const MINED_WITHIN: Duration = Duration::from_secs(60);

/// The lane that pays.
#[derive(Clone)]
pub(super) struct Payer {
    pub(super) api: Api,
    pub(super) chain_id: u64,
    pub(super) signer: String,
}

#[derive(Clone, Debug)]
pub(super) struct Payment {
    pub(super) posted: Instant,
    pub(super) accepted: Instant,
    /// `None`: not within the proof's patience.
    pub(super) mined: Option<Instant>,
    /// The highest fee per gas of its attempts, in wei.
    pub(super) fee: u128,
}

/// A running sequence of payments.
pub(super) struct Payments {
    stop: watch::Sender<bool>,
    task: JoinHandle<Outcome<Vec<Payment>>>,
}

impl Payer {
    /// Pays until it is stopped.
    pub(super) fn start(self) -> Payments {
        let stop = watch::Sender::new(false);
        let stopped = stop.subscribe();
        let payer = Arc::new(self);
        let task = tokio::spawn(async move {
            let mut paying = JoinSet::new();
            let mut pace = tokio::time::interval(PACE);
            let mut number = 0_u64;
            while !*stopped.borrow() {
                pace.tick().await;
                let payer = Arc::clone(&payer);
                paying.spawn(async move { payer.pay(number).await });
                number += 1;
            }
            let mut payments = Vec::new();
            while let Some(ended) = paying.join_next().await {
                payments.push(ended??);
            }
            Ok(payments)
        });
        Payments { stop, task }
    }

    /// Every second payment leaves the gas to the node, which estimates it.
    pub(super) async fn pay(&self, number: u64) -> Outcome<Payment> {
        let mut payload = json!({"to": random_address(), "value": "1"});
        if number.is_multiple_of(2) {
            payload["gas"] = "21000".into();
        }
        let body = json!({
            "chainId": self.chain_id,
            "signer": self.signer,
            "requestId": format!("payment-{number}"),
            "payload": payload,
        });
        let posted = Instant::now();
        let tx_id = self.post(&body, posted).await?;
        let accepted = Instant::now();
        let tx = self.wait_mined(&tx_id).await?;
        let mined = (!tx["receipt"].is_null()).then(Instant::now);
        Ok(Payment {
            posted,
            accepted,
            mined,
            fee: highest_fee(&tx),
        })
    }

    /// Repeats it until it is accepted.
    async fn post(&self, body: &Value, since: Instant) -> Outcome<String> {
        loop {
            let path = "/api/v1/tx";
            let answer = self
                .api
                .request(Method::POST, path, Some(body), POST_TIMEOUT)
                .await;
            if let Ok(answer) = &answer
                && let (true, Some(id)) = (answer.status.is_success(), answer.body["txId"].as_str())
            {
                return Ok(id.to_owned());
            }
            if since.elapsed() > MINED_WITHIN {
                return Err(format!("a payment is never accepted: {answer:?}").into());
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    async fn wait_mined(&self, tx_id: &str) -> Outcome<Value> {
        let seconds = MINED_WITHIN.as_secs();
        let path = format!("/api/v1/tx/{tx_id}?wait=mined&timeout={seconds}s");
        let (status, tx) = self.api.get(&path).await?;
        match status.is_success() {
            true => Ok(tx),
            false => Err(format!("{path}: {status} {tx}").into()),
        }
    }
}

impl Payments {
    /// Stops posting, and waits for the last ones.
    pub(super) async fn stop(self) -> Outcome<Vec<Payment>> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

fn highest_fee(tx: &Value) -> u128 {
    let attempts = tx["attempts"].as_array().into_iter().flatten();
    let fee = |attempt: &Value| -> Option<u128> {
        let fee = attempt["maxFeePerGas"].as_str();
        let fee = fee.or_else(|| attempt["gasPrice"].as_str())?;
        match fee.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16).ok(),
            None => fee.parse().ok(),
        }
    };
    attempts.filter_map(fee).max().unwrap_or_default()
}
