//! The JSON-RPC calls of `dev` to its chain.

use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use cli::Failure;
use cli::failure::root_cause;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(10);
/// The balance of a funded account.
const BALANCE_ETHER: u64 = 10_000;

pub(crate) struct JsonRpc {
    http: reqwest::Client,
    url: String,
}

impl JsonRpc {
    pub(crate) fn new(url: &str) -> Result<Self, Failure> {
        let http = reqwest::Client::builder().timeout(TIMEOUT).build();
        let http = http.map_err(|e| Failure::refused("cannot create an HTTP client", &e))?;
        Ok(Self {
            http,
            url: url.to_owned(),
        })
    }

    pub(crate) async fn chain_id(&self) -> Result<u64, Failure> {
        let answers = self.send_batch(&[("eth_chainId", json!([]))]).await?;
        let id = answers
            .first()
            .and_then(quantity)
            .and_then(|id| u64::try_from(id).ok());
        id.ok_or_else(|| {
            Failure::Unreachable(format!(
                "the chain at {} gave an unexpected answer: eth_chainId returned no number",
                self.url
            ))
        })
    }

    /// Funds accounts that the chain has never seen: its folder was created with fewer accounts, or another
    /// process started it.
    pub(crate) async fn fund_new_accounts(
        &self,
        accounts: &[(Address, B256)],
    ) -> Result<(), Failure> {
        let calls_of = |method: &'static str| {
            accounts
                .iter()
                .map(move |(address, _)| (method, json!([address.to_string(), "latest"])))
        };
        let calls: Vec<_> = calls_of("eth_getBalance")
            .chain(calls_of("eth_getTransactionCount"))
            .collect();
        let answers = self.send_batch(&calls).await?;
        let (balances, nonces) = answers.split_at(accounts.len().min(answers.len()));
        let balance = U256::from(BALANCE_ETHER) * U256::from(10).pow(U256::from(18));
        let is_zero = |answer: &Value| quantity(answer) == Some(U256::ZERO);
        let funding: Vec<_> = (accounts.iter().zip(balances).zip(nonces))
            .filter(|((_, balance), nonce)| is_zero(balance) && is_zero(nonce))
            .map(|(((address, _), _), _)| {
                (
                    "anvil_setBalance",
                    json!([address.to_string(), format!("{balance:#x}")]),
                )
            })
            .collect();
        if !funding.is_empty() {
            self.send_batch(&funding).await?;
        }
        Ok(())
    }

    /// The nonce of each account; `None` where the chain returned an error.
    pub(crate) async fn fetch_nonces(
        &self,
        accounts: &[String],
    ) -> Result<Vec<Option<u64>>, Failure> {
        let calls: Vec<_> = accounts
            .iter()
            .map(|account| ("eth_getTransactionCount", json!([account, "latest"])))
            .collect();
        let answers = self.send_batch(&calls).await?;
        let number = |answer: &Value| quantity(answer).and_then(|n| u64::try_from(n).ok());
        Ok(answers.iter().map(number).collect())
    }

    /// Sends a batch; answers are in the order of the calls, `null` for those that failed.
    async fn send_batch(&self, calls: &[(&str, Value)]) -> Result<Vec<Value>, Failure> {
        let body: Vec<Value> = (calls.iter().enumerate())
            .map(|(id, (method, params))| {
                json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
            })
            .collect();
        let response = self.http.post(&self.url).json(&body).send().await;
        let response = response.map_err(|e| self.unreachable(&e))?;
        let bytes = response.bytes().await.map_err(|e| self.unreachable(&e))?;
        let answers: Vec<Value> = serde_json::from_slice(&bytes).map_err(|_not_a_list| {
            Failure::Refused(format!(
                "{} answers, but not as the JSON-RPC endpoint of a dev chain: check the address, and \
                 that it is not the API of a node",
                self.url
            ))
        })?;
        let mut ordered = vec![Value::Null; calls.len()];
        for mut answer in answers {
            let id = answer
                .get("id")
                .and_then(Value::as_u64)
                .and_then(|id| usize::try_from(id).ok());
            if let Some(place) = id.and_then(|id| ordered.get_mut(id)) {
                *place = answer.get_mut("result").map_or(Value::Null, Value::take);
            }
        }
        Ok(ordered)
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        Failure::Unreachable(format!(
            "the chain at {} does not answer: {}",
            self.url,
            root_cause(error)
        ))
    }
}

fn quantity(answer: &Value) -> Option<U256> {
    U256::from_str_radix(answer.as_str()?.strip_prefix("0x")?, 16).ok()
}
