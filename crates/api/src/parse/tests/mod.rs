//! What the door refuses, and with which words; and that nothing makes it fall.

mod any;
mod header;
mod query;
mod tx;

use domain::{ChainId, Payload};
use engine::node::{NewTx, Origin};

use super::{Door, new_tx};
use crate::problem::{Problem, ProblemKind};

const SIGNER: &str = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
const TO: &str = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
const DOOR: Door<'static> = Door {
    key: None,
    only_chain: Some(ChainId(31_337)),
    origin: &NOBODY,
};
static NOBODY: Origin = Origin {
    caller: None,
    trace: None,
};

/// A body with these payload fields.
fn paying(fields: &str) -> String {
    format!(r#"{{"signer":"{SIGNER}","requestId":"r1","payload":{{{fields}}}}}"#)
}

/// A good body, but for this field.
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
    new_tx(body.as_bytes(), DOOR).unwrap_or_else(|problem| panic!("{body}: {problem}"))
}

fn payload(fields: &str) -> Payload {
    parsed(&paying(fields)).payload
}

#[track_caller]
fn refuses<T>(result: Result<T, Problem>, kind: ProblemKind, mention: &str, input: &str) {
    let Err(problem) = result else {
        panic!("{input} was accepted")
    };
    assert_eq!(problem.kind, kind, "{input}: {problem}");
    assert!(
        problem.detail.contains(mention),
        "{input}: {problem} does not mention {mention}"
    );
}

/// The cases of a table: on each line an input, ` => `, and what the refusal says.
fn table(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| {
        line.split_once(" => ")
            .expect("a line of a table has an arrow")
    })
}
