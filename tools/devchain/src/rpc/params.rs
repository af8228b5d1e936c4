//! The parameters of one call, by position.

use alloy_primitives::{B256, Bytes, U64, hex};
use alloy_rpc_types_eth::{BlockId, BlockNumberOrTag};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::RpcError;

pub(super) struct Params(Vec<Value>);

impl Params {
    pub(super) fn new(params: Option<Value>) -> Result<Self, RpcError> {
        match params {
            None | Some(Value::Null) => Ok(Self(Vec::new())),
            Some(Value::Array(values)) => Ok(Self(values)),
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                Err(RpcError::invalid_params("non-array args"))
            }
        }
    }

    pub(super) fn at_most(&self, count: usize) -> Result<(), RpcError> {
        if self.0.len() > count {
            let message = format!("too many arguments, want at most {count}");
            return Err(RpcError::invalid_params(message));
        }
        Ok(())
    }

    /// `null` counts as left out.
    pub(super) fn optional<T: DeserializeOwned>(
        &self,
        index: usize,
    ) -> Result<Option<T>, RpcError> {
        match self.0.get(index) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match T::deserialize(value) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(invalid(index, error)),
            },
        }
    }

    pub(super) fn required<T: DeserializeOwned>(&self, index: usize) -> Result<T, RpcError> {
        self.optional(index)?.ok_or_else(|| missing(index))
    }

    /// A number, as `"0x10"`, `16` or `"16"`.
    pub(super) fn number(&self, index: usize) -> Result<Option<u64>, RpcError> {
        Ok(self.optional::<U64>(index)?.map(|number| number.to()))
    }

    /// Hex bytes. Strict about the prefix, like geth.
    pub(super) fn bytes(&self, index: usize) -> Result<Bytes, RpcError> {
        let value = self.0.get(index).ok_or_else(|| missing(index))?;
        decode_hex(value).map_err(|error| invalid(index, error))
    }

    /// The block of a state query, by default the head.
    pub(super) fn block(&self, index: usize) -> Result<BlockId, RpcError> {
        Ok(self
            .optional(index)?
            .unwrap_or(BlockId::Number(BlockNumberOrTag::Latest)))
    }

    pub(super) fn hash(&self, index: usize) -> Result<B256, RpcError> {
        self.required(index)
    }
}

pub(super) fn decode_hex(value: &Value) -> Result<Bytes, String> {
    let text = value.as_str().ok_or("not a string")?;
    let digits = text
        .strip_prefix("0x")
        .ok_or("hex string without 0x prefix")?;
    hex::decode(digits)
        .map(Bytes::from)
        .map_err(|error| error.to_string())
}

pub(super) fn invalid(index: usize, error: impl std::fmt::Display) -> RpcError {
    RpcError::invalid_params(format!("invalid argument {index}: {error}"))
}

fn missing(index: usize) -> RpcError {
    RpcError::invalid_params(format!("missing value for required argument {index}"))
}
