//! The few JSON-RPC calls by which `dev` looks at its chain from outside.

use alloy_primitives::{Address, B256, U256};
use serde_json::{Value, json};
use std::time::Duration;

use crate::failure::{Failure, root_cause};

const TIMEOUT: Duration = Duration::from_secs(10);
/// What the dev chain gives each account at genesis.
const WEALTH_ETHER: u64 = 10_000;

pub(crate) struct JsonRpc {
    http: reqwest::Client,
    url: String,
}

impl JsonRpc {
    pub(crate) fn new(url: &str) -> Result<Self, Failure> {
        let http = reqwest::Client::builder().timeout(TIMEOUT).build();
        let http = http.map_err(|e| Failure::refused("no HTTP client", &e))?;
        Ok(Self {
            http,
            url: url.to_owned(),
        })
    }

    pub(crate) async fn chain_id(&self) -> Result<u64, Failure> {
        let answers = self.batch(&[("eth_chainId", json!([]))]).await?;
        let id = answers
            .first()
            .and_then(quantity)
            .and_then(|id| u64::try_from(id).ok());
        id.ok_or_else(|| self.strange("it does not say its chain id"))
    }

    /// Gives funds to accounts that the chain has never seen: a folder that was made with fewer
    /// accounts, or a chain that was started by somebody else.
    pub(crate) async fn fund_new_accounts(
        &self,
        accounts: &[(Address, B256)],
    ) -> Result<(), Failure> {
        let ask = |method: &'static str| {
            accounts
                .iter()
                .map(move |(address, _)| (method, json!([address.to_string(), "latest"])))
        };
        let calls: Vec<_> = ask("eth_getBalance")
            .chain(ask("eth_getTransactionCount"))
            .collect();
        let answers = self.batch(&calls).await?;
        let (balances, nonces) = answers.split_at(accounts.len().min(answers.len()));
        let wealth = U256::from(WEALTH_ETHER) * U256::from(10).pow(U256::from(18));
        let is_zero = |answer: &Value| quantity(answer) == Some(U256::ZERO);
        let funding: Vec<_> = (accounts.iter().zip(balances).zip(nonces))
            .filter(|((_, balance), nonce)| is_zero(balance) && is_zero(nonce))
            .map(|(((address, _), _), _)| {
                (
                    "anvil_setBalance",
                    json!([address.to_string(), format!("{wealth:#x}")]),
                )
            })
            .collect();
        if !funding.is_empty() {
            self.batch(&funding).await?;
        }
        Ok(())
    }

    /// How many transactions of each account are mined; `None` where the chain does not say.
    pub(crate) async fn mined(&self, accounts: &[String]) -> Result<Vec<Option<u64>>, Failure> {
        let calls: Vec<_> = accounts
            .iter()
            .map(|account| ("eth_getTransactionCount", json!([account, "latest"])))
            .collect();
        let answers = self.batch(&calls).await?;
        let number = |answer: &Value| quantity(answer).and_then(|n| u64::try_from(n).ok());
        Ok(answers.iter().map(number).collect())
    }

    /// Several calls at once; answers in the order asked, `null` for those that failed.
    async fn batch(&self, calls: &[(&str, Value)]) -> Result<Vec<Value>, Failure> {
        let body: Vec<Value> = (calls.iter().enumerate())
            .map(|(id, (method, params))| {
                json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
            })
            .collect();
        let response = self.http.post(&self.url).json(&body).send().await;
        let response = response.map_err(|e| self.unreachable(&e))?;
        let answers: Vec<Value> = response.json().await.map_err(|e| self.unreachable(&e))?;
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

    fn strange(&self, what: &str) -> Failure {
        Failure::Unreachable(format!(
            "the chain at {} answers strangely: {what}",
            self.url
        ))
    }
}

fn quantity(answer: &Value) -> Option<U256> {
    U256::from_str_radix(answer.as_str()?.strip_prefix("0x")?, 16).ok()
}
