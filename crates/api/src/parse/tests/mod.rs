//! Which requests the parser assert_refused, and with which message.

mod header;
mod properties;
mod query;
mod tx;

use domain::{ChainId, Payload};
use engine::node::{NewTx, Origin};

use super::{RequestContext, parse_new_tx};
use crate::problem::{Problem, ProblemKind};

const SIGNER: &str = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
const TO: &str = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
const CONTEXT: RequestContext<'static> = RequestContext {
    key: None,
    only_chain: Some(ChainId(31_337)),
    origin: &NO_ORIGIN,
};
static NO_ORIGIN: Origin = Origin {
    caller: None,
    trace: None,
};

/// A body with these payload fields.
fn body_with_payload(fields: &str) -> String {
    format!(r#"{{"signer":"{SIGNER}","requestId":"r1","payload":{{{fields}}}}}"#)
}

/// A valid body except for this field.
fn with(field: &str) -> String {
    let (name, _) = field.split_once(':').unwrap();
    let good = [
        format!(r#""signer":"{SIGNER}""#),
        r#""requestId":"r1""#.to_owned(),
        format!(r#""payload":{{"to":"{TO}"}}"#),
    ];
    let rest = good
        .iter()
        .filter(|other| !other.starts_with(name))
        .map(String::as_str);
    format!("{{{}}}", rest.chain([field]).collect::<Vec<_>>().join(","))
}

fn parsed(body: &str) -> NewTx {
    parse_new_tx(body.as_bytes(), CONTEXT).unwrap_or_else(|problem| panic!("{body}: {problem}"))
}

fn payload(fields: &str) -> Payload {
    parsed(&body_with_payload(fields)).payload
}

#[track_caller]
fn assert_refused<T>(result: Result<T, Problem>, kind: ProblemKind, mention: &str, input: &str) {
    let Err(problem) = result else {
        panic!("{input} was accepted")
    };
    assert_eq!(problem.kind, kind, "{input}: {problem}");
    assert!(
        problem.detail.contains(mention),
        "{input}: {problem} does not mention {mention}"
    );
}

/// The cases of a table: on each line an input, ` => `, and a part of the message.
fn table(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| {
        line.split_once(" => ")
            .expect("a line of a table has an arrow")
    })
}
