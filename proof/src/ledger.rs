//! The requested payments and the promises of the API: every payment has its own recipient, so that the chain's
//! balances show its result.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

use crate::random_address;

/// A requested payment, and the API's promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// The sender.
    pub signer: String,
    /// The recipient, which is used once.
    pub to: String,
    /// The first 2xx response; `None` without one.
    pub promise: Option<Promise>,
}

/// The content of a 2xx response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    pub tx_id: String,
    /// `None` before a nonce is allocated.
    pub nonce: Option<u64>,
}

impl Promise {
    /// From the body of a 2xx response.
    pub fn read(tx: &Value) -> Self {
        Self {
            tx_id: tx["txId"].as_str().unwrap_or_default().to_owned(),
            nonce: tx["nonce"].as_u64(),
        }
    }
}

/// Payments by request id.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<BTreeMap<String, Payment>>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Payment>> {
        self.0.lock().expect("nothing panics while it holds this")
    }

    /// Records a payment of 1 wei, and returns the body to post. Every fifth omits the gas.
    pub fn transfer_body(&self, signer: &str, request_id: &str) -> Value {
        let (number, mut body) = self.write(signer, request_id);
        if !number.is_multiple_of(5) {
            body["payload"]["gas"] = json!("21000");
        }
        body
    }

    /// Always with the gas, so that it is not estimated.
    pub fn transfer_body_with_gas(&self, signer: &str, request_id: &str) -> Value {
        let (_, mut body) = self.write(signer, request_id);
        body["payload"]["gas"] = json!("21000");
        body
    }

    /// Records a payment: the number of earlier ones, and the body without gas.
    fn write(&self, signer: &str, request_id: &str) -> (usize, Value) {
        let to = random_address();
        let mut payments = self.lock();
        let number = payments.len();
        let payment = Payment {
            signer: signer.to_owned(),
            to: to.clone(),
            promise: None,
        };
        let before = payments.insert(request_id.to_owned(), payment);
        assert!(before.is_none(), "{request_id} is requested twice");
        let payload = json!({"to": to, "value": "1"});
        let body = json!({"signer": signer, "requestId": request_id, "payload": payload});
        (number, body)
    }

    /// Records a promise; an error if it contradicts an earlier one. Responses may arrive in any order, so a nonce
    /// may be missing in a later one.
    pub fn record_promise(&self, request_id: &str, promise: Promise) -> Result<(), String> {
        let mut payments = self.lock();
        let Some(payment) = payments.get_mut(request_id) else {
            return Err(format!("{request_id} was never requested"));
        };
        match &mut payment.promise {
            None => payment.promise = Some(promise),
            Some(first) => {
                let nonces = (first.nonce, promise.nonce);
                let differ = matches!(nonces, (Some(before), Some(now)) if before != now);
                if first.tx_id != promise.tx_id || differ {
                    return Err(format!("{request_id}: first {first:?}, then {promise:?}"));
                }
                first.nonce = first.nonce.or(promise.nonce);
            }
        }
        Ok(())
    }

    pub fn payments(&self) -> BTreeMap<String, Payment> {
        self.lock().clone()
    }

    pub fn promised_count(&self) -> usize {
        let payments = self.lock();
        payments.values().filter(|p| p.promise.is_some()).count()
    }
}
