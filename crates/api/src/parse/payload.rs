//! The payload: what to send, with the rules between its fields.

use alloy_primitives::{Address, Bytes, U256, hex};
use domain::{Payload, TxType};
use serde::de::MapAccess;

use crate::parse::account::address;
use crate::parse::json::{Fault, Fields, Json, Name, ReadObject, read_field};
use crate::parse::{Broken, amount, excerpt};

/// The most call data or init code, in bytes: what nodes take in one transaction.
const DATA_BYTES_MAX: usize = 128 * 1024;

/// The most gas. Far above every chain's block, and far from overflowing a fee.
const GAS_MAX: u64 = 1 << 40;

/// The payload's fields as they came.
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
    pub(super) fault: Option<Fault>,
}

impl<'a> Fields<'a> for RawPayload<'a> {
    const KNOWN: &'static str =
        "to, value, data, gas, maxFeePerGas, maxPriorityFeePerGas, gasPrice, type";

    fn slot(&mut self, name: &str) -> Option<&mut Option<Json<'a>>> {
        match name {
            "to" => Some(&mut self.to),
            "value" => Some(&mut self.value),
            "data" => Some(&mut self.data),
            "gas" => Some(&mut self.gas),
            "maxFeePerGas" => Some(&mut self.max_fee_per_gas),
            "maxPriorityFeePerGas" => Some(&mut self.max_priority_fee_per_gas),
            "gasPrice" => Some(&mut self.gas_price),
            "type" => Some(&mut self.r#type),
            _ => None,
        }
    }
}

impl<'de> ReadObject<'de> for RawPayload<'de> {
    fn read_object<M: MapAccess<'de>>(mut map: M) -> Result<Self, M::Error> {
        let mut raw = Self::default();
        let mut fault = None;
        while let Some(Name(name)) = map.next_key()? {
            read_field(&mut map, &mut raw, &name, &mut fault)?;
        }
        raw.fault = fault;
        Ok(raw)
    }
}

/// A rule that is broken, with the field of the payload that breaks it.
type Refused = (&'static str, Broken);

impl RawPayload<'_> {
    /// The payload, when every rule holds.
    pub(super) fn check(self) -> Result<Payload, Refused> {
        let payload = Payload {
            to: field("payload.to", self.to, "an address as a string", address)?,
            value: field("payload.value", self.value, amount::WANTED, amount::u256)?
                .unwrap_or(U256::ZERO),
            data: field(
                "payload.data",
                self.data,
                "a string with 0x and hex digits",
                data,
            )?
            .unwrap_or_default(),
            gas: field("payload.gas", self.gas, amount::WANTED, amount::u64)?,
            max_fee_per_gas: wei("payload.maxFeePerGas", self.max_fee_per_gas)?,
            max_priority_fee_per_gas: wei(
                "payload.maxPriorityFeePerGas",
                self.max_priority_fee_per_gas,
            )?,
            gas_price: wei("payload.gasPrice", self.gas_price)?,
            tx_type: tx_type(self.r#type)?,
        };
        check_target(payload.to, &payload.data)?;
        check_fees(&payload)?;
        check_gas(&payload)?;
        Ok(payload)
    }
}

/// A field that may be left out; `null` is the same as left out, as in our own answers.
fn field<T>(
    path: &'static str,
    json: Option<Json<'_>>,
    wanted: &'static str,
    parse: impl FnOnce(&str) -> Result<T, Broken>,
) -> Result<Option<T>, Refused> {
    match json {
        None | Some(Json::Null) => Ok(None),
        Some(json) => json
            .text(wanted)
            .and_then(parse)
            .map(Some)
            .map_err(|broken| (path, broken)),
    }
}

fn wei(path: &'static str, json: Option<Json<'_>>) -> Result<Option<u128>, Refused> {
    field(path, json, amount::WANTED, amount::u128)
}

fn data(text: &str) -> Result<Bytes, Broken> {
    let Some(digits) = text.strip_prefix("0x") else {
        return Err(Broken::by(format!(
            "must start with 0x, unlike {}",
            excerpt(text)
        )));
    };
    if !digits.len().is_multiple_of(2) {
        return Err(Broken::rule(
            "has an odd number of hex digits, so half a byte is missing: check the encoding",
        ));
    }
    if digits.len() / 2 > DATA_BYTES_MAX {
        return Err(Broken::by(format!(
            "has {} bytes, but at most {DATA_BYTES_MAX} are allowed",
            digits.len() / 2
        )));
    }
    let mut bytes = vec![0; digits.len() / 2];
    if digits.starts_with("0x") || hex::decode_to_slice(digits, &mut bytes).is_err() {
        return Err(Broken::rule(
            "must have hex digits only after 0x: check the encoding",
        ));
    }
    Ok(bytes.into())
}

/// The envelope: as JSON-RPC writes it ("0x0", "0x2") or as a number.
fn tx_type(json: Option<Json<'_>>) -> Result<Option<TxType>, Refused> {
    match json {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Number(0)) => Ok(Some(TxType::Legacy)),
        Some(Json::Number(2)) => Ok(Some(TxType::Eip1559)),
        Some(Json::Text(text)) if text == "0x0" => Ok(Some(TxType::Legacy)),
        Some(Json::Text(text)) if text == "0x2" => Ok(Some(TxType::Eip1559)),
        Some(
            Json::Bool
            | Json::Number(_)
            | Json::OtherNumber
            | Json::Text(_)
            | Json::List(_)
            | Json::Object(_),
        ) => Err((
            "payload.type",
            Broken::rule(
                "is not supported: use \"0x2\" (EIP-1559) or \"0x0\" (legacy), or leave it out",
            ),
        )),
    }
}

/// Without a recipient the data is deployed as a contract, so there must be some.
fn check_target(to: Option<Address>, data: &Bytes) -> Result<(), Refused> {
    if to.is_none() && data.is_empty() {
        return Err((
            "payload.to",
            Broken::rule("is missing: send a recipient, or `payload.data` to deploy a contract"),
        ));
    }
    Ok(())
}

fn check_fees(payload: &Payload) -> Result<(), Refused> {
    let (max_fee, tip) = (payload.max_fee_per_gas, payload.max_priority_fee_per_gas);
    let wants_1559 = max_fee.is_some() || tip.is_some();
    if payload.gas_price.is_some() && wants_1559 {
        return Err((
            "payload.gasPrice",
            Broken::rule(
                "cannot go with maxFeePerGas or maxPriorityFeePerGas: send either the legacy \
                 field or the EIP-1559 ones",
            ),
        ));
    }
    match payload.tx_type {
        Some(TxType::Legacy) if wants_1559 => {
            return Err((
                "payload.type",
                Broken::rule(
                    "\"0x0\" cannot go with maxFeePerGas or maxPriorityFeePerGas: send gasPrice \
                     or \"0x2\"",
                ),
            ));
        }
        Some(TxType::Eip1559) if payload.gas_price.is_some() => {
            return Err((
                "payload.type",
                Broken::rule(
                    "\"0x2\" cannot go with gasPrice: send maxFeePerGas and maxPriorityFeePerGas, \
                     or \"0x0\"",
                ),
            ));
        }
        None | Some(TxType::Legacy | TxType::Eip1559) => {}
    }
    if let (Some(max_fee), Some(tip)) = (max_fee, tip)
        && tip > max_fee
    {
        return Err((
            "payload.maxPriorityFeePerGas",
            Broken::by(format!(
                "is {tip}, above maxFeePerGas ({max_fee}), which includes it: lower it, or raise \
                 maxFeePerGas"
            )),
        ));
    }
    Ok(())
}

fn check_gas(payload: &Payload) -> Result<(), Refused> {
    let Some(gas) = payload.gas else {
        return Ok(());
    };
    let least = payload.intrinsic_gas();
    if gas < least {
        return Err((
            "payload.gas",
            Broken::by(format!(
                "is {gas}, but this payload costs at least {least} before it does anything: raise \
                 it, or leave it out to have it estimated"
            )),
        ));
    }
    if gas > GAS_MAX {
        return Err((
            "payload.gas",
            Broken::by(format!(
                "is {gas}, but at most {GAS_MAX} is allowed: lower it"
            )),
        ));
    }
    Ok(())
}
