//! Wrong answers of a node that otherwise works.

use serde_json::{Value, json};

/// What is wrong in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Every fee is so many times the real one.
    FeesTimes(u64),
    /// Nonces of accounts are higher than the real ones.
    NonceAhead(u64),
    /// Nonces of accounts are lower than the real ones.
    NonceBehind(u64),
}

impl Lie {
    /// The methods whose answers it changes.
    pub fn methods(self) -> &'static [&'static str] {
        match self {
            Self::FeesTimes(_) => &[
                "eth_feeHistory",
                "eth_gasPrice",
                "eth_maxPriorityFeePerGas",
                "eth_getBlockByNumber",
                "eth_getBlockByHash",
            ],
            Self::NonceAhead(_) | Self::NonceBehind(_) => &["eth_getTransactionCount"],
        }
    }

    /// Changes the answer to a call; an error stays as it is.
    pub(super) fn change(self, method: &str, mut answer: Value) -> Value {
        let Some(result) = answer.get_mut("result") else {
            return answer;
        };
        match method {
            "eth_gasPrice" | "eth_maxPriorityFeePerGas" | "eth_getTransactionCount" => {
                self.change_number(result);
            }
            "eth_getBlockByNumber" | "eth_getBlockByHash" => {
                if let Some(fee) = result.get_mut("baseFeePerGas") {
                    self.change_number(fee);
                }
            }
            "eth_feeHistory" => {
                for name in ["baseFeePerGas", "reward"] {
                    if let Some(fees) = result.get_mut(name) {
                        self.change_numbers(fees);
                    }
                }
            }
            _ => {}
        }
        answer
    }

    fn change_numbers(self, value: &mut Value) {
        if let Value::Array(all) = value {
            all.iter_mut().for_each(|one| self.change_numbers(one));
        } else {
            self.change_number(value);
        }
    }

    fn change_number(self, value: &mut Value) {
        let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
        let Some(real) = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok()) else {
            return;
        };
        let changed = match self {
            Self::FeesTimes(times) => real.saturating_mul(times.into()),
            Self::NonceAhead(by) => real.saturating_add(by.into()),
            Self::NonceBehind(by) => real.saturating_sub(by.into()),
        };
        *value = json!(format!("{changed:#x}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fees_and_nonces_change_where_they_are_and_nothing_else_does() {
        let fees = Lie::FeesTimes(1_000);
        let history = json!({ "id": 1, "result": {
            "oldestBlock": "0x5", "baseFeePerGas": ["0x1", "0x2"], "reward": [["0x3"], ["0x0"]],
        }});
        let changed = json!({ "id": 1, "result": {
            "oldestBlock": "0x5", "baseFeePerGas": ["0x3e8", "0x7d0"], "reward": [["0xbb8"], ["0x0"]],
        }});
        assert_eq!(fees.change("eth_feeHistory", history), changed);
        let block = json!({ "result": { "number": "0x7", "baseFeePerGas": "0x2" } });
        let changed = json!({ "result": { "number": "0x7", "baseFeePerGas": "0x7d0" } });
        assert_eq!(fees.change("eth_getBlockByNumber", block), changed);
        let nonce = json!({ "result": "0x4" });
        let ahead = Lie::NonceAhead(6).change("eth_getTransactionCount", nonce.clone());
        assert_eq!(ahead, json!({ "result": "0xa" }));
        let behind = Lie::NonceBehind(6).change("eth_getTransactionCount", nonce);
        assert_eq!(behind, json!({ "result": "0x0" }));
        let refused = json!({ "error": { "code": 1 } });
        assert_eq!(fees.change("eth_gasPrice", refused.clone()), refused);
        let missing = json!({ "result": null });
        assert_eq!(
            fees.change("eth_getBlockByNumber", missing.clone()),
            missing
        );
    }
}
