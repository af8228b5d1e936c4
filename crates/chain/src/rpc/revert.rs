//! The reason of a reverted execution, from the returned bytes or from the node's text.

use alloy_sol_types::{Panic, Revert, SolError};

use super::wire::{NodeError, readable};
use crate::classify::RpcError;

/// Bytes of a custom error's arguments that are shown.
const ARGUMENT_BYTES_SHOWN: usize = 128;

/// The readable reason; `None` unless the error means that the execution failed.
pub(super) fn revert_reason(error: &NodeError) -> Option<String> {
    if !error.as_rpc_error().is_execution_failure() {
        return None;
    }
    let data = error.data.returned.as_deref().and_then(returned_bytes);
    Some(match data {
        Some(data) if !data.is_empty() => describe_data(&data),
        Some(_) | None => reason_from_message(error.as_rpc_error()),
    })
}

/// `Error(string)` and `Panic(uint256)` decoded, everything else by its selector.
fn describe_data(data: &[u8]) -> String {
    if let Ok(revert) = Revert::abi_decode(data) {
        return readable(&revert.reason);
    }
    if let Ok(panic) = Panic::abi_decode(data) {
        let meaning = panic.kind().map_or("unknown", |kind| kind.as_str());
        return format!("panic {:#04x}: {meaning}", panic.code);
    }
    let Some((selector, arguments)) = data.split_at_checked(4) else {
        return format!("returned 0x{}", hex::encode(data));
    };
    let selector = hex::encode(selector);
    if arguments.is_empty() {
        return format!("custom error 0x{selector}");
    }
    let shown = &arguments[..arguments.len().min(ARGUMENT_BYTES_SHOWN)];
    let is_whole = shown.len() == arguments.len();
    let (shown, more) = (hex::encode(shown), if is_whole { "" } else { "…" });
    format!("custom error 0x{selector} with 0x{shown}{more}")
}

/// The bytes that the execution returned, in hex; openethereum puts a word before them ("Reverted 0x…").
fn returned_bytes(text: &str) -> Option<Vec<u8>> {
    let (_, digits) = text.split_once("0x")?;
    hex::decode(digits.trim()).ok()
}

fn reason_from_message(error: RpcError<'_>) -> String {
    let bare = error.without_revert_prefix().trim_start_matches(':').trim();
    if bare.is_empty() {
        "no reason given".to_owned()
    } else {
        bare.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{U256, hex::ToHexExt};
    use serde_json::{Value, json};

    use super::*;

    fn error(code: i64, message: &str, data: Option<Value>) -> NodeError {
        let error = json!({ "code": code, "message": message, "data": data });
        serde_json::from_str(&error.to_string()).unwrap()
    }

    fn with_data(bytes: &[u8]) -> Option<String> {
        let data = Some(json!(format!("0x{}", bytes.encode_hex())));
        revert_reason(&error(3, "execution reverted", data))
    }

    #[test]
    fn returned_bytes_are_described() {
        let reason = Revert::from("not enough").abi_encode();
        assert_eq!(with_data(&reason).unwrap(), "not enough");
        let panic = Panic {
            code: U256::from(0x11),
        }
        .abi_encode();
        assert_eq!(
            with_data(&panic).unwrap(),
            "panic 0x11: arithmetic underflow or overflow"
        );
        let strange = Panic {
            code: U256::from(0x77),
        }
        .abi_encode();
        assert_eq!(with_data(&strange).unwrap(), "panic 0x77: unknown");
        assert_eq!(
            with_data(&[0xe4, 0x50, 0xd3, 0x8c]).unwrap(),
            "custom error 0xe450d38c"
        );
        let custom = [&[0xe4, 0x50, 0xd3, 0x8c][..], &[1; 200]].concat();
        let text = with_data(&custom).unwrap();
        assert!(text.starts_with("custom error 0xe450d38c with 0x0101") && text.ends_with('…'));
        assert_eq!(with_data(&[1, 2]).unwrap(), "returned 0x0102");
        assert_eq!(with_data(&[]).unwrap(), "no reason given");
        // A length that points outside must not be followed.
        let mut broken = reason;
        broken[67] = 0xff;
        assert!(
            with_data(&broken)
                .unwrap()
                .starts_with("custom error 0x08c379a0")
        );
    }

    #[test]
    fn reason_is_found_in_the_format_of_every_client() {
        let hex = format!("0x{}", Revert::from("not enough").abi_encode().encode_hex());
        let cases = [
            error(3, "execution reverted: not enough", Some(json!(hex))), // geth, reth, anvil
            error(-32000, "execution reverted: not enough", None),        // geth, old
            error(-32000, "Execution reverted", Some(json!(hex))),        // besu
            error(
                -32015,
                "VM execution error.",
                Some(json!(format!("Reverted {hex}"))),
            ), // openethereum
            error(
                -32603,
                "Error: VM Exception: reverted",
                Some(json!({ "data": hex })),
            ), // hardhat
            error(
                -32000,
                "VM Exception: revert",
                Some(json!({ "result": hex })),
            ), // ganache
        ];
        for case in cases {
            assert_eq!(
                revert_reason(&case).as_deref(),
                Some("not enough"),
                "{case:?}"
            );
        }
        let halted = error(-32603, "EVM error InvalidFEOpcode", None); // anvil
        assert_eq!(
            revert_reason(&halted).as_deref(),
            Some("EVM error InvalidFEOpcode")
        );
        assert_eq!(
            revert_reason(&error(-32000, "insufficient funds for transfer", None)),
            None
        );
        assert_eq!(
            revert_reason(&error(
                -32000,
                "header not found",
                Some(json!("0x08c379a0"))
            )),
            None
        );
    }
}
