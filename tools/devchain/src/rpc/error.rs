//! JSON-RPC errors with geth's codes.

use alloy_primitives::Bytes;

use crate::error::StoreError;
use crate::miner::ControlError;
use crate::pool::Refusal;

#[derive(Debug, Clone)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Bytes>,
}

impl RpcError {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(super) fn parse() -> Self {
        Self::new(-32700, "parse error")
    }

    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(-32600, message)
    }

    pub(super) fn no_method(method: &str) -> Self {
        Self::new(
            -32601,
            format!("the method {method} does not exist/is not available"),
        )
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    /// The request was understood, and the answer is no.
    pub(super) fn server(message: impl Into<String>) -> Self {
        Self::new(-32000, message)
    }

    pub(super) fn answer_too_large() -> Self {
        Self::new(-32003, "response too large")
    }

    /// The code and text by which libraries detect that they must query fewer blocks.
    pub(super) fn too_many_logs(limit: usize) -> Self {
        Self::new(-32005, format!("query returned more than {limit} results"))
    }

    pub(super) fn reverted(message: String, output: Bytes) -> Self {
        Self {
            code: 3,
            message,
            data: Some(output),
        }
    }
}

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "dev chain cannot read its store");
        Self::new(-32603, format!("internal error: {error}"))
    }
}

impl From<Refusal> for RpcError {
    fn from(refusal: Refusal) -> Self {
        Self::server(refusal.to_string())
    }
}

impl From<ControlError> for RpcError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Refused(reason) => Self::server(reason),
            ControlError::Store(error) => error.into(),
            ControlError::Stopped => Self::server(error.to_string()),
        }
    }
}
