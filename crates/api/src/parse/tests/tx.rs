//! Requests and batches.

use domain::{Address, ChainId, TxType, U256};

use super::*;
use crate::parse::parse_batch;
use crate::problem::ProblemKind::{
    GasAboveLimit, InvalidField, InvalidHeader, InvalidJson, TypeNotSupported,
};

#[test]
fn full_request_is_parsed() {
    let body = format!(
        r#"{{"chainId":1,"signer":"{SIGNER}","requestId":"payout-7","payload":{{"to":"{TO}",
        "value":"0xde0b6b3a7640000","data":"0x00ff","gas":"50000","maxFeePerGas":"3000000000",
        "maxPriorityFeePerGas":"1","gasPrice":null,"type":"0x2"}}}}"#
    );
    let request = parsed(&body);
    assert_eq!(request.lane.chain_id, ChainId(1));
    assert_eq!(request.lane.signer.to_string(), SIGNER);
    assert_eq!(request.request_id.as_str(), "payout-7");
    let payload = request.payload;
    assert_eq!(
        payload.to.map(|to| to.to_string().to_lowercase()),
        Some(TO.to_owned())
    );
    assert_eq!(payload.value, U256::from(10_u64.pow(18)));
    assert_eq!(payload.data.as_ref(), [0, 255]);
    assert_eq!(payload.gas, Some(50_000));
    assert_eq!(payload.max_fee_per_gas, Some(3_000_000_000));
    assert_eq!(payload.max_priority_fee_per_gas, Some(1));
    assert_eq!(
        (payload.gas_price, payload.tx_type),
        (None, Some(TxType::Eip1559))
    );
}

#[test]
fn bodies_that_are_not_a_request_are_refused() {
    let invalid_json = r#"
        { => line 1
        hello => JSON
        {} {} => trailing
        {"signer":"\ud800"} => JSON
        {"chainId":1e999} => number out of range
        {"chainId":01} => JSON
        {"a":NaN} => JSON
        {"txs":[} => JSON
    "#;
    for (body, mention) in table(invalid_json) {
        assert_refused(
            parse_new_tx(body.as_bytes(), CONTEXT),
            InvalidJson,
            mention,
            body,
        );
    }
    assert_refused(parse_new_tx(b"", CONTEXT), InvalidJson, "JSON", "nothing");
    assert_refused(
        parse_new_tx(b"{\"signer\":\"\xff\"}", CONTEXT),
        InvalidJson,
        "JSON",
        "no UTF-8",
    );
    let no_request = r#"
        null => the body must be an object
        [] => the body must be an object, not an array
        7 => the body must be an object, not a number
        "text" => the body must be an object, not a string
        {} => `signer` is missing
        {"from":"0x1"} => `from` is not a field here
        {"Signer":"0x1"} => `Signer` is not a field here
        {"nonce":{"a":[{}]}} => known fields are chainId, signer
        {"signer":"0x1","signer":"0x2"} => `signer` is there twice
        {"payload":{},"payload":{}} => `payload` is there twice
    "#;
    for (body, mention) in table(no_request) {
        assert_refused(
            parse_new_tx(body.as_bytes(), CONTEXT),
            InvalidField,
            mention,
            body,
        );
    }
    let deep = format!(
        r#"{{"signer":{}{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_refused(
        parse_new_tx(deep.as_bytes(), CONTEXT),
        InvalidField,
        "`signer` must be an address",
        "deep",
    );
}

#[test]
fn invalid_lanes_and_request_ids_are_refused() {
    let cases = r#"
        "chainId":"31337" => `chainId` must be a number, such as 31337, not a string
        "chainId":-1 => `chainId` must be a whole
        "chainId":1.5 => `chainId` must be a whole
        "chainId":18446744073709551616 => `chainId` must be a whole
        "chainId":true => `chainId` must be a number, such as 31337, not a boolean
        "chainId":{} => `chainId` must be a number
        "signer":5 => `signer` must be an address as a string, not a number
        "signer":null => `signer` is missing
        "signer":"" => `signer` must be an address, 0x and 40 hex digits
        "signer":"vitalik.eth" => `signer` must be an address
        "signer":"0x12" => `signer` must be an address
        "signer":"f39fd6e51aad88f6f4ce6ab8827279cfffb92266" => `signer` must be an address
        "signer":"0Xf39fd6e51aad88f6f4ce6ab8827279cfffb92266" => `signer` must be an address
        "signer":"0x0x9fd6e51aad88f6f4ce6ab8827279cfffb92266" => `signer` must be an address
        "signer":"0xf39fd6e51aad88f6f4ce6ab8827279cfffb922660" => `signer` must be an address
        "signer":"0xF39fd6e51aad88F6F4ce6aB8827279cffFb92266" => `signer` has a wrong EIP-55
        "requestId":7 => `requestId` must be a string, not a number
        "requestId":null => `requestId` is missing
        "requestId":"" => `requestId` must be 1 to 128
        "requestId":"two words" => `requestId` must be 1 to 128
        "requestId":"naïve" => `requestId` must be 1 to 128
        "requestId":"a\u0000b" => `requestId` must be 1 to 128
        "payload":null => `payload` must be an object, not null
        "payload":[] => `payload` must be an object, not an array
        "payload":"0x" => `payload` must be an object, not a string
    "#;
    for (field, mention) in table(cases) {
        assert_refused(
            parse_new_tx(with(field).as_bytes(), CONTEXT),
            InvalidField,
            mention,
            field,
        );
    }
    let long = with(&format!(r#""requestId":"{}""#, "x".repeat(129)));
    assert_refused(
        parse_new_tx(long.as_bytes(), CONTEXT),
        InvalidField,
        "`requestId` must be 1 to 128",
        &long,
    );
    let body = body_with_payload(&format!(r#""to":"{TO}""#));
    let several = RequestContext {
        key: None,
        only_chain: None,
        ..CONTEXT
    };
    assert_refused(
        parse_new_tx(body.as_bytes(), several),
        InvalidField,
        "`chainId` is missing",
        &body,
    );
    let body = format!(r#"{{"signer":"{SIGNER}","requestId":"r1"}}"#);
    assert_refused(
        parse_new_tx(body.as_bytes(), CONTEXT),
        InvalidField,
        "`payload` is missing",
        &body,
    );
}

#[test]
fn invalid_payloads_are_refused() {
    let without_to = r#"
        "data":"0x" => `payload.to` is missing
        "to":null,"value":"1" => `payload.to` is missing
        "to":"0x0" => `payload.to` must be an address
        "to":[] => `payload.to` must be an address as a string, not an array
        "gasLimit":"1" => `payload.gasLimit` is not a field here
        "value":"1","value":"1" => `payload.value` is there twice
    "#;
    for (fields, mention) in table(without_to) {
        assert_refused(
            parse_new_tx(body_with_payload(fields).as_bytes(), CONTEXT),
            InvalidField,
            mention,
            fields,
        );
    }
    assert_refused(
        parse_new_tx(body_with_payload("").as_bytes(), CONTEXT),
        InvalidField,
        "`payload.to` is missing",
        "{}",
    );
    for (fields, mention) in table(BAD_PAYLOADS) {
        let body = body_with_payload(&format!(r#""to":"{TO}",{fields}"#));
        assert_refused(
            parse_new_tx(body.as_bytes(), CONTEXT),
            InvalidField,
            mention,
            fields,
        );
    }
    for (name, value, mention) in [
        (
            "data",
            format!("0x{}", "00".repeat(128 * 1024 + 1)),
            "`payload.data` has 131073 bytes",
        ),
        (
            "value",
            format!("0x1{}", "0".repeat(64)),
            "`payload.value` is too large",
        ),
        ("value", "9".repeat(400_000), "`payload.value` is too large"),
        (
            "maxFeePerGas",
            format!("0x1{}", "0".repeat(32)),
            "`payload.maxFeePerGas` is too large",
        ),
    ] {
        let body = body_with_payload(&format!(r#""to":"{TO}","{name}":"{value}""#));
        assert_refused(
            parse_new_tx(body.as_bytes(), CONTEXT),
            InvalidField,
            mention,
            name,
        );
    }
}

const BAD_PAYLOADS: &str = r#"
    "value":1 => `payload.value` must be a string with a whole amount
    "value":1.5 => `payload.value` must be a string
    "value":true => `payload.value` must be a string
    "value":{} => `payload.value` must be a string
    "value":"" => `payload.value` must be a whole
    "value":"-1" => `payload.value` must be a whole
    "value":"+1" => `payload.value` must be a whole
    "value":" 1" => `payload.value` must be a whole
    "value":"1.0" => `payload.value` must be a whole
    "value":"1e18" => `payload.value` must be a whole
    "value":"1_000" => `payload.value` must be a whole
    "value":"ff" => `payload.value` must be a whole
    "value":"0xfg" => `payload.value` must be a whole
    "value":"0X1" => `payload.value` must be a whole
    "value":"１" => `payload.value` must be a whole
    "value":"0x" => `payload.value` has no digits after 0x
    "value":"007" => `payload.value` must not start with 0
    "data":"00" => `payload.data` must start with 0x
    "data":"0x0" => `payload.data` has an odd number
    "data":"0xzz" => `payload.data` must have hex digits only
    "data":"0x0x00" => `payload.data` must have hex digits only
    "data":17 => `payload.data` must be a string
    "gas":21000 => `payload.gas` must be a string
    "gas":"0x10000000000000000" => `payload.gas` is too large
    "maxFeePerGas":"a" => `payload.maxFeePerGas` must be
    "maxPriorityFeePerGas":1 => `payload.maxPriorityFeePerGas` must be
    "gasPrice":"" => `payload.gasPrice` must be
    "maxFeePerGas":"1","maxPriorityFeePerGas":"2" => `payload.maxPriorityFeePerGas` is 2, above
    "gasPrice":"1","maxFeePerGas":"1" => `payload.gasPrice` cannot be combined with
    "gasPrice":"1","maxPriorityFeePerGas":"1" => `payload.gasPrice` cannot be combined with
    "type":"0x0","maxFeePerGas":"1" => `payload.type` "0x0" cannot be combined with
    "type":2,"gasPrice":"1" => `payload.type` "0x2" cannot be combined with
    "type":"0x80" => `payload.type` is not supported
    "type":"1" => `payload.type` is not supported
    "type":"legacy" => `payload.type` is not supported
    "type":true => `payload.type` is not supported
"#;

#[test]
fn what_no_chain_executes_has_the_problem_of_its_own_kind() {
    let cases = [
        (
            r#""gas":"1099511627777""#,
            GasAboveLimit,
            "`payload.gas` is 1099511627777, but at most",
        ),
        (
            r#""type":"0x1""#,
            TypeNotSupported,
            "`payload.type` is not supported: use \"0x2\"",
        ),
        (
            r#""type":3"#,
            TypeNotSupported,
            "`payload.type` is not supported",
        ),
        (
            r#""type":127"#,
            TypeNotSupported,
            "`payload.type` is not supported",
        ),
    ];
    for (fields, kind, mention) in cases {
        let body = body_with_payload(&format!(r#""to":"{TO}",{fields}"#));
        assert_refused(
            parse_new_tx(body.as_bytes(), CONTEXT),
            kind,
            mention,
            fields,
        );
    }
}

/// What is too little depends on the chain, and is decided after a known request has got its answer.
#[test]
fn gas_has_no_least_amount_in_a_body() {
    for gas in ["0", "20999"] {
        let parsed = payload(&format!(r#""to":"{TO}","data":"0x01","gas":"{gas}""#));
        assert_eq!(parsed.gas, gas.parse().ok());
    }
}

#[test]
fn equal_payloads_have_equal_fingerprints() {
    let upper = format!("0x{}", TO[2..].to_uppercase());
    let checked = TO.parse::<Address>().unwrap().to_string();
    let base = payload(&format!(
        r#""to":"{TO}","value":"1","gas":"0x5208","type":"0x02""#
    ));
    for fields in [
        format!(r#""to":"{upper}","value":"0x1","gas":"21000","type":"0x2""#),
        format!(r#""to":"{checked}","value":"0x0001","gas":"0x05208","type":"0x2""#),
        format!(r#""type":2,"gas":"21000","data":"0x","value":"1","to":"{TO}","gasPrice":null"#),
    ] {
        assert_eq!(
            payload(&fields).fingerprint(),
            base.fingerprint(),
            "{fields}"
        );
    }
    let other = payload(&format!(
        r#""to":"{TO}","value":"2","gas":"21000","type":2"#
    ));
    assert_ne!(other.fingerprint(), base.fingerprint());
    let without_type = payload(&format!(r#""to":"{TO}","value":"1","gas":"21000""#));
    assert_ne!(without_type.fingerprint(), base.fingerprint());
}

#[test]
fn bounds_are_inclusive() {
    let all = format!(
        r#""to":"{TO}","value":"{}","gas":"{}""#,
        U256::MAX,
        1_u64 << 40
    );
    assert_eq!(payload(&all).value, U256::MAX);
    let most = format!(r#""to":"{TO}","data":"0x{}""#, "ab".repeat(128 * 1024));
    assert_eq!(payload(&most).data.len(), 128 * 1024);
    let fees = format!(
        r#""to":"{TO}","maxFeePerGas":"{0}","maxPriorityFeePerGas":"{0}""#,
        u128::MAX
    );
    assert_eq!(payload(&fees).max_fee_per_gas, Some(u128::MAX));
    assert_eq!(payload(r#""data":"0x60""#).to, None);
}

#[test]
fn idempotency_key_is_read_from_the_header() {
    let without = format!(r#"{{"signer":"{SIGNER}","payload":{{"to":"{TO}"}}}}"#);
    let with = |key| RequestContext {
        key: Some(key),
        ..CONTEXT
    };
    assert_eq!(
        parse_new_tx(without.as_bytes(), with("k"))
            .unwrap()
            .request_id
            .as_str(),
        "k"
    );
    let body = body_with_payload(&format!(r#""to":"{TO}""#));
    assert_eq!(
        parse_new_tx(body.as_bytes(), with("r1"))
            .unwrap()
            .request_id
            .as_str(),
        "r1"
    );
    assert_refused(
        parse_new_tx(body.as_bytes(), with("r2")),
        InvalidHeader,
        "Idempotency-Key",
        "differ",
    );
    assert_refused(
        parse_new_tx(without.as_bytes(), with("a b")),
        InvalidHeader,
        "Idempotency-Key",
        "space",
    );
}

#[test]
fn invalid_item_does_not_fail_the_others() {
    let good = body_with_payload(&format!(r#""to":"{TO}""#));
    let body = format!(
        r#"{{"txs":[{good},7,{{"what":1}},{},{good}]}}"#,
        body_with_payload(r#""to":"x""#)
    );
    let items = parse_batch(body.as_bytes(), CONTEXT).unwrap();
    let details: Vec<_> = items
        .iter()
        .map(|item| item.as_ref().err().map(|problem| &*problem.detail))
        .collect();
    assert_eq!(details.len(), 5);
    assert_eq!((details[0], details[4]), (None, None));
    assert!(
        details[1]
            .unwrap()
            .starts_with("`txs[1]` must be an object")
    );
    assert!(
        details[2]
            .unwrap()
            .starts_with("`txs[2].what` is not a field")
    );
    assert!(
        details[3]
            .unwrap()
            .starts_with("`txs[3].payload.to` must be an address")
    );

    assert_eq!(parse_batch(br#"{"txs":[]}"#, CONTEXT).unwrap().len(), 0);
    let full = format!(r#"{{"txs":[{}]}}"#, vec![good.as_str(); 500].join(","));
    assert_eq!(parse_batch(full.as_bytes(), CONTEXT).unwrap().len(), 500);
    let over = format!(r#"{{"txs":[{}]}}"#, vec!["1"; 501].join(","));
    for (body, kind, mention) in [
        (over.as_str(), InvalidField, "`txs` has 501 items"),
        ("{}", InvalidField, "`txs` is missing"),
        (
            r#"{"txs":{}}"#,
            InvalidField,
            "`txs` must be an array, not an object",
        ),
        (
            r#"{"txs":[],"txs":[]}"#,
            InvalidField,
            "`txs` is there twice",
        ),
        (
            r#"{"txs":[],"wait":"mined"}"#,
            InvalidField,
            "`wait` is not a field",
        ),
        ("[]", InvalidField, "the body must be an object"),
        (r#"{"txs":[}"#, InvalidJson, "JSON"),
    ] {
        assert_refused(parse_batch(body.as_bytes(), CONTEXT), kind, mention, body);
    }
}

#[test]
fn value_that_no_type_holds_fails_only_its_item() {
    let good = body_with_payload(&format!(r#""to":"{TO}""#));
    let digits = "9".repeat(400);
    for value in ["1e400", r#""\ud800""#, &digits] {
        let bad = body_with_payload(&format!(r#""to":"{TO}","gas":{value}"#));
        let body = format!(r#"{{"txs":[{good},{bad},{good}]}}"#);
        let items = parse_batch(body.as_bytes(), CONTEXT).unwrap();
        assert!(items[0].is_ok() && items[2].is_ok(), "{value}");
        let problem = items[1].as_ref().unwrap_err();
        assert_eq!(problem.kind, InvalidField, "{value}: {problem}");
        assert!(problem.detail.starts_with("`txs[1]"), "{problem}");
    }
}

#[test]
fn problem_points_to_the_value() {
    let pointer = |body: &str| {
        let problem = parse_new_tx(body.as_bytes(), CONTEXT).unwrap_err();
        let error = problem.field_error.expect("a field is wrong");
        assert!(problem.detail.ends_with(&error.rule), "{}", problem.detail);
        error.pointer
    };
    assert_eq!(pointer(&body_with_payload(r#""gas":"x""#)), "/payload/gas");
    assert_eq!(pointer(&body_with_payload(r#""a/b":1"#)), "/payload/a~1b");
    assert_eq!(pointer("[]"), "");
    let escaped = body_with_payload(r#""a\u001b[2J\n":1"#);
    let problem = parse_new_tx(escaped.as_bytes(), CONTEXT).unwrap_err();
    assert!(!problem.detail.contains(char::is_control), "{problem}");
}

#[test]
fn long_texts_are_not_repeated_in_messages() {
    let body = body_with_payload(&format!(r#""{}":1"#, "ä".repeat(10_000)));
    assert!(
        parse_new_tx(body.as_bytes(), CONTEXT)
            .unwrap_err()
            .detail
            .len()
            < 500
    );
    let body = body_with_payload(&format!(r#""to":"{}""#, "ö".repeat(10_000)));
    assert!(
        parse_new_tx(body.as_bytes(), CONTEXT)
            .unwrap_err()
            .detail
            .len()
            < 500
    );
}
