//! What was asked for and what was promised: every payment has a recipient of its own, so that the
//! chain's balances tell what became of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

use crate::random_address;

/// What a business asked for, and what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// From which account.
    pub signer: String,
    /// To which account that nobody else pays to.
    pub to: String,
    /// What the first 2xx said; `None` while there was none.
    pub promise: Option<Promise>,
}

/// What a 2xx said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The tx, for ever.
    pub tx_id: String,
    /// Its nonce, when it had one already.
    pub nonce: Option<u64>,
}

impl Promise {
    /// From the body of a 2xx.
    pub fn read(tx: &Value) -> Self {
        Self {
            tx_id: tx["txId"].as_str().unwrap_or_default().to_owned(),
            nonce: tx["nonce"].as_u64(),
        }
    }
}

/// The business's books: payments by request id.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<BTreeMap<String, Payment>>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Payment>> {
        self.0.lock().expect("nothing panics while it holds this")
    }

    /// Writes a payment of 1 wei down and gives the body to post. Every fifth leaves the gas out.
    pub fn ask(&self, signer: &str, request_id: &str) -> Value {
        let (number, mut body) = self.write(signer, request_id);
        if !number.is_multiple_of(5) {
            body["payload"]["gas"] = json!("21000");
        }
        body
    }

    /// The same, always with the gas given: then nothing has to be estimated.
    pub fn ask_with_gas(&self, signer: &str, request_id: &str) -> Value {
        let (_, mut body) = self.write(signer, request_id);
        body["payload"]["gas"] = json!("21000");
        body
    }

    /// Writes a payment down: how many there were before it, and its body without gas.
    fn write(&self, signer: &str, request_id: &str) -> (usize, Value) {
        let to = random_address();
        let mut books = self.lock();
        let number = books.len();
        let payment = Payment {
            signer: signer.to_owned(),
            to: to.clone(),
            promise: None,
        };
        let before = books.insert(request_id.to_owned(), payment);
        assert!(before.is_none(), "{request_id} is asked for twice");
        let payload = json!({"to": to, "value": "1"});
        let body = json!({"signer": signer, "requestId": request_id, "payload": payload});
        (number, body)
    }

    /// Writes a promise down, and says what is wrong when it contradicts an earlier one. Answers may come
    /// in any order, so that one with a nonce and one from before it are both right.
    pub fn promised(&self, request_id: &str, promise: Promise) -> Result<(), String> {
        let mut books = self.lock();
        let Some(payment) = books.get_mut(request_id) else {
            return Err(format!("{request_id} was never asked for"));
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

    /// Everything, by request id.
    pub fn payments(&self) -> BTreeMap<String, Payment> {
        self.lock().clone()
    }

    /// How many payments were promised.
    pub fn promised_count(&self) -> usize {
        let books = self.lock();
        books.values().filter(|p| p.promise.is_some()).count()
    }
}
