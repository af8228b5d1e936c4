//! Why an execution reverted: the returned bytes in words, wherever a node puts them.

use alloy_sol_types::{Panic, Revert, SolError};
use serde_json::Value;

use super::wire::{NodeError, readable};

/// Geth's code for a reverted execution.
const CODE_REVERTED: i64 = 3;
/// Bytes of a custom error's arguments that are shown.
const ARGUMENT_BYTES_SHOWN: usize = 128;

/// The reason in words, when the error says that the execution failed.
pub(super) fn reason(error: &NodeError) -> Option<String> {
    let data = error.data.as_ref().and_then(returned);
    let text = error.message.to_lowercase();
    let failed = error.code == CODE_REVERTED
        || text.contains("revert")
        || text.contains("vm execution error") // openethereum
        || text.starts_with("evm error") // anvil, of what halts
        || text.contains("invalid opcode")
        || text.contains("out of gas");
    match data {
        Some(data) if failed && !data.is_empty() => Some(in_words(&data)),
        _ if failed => Some(from_message(&error.message)),
        _ => None,
    }
}

/// `Error(string)` and `Panic(uint256)` in words, everything else by its selector.
fn in_words(data: &[u8]) -> String {
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
    let more = if shown.len() < arguments.len() {
        "…"
    } else {
        ""
    };
    format!(
        "custom error 0x{selector} with 0x{}{more}",
        hex::encode(shown)
    )
}

/// The bytes that the execution returned. Clients put them into `data` as hex, behind a word
/// ("Reverted 0x…", openethereum), or one level deeper (hardhat, ganache).
fn returned(data: &Value) -> Option<Vec<u8>> {
    let text = data
        .as_str()
        .or_else(|| data.get("data")?.as_str())
        .or_else(|| data.get("result")?.as_str())?;
    let (_, digits) = text.split_once("0x")?;
    hex::decode(digits.trim()).ok()
}

fn from_message(message: &str) -> String {
    let bare = message
        .strip_prefix("execution reverted")
        .or_else(|| message.strip_prefix("Execution reverted"))
        .unwrap_or(message)
        .trim_start_matches(':')
        .trim();
    if bare.is_empty() {
        "no reason given".to_owned()
    } else {
        bare.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{U256, hex::ToHexExt};
    use serde_json::json;

    use super::*;

    fn error(code: i64, message: &str, data: Option<Value>) -> NodeError {
        NodeError {
            code,
            message: message.to_owned(),
            data,
        }
    }

    fn with_data(bytes: &[u8]) -> Option<String> {
        let data = Some(json!(format!("0x{}", bytes.encode_hex())));
        reason(&error(3, "execution reverted", data))
    }

    #[test]
    fn returned_bytes_in_words() {
        let said = Revert::from("not enough").abi_encode();
        assert_eq!(with_data(&said).unwrap(), "not enough");
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
        let words = with_data(&custom).unwrap();
        assert!(words.starts_with("custom error 0xe450d38c with 0x0101") && words.ends_with('…'));
        assert_eq!(with_data(&[1, 2]).unwrap(), "returned 0x0102");
        assert_eq!(with_data(&[]).unwrap(), "no reason given");
        // A length that points outside must not be followed.
        let mut broken = said;
        broken[67] = 0xff;
        assert!(
            with_data(&broken)
                .unwrap()
                .starts_with("custom error 0x08c379a0")
        );
    }

    #[test]
    fn every_client_is_understood() {
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
            assert_eq!(reason(&case).as_deref(), Some("not enough"), "{case:?}");
        }
        let halted = error(-32603, "EVM error InvalidFEOpcode", None); // anvil
        assert_eq!(
            reason(&halted).as_deref(),
            Some("EVM error InvalidFEOpcode")
        );
        assert_eq!(
            reason(&error(-32000, "insufficient funds for transfer", None)),
            None
        );
        assert_eq!(
            reason(&error(
                -32000,
                "header not found",
                Some(json!("0x08c379a0"))
            )),
            None
        );
    }
}
