//! The payload of a tx, with the rules between its fields.

use std::borrow::Cow;

use alloy_primitives::{Address, Bytes, U256, hex};
use domain::{Payload, TxType};
use serde::de::MapAccess;

use crate::parse::identifier::address;
use crate::parse::json::{Fields, Json, fill};
use crate::parse::{RuleViolation, amount, excerpt};
use crate::problem::ProblemKind;

/// The most call data or init code, in bytes: the limit of most nodes for one transaction.
const DATA_BYTES_MAX: usize = 128 * 1024;

/// The highest gas limit: far above every chain's block limit, and too small to overflow a fee.
const GAS_MAX: u64 = 1 << 40;

/// The highest transaction type of EIP-2718.
const TX_TYPE_MAX: u64 = 0x7f;

/// The payload's fields before their rules are checked.
#[derive(Debug, Default)]
pub(super) struct RawPayload<'a> {
    to: Option<Json<'a>>,
    value: Option<Json<'a>>,
    data: Option<Json<'a>>,
    gas: Option<Json<'a>>,
    max_fee_per_gas: Option<Json<'a>>,
    max_priority_fee_per_gas: Option<Json<'a>>,
    gas_price: Option<Json<'a>>,
    r#type: Option<Json<'a>>,
}

impl<'de> Fields<'de> for RawPayload<'de> {
    const KNOWN: &'static str =
        "to, value, data, gas, maxFeePerGas, maxPriorityFeePerGas, gasPrice, type";

    fn read_value<M: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut M,
    ) -> Result<Option<bool>, M::Error> {
        let slot = match name {
            "to" => &mut self.to,
            "value" => &mut self.value,
            "data" => &mut self.data,
            "gas" => &mut self.gas,
            "maxFeePerGas" => &mut self.max_fee_per_gas,
            "maxPriorityFeePerGas" => &mut self.max_priority_fee_per_gas,
            "gasPrice" => &mut self.gas_price,
            "type" => &mut self.r#type,
            _ => return Ok(None),
        };
        fill(slot, map)
    }
}

/// The name of a field of the payload, and the rule that it breaks.
type FieldViolation = (&'static str, RuleViolation);

fn refuse<T>(name: &'static str, rule: impl Into<Cow<'static, str>>) -> Result<T, FieldViolation> {
    Err((name, RuleViolation::new(rule)))
}

impl RawPayload<'_> {
    /// Checks every rule, and returns the payload.
    pub(super) fn validate(self) -> Result<Payload, FieldViolation> {
        let payload = Payload {
            to: optional_field("to", self.to, "an address as a string", address)?,
            value: optional_field("value", self.value, amount::EXPECTED_AMOUNT, amount::u256)?
                .unwrap_or(U256::ZERO),
            data: optional_field(
                "data",
                self.data,
                "a string with 0x and hex digits",
                parse_data,
            )?
            .unwrap_or_default(),
            gas: optional_field("gas", self.gas, amount::EXPECTED_AMOUNT, amount::u64)?,
            max_fee_per_gas: wei_field("maxFeePerGas", self.max_fee_per_gas)?,
            max_priority_fee_per_gas: wei_field(
                "maxPriorityFeePerGas",
                self.max_priority_fee_per_gas,
            )?,
            gas_price: wei_field("gasPrice", self.gas_price)?,
            tx_type: tx_type(self.r#type)?,
        };
        check_target(payload.to, &payload.data)?;
        check_fees(&payload)?;
        check_gas(&payload)?;
        Ok(payload)
    }
}

/// An optional field; `null` means the same as an omitted field, as in responses.
fn optional_field<T>(
    name: &'static str,
    json: Option<Json<'_>>,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Result<T, RuleViolation>,
) -> Result<Option<T>, FieldViolation> {
    match json {
        None | Some(Json::Null) => Ok(None),
        Some(json) => json
            .text(expected)
            .and_then(parse)
            .map(Some)
            .map_err(|violation| (name, violation)),
    }
}

fn wei_field(name: &'static str, json: Option<Json<'_>>) -> Result<Option<u128>, FieldViolation> {
    optional_field(name, json, amount::EXPECTED_AMOUNT, amount::u128)
}

fn parse_data(text: &str) -> Result<Bytes, RuleViolation> {
    let Some(digits) = text.strip_prefix("0x") else {
        return Err(RuleViolation::new(format!(
            "must start with 0x, unlike {}",
            excerpt(text)
        )));
    };
    if !digits.len().is_multiple_of(2) {
        return Err(RuleViolation::new(
            "has an odd number of hex digits, so half a byte is missing: check the encoding",
        ));
    }
    if digits.len() / 2 > DATA_BYTES_MAX {
        return Err(RuleViolation::new(format!(
            "has {} bytes, but at most {DATA_BYTES_MAX} are allowed",
            digits.len() / 2
        )));
    }
    let mut bytes = vec![0; digits.len() / 2];
    if digits.starts_with("0x") || hex::decode_to_slice(digits, &mut bytes).is_err() {
        return Err(RuleViolation::new(
            "must have hex digits only after 0x: check the encoding",
        ));
    }
    Ok(bytes.into())
}

/// The transaction type: as in JSON-RPC ("0x0", "0x2") or as a number. Other types of EIP-2718 exist and are not
/// supported; anything else is no type.
fn tx_type(json: Option<Json<'_>>) -> Result<Option<TxType>, FieldViolation> {
    let number = match &json {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::Number(number)) => Some(*number),
        Some(Json::Text(text)) if text.starts_with("0x") => amount::u64(text).ok(),
        Some(
            Json::Bool(_) | Json::OtherNumber | Json::Text(_) | Json::List(_) | Json::Object(_),
        ) => None,
    };
    let kind = match number {
        Some(0) => return Ok(Some(TxType::Legacy)),
        Some(2) => return Ok(Some(TxType::Eip1559)),
        Some(..=TX_TYPE_MAX) => ProblemKind::TypeNotSupported,
        Some(_) | None => ProblemKind::InvalidField,
    };
    let rule = "is not supported: use \"0x2\" (EIP-1559) or \"0x0\" (legacy), or leave it out";
    Err(("type", RuleViolation::of_kind(kind, rule)))
}

/// Without a recipient the data is deployed as a contract, so there must be some.
fn check_target(to: Option<Address>, data: &Bytes) -> Result<(), FieldViolation> {
    if to.is_none() && data.is_empty() {
        return refuse(
            "to",
            "is missing: send a recipient, or `payload.data` to deploy a contract",
        );
    }
    Ok(())
}

fn check_fees(payload: &Payload) -> Result<(), FieldViolation> {
    let (max_fee, tip) = (payload.max_fee_per_gas, payload.max_priority_fee_per_gas);
    let wants_1559 = max_fee.is_some() || tip.is_some();
    if payload.gas_price.is_some() && wants_1559 {
        return refuse(
            "gasPrice",
            "cannot be combined with maxFeePerGas or maxPriorityFeePerGas: send either the legacy \
                 field or the EIP-1559 ones",
        );
    }
    match payload.tx_type {
        Some(TxType::Legacy) if wants_1559 => {
            return refuse(
                "type",
                "\"0x0\" cannot be combined with maxFeePerGas or maxPriorityFeePerGas: send gasPrice \
                     or \"0x2\"",
            );
        }
        Some(TxType::Eip1559) if payload.gas_price.is_some() => {
            return refuse(
                "type",
                "\"0x2\" cannot be combined with gasPrice: send maxFeePerGas and maxPriorityFeePerGas, \
                     or \"0x0\"",
            );
        }
        None | Some(TxType::Legacy | TxType::Eip1559) => {}
    }
    if let (Some(max_fee), Some(tip)) = (max_fee, tip)
        && tip > max_fee
    {
        return refuse(
            "maxPriorityFeePerGas",
            format!(
                "is {tip}, above maxFeePerGas ({max_fee}), which includes it: lower it, or raise \
                 maxFeePerGas"
            ),
        );
    }
    Ok(())
}

fn check_gas(payload: &Payload) -> Result<(), FieldViolation> {
    match payload.gas {
        Some(gas) if gas > GAS_MAX => {
            let rule = format!("is {gas}, but at most {GAS_MAX} is allowed: lower it");
            let violation = RuleViolation::of_kind(ProblemKind::GasAboveLimit, rule);
            Err(("gas", violation))
        }
        Some(_) | None => Ok(()),
    }
}
