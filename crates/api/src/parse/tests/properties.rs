//! Properties: every input has a result, and no input panics.

use domain::{Address, U256};
use proptest::prelude::*;

use super::{CONTEXT, TO, body_with_payload};
use crate::parse::{
    Query, address, amount, chain_id, event_filter, hash, parse_batch, parse_new_tx, parse_wait,
    request_id, tx_id,
};

/// A valid body with random cuts and changes: it reaches deeper into the parser than random bytes.
fn mutated_body() -> impl Strategy<Value = Vec<u8>> {
    let base = body_with_payload(&format!(
        r#""to":"{TO}","value":"0x1","gas":"21000","type":2"#
    ))
    .into_bytes();
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (changes, any::<prop::sample::Index>(), any::<bool>()).prop_map(move |(changes, end, cut)| {
        let mut bytes = base.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        bytes
    })
}

proptest! {
    #[test]
    fn any_bytes_have_a_result(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        parse_new_tx(&bytes, CONTEXT).ok();
        parse_batch(&bytes, CONTEXT).ok();
    }

    #[test]
    fn mutated_body_has_a_result(bytes in mutated_body()) {
        parse_new_tx(&bytes, CONTEXT).ok();
    }

    #[test]
    fn any_text_has_a_result(text in "\\PC*") {
        address(&text).ok();
        hash(&text).ok();
        tx_id(&text).ok();
        chain_id(&text).ok();
        request_id(&text).ok();
        let pairs = format!("wait={text}&timeout={text}&limit={text}&after={text}&type={text}");
        for raw in [text, pairs] {
            let known = &["wait", "timeout", "limit", "after", "type"];
            if let Ok(query) = Query::parse(Some(&raw), known) {
                parse_wait(&query).ok();
                event_filter(&query).ok();
            }
        }
    }

    #[test]
    fn decimal_and_hex_are_equal(value in any::<[u64; 4]>()) {
        let value = U256::from_limbs(value);
        prop_assert_eq!(amount::u256(&value.to_string()), Ok(value));
        prop_assert_eq!(amount::u256(&format!("{value:#x}")), Ok(value));
    }

    #[test]
    fn every_address_parses_in_every_case(bytes in any::<[u8; 20]>()) {
        let account = Address::from(bytes);
        for text in [account.to_string(), format!("{account:#x}")] {
            prop_assert_eq!(address(&text), Ok(account));
        }
    }
}
