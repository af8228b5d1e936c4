//! Query strings.

use domain::ChainId;
use engine::node::WaitFor;

use super::{assert_refused, table};
use crate::parse::{Query, event_filter, parse_wait, tx_filter};
use crate::problem::ProblemKind::{InvalidCursor, InvalidQuery};

#[test]
fn invalid_queries_are_refused() {
    const KNOWN: &[&str] = &[
        "chainId", "signer", "state", "type", "limit", "cursor", "after", "wait", "timeout",
    ];
    let read = |raw: &str| {
        let query = Query::parse(Some(raw), KNOWN)?;
        tx_filter(&query)?;
        event_filter(&query)?;
        parse_wait(&query)?;
        Ok(())
    };
    let bad = r"
        lmit=1 => lmit
        limit=1&limit=1 => `limit` is there twice
        limit => `limit` must be a number from 1 to 1000
        limit=0 => `limit`
        limit=1001 => `limit`
        limit=-1 => `limit`
        limit=%2B5 => `limit`
        limit=99999999999999999999 => `limit`
        limit=% => percent
        limit=%zz => percent
        after=%ff => percent
        chainId=0x1 => `chainId` must be a chain id
        chainId=+1 => `chainId`
        signer=0x12 => `signer` must be an address
        state=created => `state` must be one of CREATED
        type=TxAccepted,Nope => `type` must name event types
        type= => `type`
        wait=finalized => `wait` must be accepted, submitted
        timeout=30 => `timeout` must be a duration
        timeout=s => `timeout` must be a duration
        timeout=1h => `timeout` must be a duration
        timeout=-1s => `timeout` must be a duration
        timeout=1.5s => `timeout` must be a duration
        timeout=121s => `timeout` is too long
        timeout=3m => `timeout` is too long
        timeout=99999999999999999999s => `timeout` is too long
    ";
    for (raw, mention) in table(bad) {
        assert_refused(read(raw), InvalidQuery, mention, raw);
    }
    for (raw, mention) in table(
        "cursor=5 => `cursor`
        cursor= => `cursor`
        after= => `after`
        after=a%0Ab => `after`",
    ) {
        assert_refused(read(raw), InvalidCursor, mention, raw);
    }
    let long = format!("after={}", "x".repeat(257));
    assert_refused(read(&long), InvalidCursor, "`after`", &long);
}

#[test]
fn valid_queries_are_parsed() {
    const KNOWN: &[&str] = &["type", "limit", "after", "wait", "timeout", "chainId"];
    let raw = "&type=TxConfirmed%2CTxFailed,TxFailed&limit=1000&after=a%3Ab&chainId=1&";
    let filter = event_filter(&Query::parse(Some(raw), KNOWN).unwrap()).unwrap();
    assert_eq!(filter.kinds, ["TxConfirmed", "TxFailed"]);
    assert_eq!(
        (filter.limit, filter.after.as_deref()),
        (1_000, Some("a:b"))
    );
    assert_eq!(filter.chain_id, Some(ChainId(1)));

    let waits = |raw| parse_wait(&Query::parse(raw, KNOWN).unwrap()).unwrap();
    let none = waits(None);
    assert_eq!(
        (none.until, none.timeout.as_secs()),
        (WaitFor::Accepted, 30)
    );
    for (raw, ms) in [
        ("timeout=500ms", 500),
        ("timeout=2m", 120_000),
        ("timeout=0s", 0),
    ] {
        assert_eq!(waits(Some(raw)).timeout.as_millis(), ms);
    }
    assert_eq!(waits(Some("wait=mined")).until, WaitFor::Mined);
}
