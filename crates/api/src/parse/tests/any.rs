//! Whatever comes, there is an answer.

use domain::{Address, U256};
use proptest::prelude::*;

use super::{DOOR, TO, paying};
use crate::parse::{
    Query, address, amount, batch, chain_id, event_filter, hash, new_tx, request_id, tx_id, wait,
};

/// A valid body, cut and stirred: closer to the code than bytes of pure chance.
fn stirred() -> impl Strategy<Value = Vec<u8>> {
    let base = paying(&format!(
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
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        new_tx(&bytes, DOOR).ok();
        batch(&bytes, DOOR).ok();
    }

    #[test]
    fn a_stirred_body_is_answered(bytes in stirred()) {
        new_tx(&bytes, DOOR).ok();
    }

    #[test]
    fn any_texts_are_answered(text in "\\PC*") {
        address(&text).ok();
        hash(&text).ok();
        tx_id(&text).ok();
        chain_id(&text).ok();
        request_id(&text).ok();
        let pairs = format!("wait={text}&timeout={text}&limit={text}&after={text}&type={text}");
        for raw in [text, pairs] {
            let known = &["wait", "timeout", "limit", "after", "type"];
            if let Ok(query) = Query::read(Some(&raw), known) {
                wait(&query).ok();
                event_filter(&query).ok();
            }
        }
    }

    #[test]
    fn decimal_and_hex_mean_the_same(value in any::<[u64; 4]>()) {
        let value = U256::from_limbs(value);
        prop_assert_eq!(amount::u256(&value.to_string()), Ok(value));
        prop_assert_eq!(amount::u256(&format!("{value:#x}")), Ok(value));
    }

    #[test]
    fn every_address_is_read_in_every_case(bytes in any::<[u8; 20]>()) {
        let account = Address::from(bytes);
        for text in [account.to_string(), format!("{account:#x}")] {
            prop_assert_eq!(address(&text), Ok(account));
        }
    }
}
