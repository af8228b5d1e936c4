//! The kinds of poisoned requests: payloads that no block includes, that no account can pay, or that fail when they run.

use alloy_primitives::{U256, hex};
use proof::random_address;
use serde_json::{Value, json};

/// The limit per transaction that the chain's configuration names (EIP-7825).
pub(crate) const TX_GAS_CAP: u64 = 1 << 24;

/// Enough for everything that runs, and below every limit.
const PLENTY_OF_GAS: &str = "10000000";

const GWEI: u128 = 1_000_000_000;

/// `PUSH1 0, PUSH1 0, REVERT`.
const REVERTS: &str = "0x60006000fd";

/// The problems that may refuse a payload.
const GAS_ABOVE_LIMIT: &[&str] = &["gas-above-limit"];
const GAS_TOO_LOW: &[&str] = &["gas-too-low"];
const FEE_BELOW_FLOOR: &[&str] = &["fee-below-floor"];
const TYPE_NOT_SUPPORTED: &[&str] = &["type-not-supported"];
const UNPAYABLE: &[&str] = &["underfunded", "invalid-payload"];
const MALFORMED: &[&str] = &["invalid-field", "invalid-payload"];
const FAILING: &[&str] = &["call-reverts", "invalid-payload"];

/// The chain as the poison sees it.
pub(crate) struct ChainFacts {
    pub(crate) block_gas_limit: u64,
    /// `None` on a chain without base fee.
    pub(crate) base_fee: Option<u128>,
    /// Of every account.
    pub(crate) balance: U256,
}

pub(crate) struct Poison {
    pub(crate) name: &'static str,
    /// One of each is sent.
    pub(crate) payloads: Vec<Value>,
    /// The problems that may refuse it.
    pub(crate) refusals: &'static [&'static str],
}

impl Poison {
    fn new(name: &'static str, refusals: &'static [&'static str], payload: Value) -> Self {
        Self {
            name,
            payloads: vec![payload],
            refusals,
        }
    }
}

/// Every kind for this chain.
pub(crate) fn kinds(chain: &ChainFacts) -> Vec<Poison> {
    let mut kinds = gas(chain);
    kinds.extend(fees(chain));
    kinds.extend(money(chain));
    kinds.extend(execution());
    kinds.extend(sizes());
    kinds.extend(forms());
    kinds
}

/// A payment of one wei with further fields.
fn payment(fields: Value) -> Value {
    let mut payload = json!({"to": random_address(), "value": "1", "gas": "21000"});
    set_fields(&mut payload, fields);
    payload
}

/// A contract creation with further fields.
fn creation(code: &str, gas: &str) -> Value {
    json!({"data": code, "gas": gas})
}

/// `null` removes a field.
fn set_fields(payload: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else {
        unreachable!("fields are an object")
    };
    for (name, value) in fields {
        if !value.is_null() {
            payload[name] = value;
        } else if let Some(all) = payload.as_object_mut() {
            all.remove(&name);
        }
    }
}

fn bytes(byte: u8, count: usize) -> String {
    hex::encode_prefixed(vec![byte; count])
}

fn gas(chain: &ChainFacts) -> Vec<Poison> {
    let gas = |gas: u64| payment(json!({"gas": gas.to_string()}));
    let data = |count: usize, gas: u64| {
        payment(json!({"data": bytes(0xff, count), "gas": gas.to_string()}))
    };
    let above_block = gas(chain.block_gas_limit.saturating_add(1));
    vec![
        Poison::new("gas above the block's limit", GAS_ABOVE_LIMIT, above_block),
        Poison::new("gas of 2^64 - 1", GAS_ABOVE_LIMIT, gas(u64::MAX)),
        Poison::new(
            "gas above the limit per transaction",
            GAS_ABOVE_LIMIT,
            gas(TX_GAS_CAP + 1),
        ),
        Poison::new("gas below 21,000", GAS_TOO_LOW, gas(20_999)),
        Poison::new(
            "gas that does not cover the data",
            GAS_TOO_LOW,
            data(1_000, 21_000),
        ),
        // 37,000 by the rules of Istanbul, 61,000 by the floor of EIP-7623.
        Poison::new(
            "gas below the floor of EIP-7623",
            GAS_TOO_LOW,
            data(1_000, 40_000),
        ),
        Poison::new(
            "gas that does not cover a creation",
            GAS_TOO_LOW,
            creation(&bytes(0xff, 100), "54000"),
        ),
    ]
}

fn fees(chain: &ChainFacts) -> Vec<Poison> {
    let Some(base_fee) = chain.base_fee else {
        let eip1559 = |fields| {
            Poison::new(
                "EIP-1559 fields without base fee",
                TYPE_NOT_SUPPORTED,
                fields,
            )
        };
        let fields = json!({"maxFeePerGas": "2000000000", "maxPriorityFeePerGas": "1000000000"});
        return vec![
            eip1559(payment(fields)),
            Poison::new(
                "type 2 without base fee",
                TYPE_NOT_SUPPORTED,
                payment(json!({"type": "0x2"})),
            ),
        ];
    };
    let limit =
        |wei: u128| payment(json!({"maxFeePerGas": wei.to_string(), "maxPriorityFeePerGas": "1"}));
    let tip = json!({
        "maxFeePerGas": (10 * GWEI).to_string(),
        "maxPriorityFeePerGas": (20 * GWEI).to_string(),
    });
    let half = (base_fee / 2).max(1);
    vec![
        Poison::new("fee limit of 1 wei", FEE_BELOW_FLOOR, limit(1)),
        Poison::new(
            "gas price of 1 wei",
            FEE_BELOW_FLOOR,
            payment(json!({"gasPrice": "1"})),
        ),
        Poison::new(
            "fee limit of half the base fee",
            FEE_BELOW_FLOOR,
            limit(half),
        ),
        Poison::new("tip above the fee limit", MALFORMED, payment(tip)),
        Poison::new("fee limit of 2^128 - 1", UNPAYABLE, limit(u128::MAX)),
    ]
}

fn money(chain: &ChainFacts) -> Vec<Poison> {
    let more = chain.balance.saturating_add(U256::ONE).to_string();
    let value = |value: &str| payment(json!({"value": value}));
    let estimated = payment(json!({"value": more, "gas": null}));
    // 16 million gas at 0.001 coins each: 16,000 coins.
    let fee = json!({"gas": "16000000", "gasPrice": "1000000000000000"});
    vec![
        Poison::new("value above the balance, with gas", UNPAYABLE, value(&more)),
        Poison::new("value above the balance, without gas", UNPAYABLE, estimated),
        Poison::new(
            "whole balance, nothing left for gas",
            UNPAYABLE,
            value(&chain.balance.to_string()),
        ),
        Poison::new(
            "value of 2^256 - 1",
            UNPAYABLE,
            value(&U256::MAX.to_string()),
        ),
        Poison::new("fee that the account cannot pay", UNPAYABLE, payment(fee)),
    ]
}

fn execution() -> Vec<Poison> {
    let blake2f = json!({"to": "0x0000000000000000000000000000000000000009", "data": "0x00", "gas": "100000"});
    vec![
        Poison::new(
            "call that reverts, with gas",
            FAILING,
            creation(REVERTS, "100000"),
        ),
        Poison::new(
            "call that reverts, without gas",
            FAILING,
            json!({"data": REVERTS}),
        ),
        Poison::new(
            "invalid opcode as init code",
            FAILING,
            creation("0xfe", "200000"),
        ),
        // `JUMPDEST, PUSH1 0, JUMP`.
        Poison::new("endless loop", FAILING, creation("0x5b600056", "1000000")),
        // Stores 0xef and returns it as code.
        Poison::new(
            "code that begins with 0xef",
            FAILING,
            creation("0x60ef60005360016000f3", "200000"),
        ),
        Poison::new("invalid input of a precompile", FAILING, payment(blake2f)),
    ]
}

fn sizes() -> Vec<Poison> {
    vec![
        // Some nodes have a higher limit than EIP-3860 by now.
        Poison::new(
            "init code above 49,152 bytes",
            MALFORMED,
            creation(&bytes(0, 49_153), PLENTY_OF_GAS),
        ),
        Poison::new(
            "init code of 120,000 bytes",
            MALFORMED,
            creation(&bytes(0, 120_000), PLENTY_OF_GAS),
        ),
        // Returns 24,577 zero bytes.
        Poison::new(
            "code above 24,576 bytes",
            FAILING,
            creation("0x6160016000f3", PLENTY_OF_GAS),
        ),
        Poison::new(
            "data above 128 KiB",
            MALFORMED,
            payment(json!({"data": bytes(0, 140 * 1024), "gas": PLENTY_OF_GAS})),
        ),
    ]
}

fn forms() -> Vec<Poison> {
    let typed = |number: u8| payment(json!({"type": format!("{number:#x}")}));
    let types = vec![typed(1), typed(3), typed(4), typed(0x7f)];
    let junk = [
        json!({"to": "0x1234"}),
        json!({"to": "0xZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ"}),
        json!({"value": "-1"}),
        json!({"value": format!("{}0", U256::MAX)}),
        json!({"value": 1.5}),
        json!({"data": "0x123"}),
        json!({"data": "nonsense"}),
        json!({"gas": "18446744073709551616"}),
        json!({"gas": "many"}),
        json!({"nonce": 7}),
        json!({"chainId": 1}),
        json!({"maxFeePerGas": "0x"}),
        json!({"type": "0x0", "maxFeePerGas": "2000000000"}),
        json!({"type": "0x2", "gasPrice": "2000000000"}),
        json!({"to": null, "data": null}),
    ];
    vec![
        Poison {
            name: "type that is not supported",
            payloads: types,
            refusals: TYPE_NOT_SUPPORTED,
        },
        Poison {
            name: "malformed fields",
            payloads: junk.into_iter().map(payment).collect(),
            refusals: MALFORMED,
        },
    ]
}
