//! JSON-RPC 2.0 encoding and decoding, tolerant of what nodes deviate in. No answer is trusted.
//!
//! Unused parts of an answer stay unparsed: a tree of them could take a hundred times their memory.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::limits::TEXT_CHARS_MAX;
use crate::classify::{NodeErrorKind, RpcError};

#[derive(Serialize)]
struct Frame<'a> {
    jsonrpc: &'static str,
    id: usize,
    method: &'a str,
    params: &'a Value,
}

#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct Answer<T> {
    #[serde(default, deserialize_with = "number")]
    id: Option<i64>,
    /// `null` is an answer ("there is no such block"), a missing field is not.
    #[serde(default, deserialize_with = "present")]
    result: Option<T>,
    error: Option<NodeError>,
}

/// The error object of an answer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct NodeError {
    #[serde(deserialize_with = "code")]
    pub(super) code: i64,
    #[serde(deserialize_with = "message")]
    pub(super) message: String,
    #[serde(deserialize_with = "data")]
    pub(super) data: ErrorData,
}

/// The parts of an error's data that this crate reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ErrorData {
    /// The bytes that an execution returned: the data itself, or one level deeper (hardhat, ganache).
    pub(super) returned: Option<String>,
    backoff_seconds: Option<f64>,
}

impl NodeError {
    pub(super) fn as_rpc_error(&self) -> RpcError<'_> {
        RpcError {
            code: self.code,
            message: &self.message,
        }
    }

    pub(super) fn kind(&self) -> NodeErrorKind {
        self.as_rpc_error().kind()
    }

    /// The backoff that the error requests (infura sends one).
    pub(super) fn requested_backoff(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.data.backoff_seconds?).ok()
    }

    pub(super) fn is_missing_method(&self) -> bool {
        self.as_rpc_error().is_missing_method()
    }

    pub(super) fn is_unknown_block(&self) -> bool {
        self.as_rpc_error().is_unknown_block()
    }
}

/// The outcome of one call: its result, or the node's error.
pub(super) type Outcome<T> = Result<T, NodeError>;

/// The answer to a batch.
pub(super) enum BatchAnswer<T> {
    /// In the order of the calls; `None` where the answer lacks one.
    Each(Vec<Option<Outcome<T>>>),
    /// One error for the whole batch.
    Refused(NodeError),
}

/// Why an answer cannot be decoded.
#[derive(Debug)]
pub(super) struct Malformed(pub(super) String);

/// Encodes one call as a request body.
pub(super) fn encode_single(method: &str, params: &Value) -> Vec<u8> {
    let frame = Frame {
        jsonrpc: "2.0",
        id: 0,
        method,
        params,
    };
    serde_json::to_vec(&frame).expect("JSON values always encode")
}

/// Encodes calls of one method as a request body, with ids from 0.
pub(super) fn encode_batch(method: &str, calls: &[Value]) -> Vec<u8> {
    let frame = |(id, params)| Frame {
        jsonrpc: "2.0",
        id,
        method,
        params,
    };
    let frames: Vec<Frame<'_>> = calls.iter().enumerate().map(frame).collect();
    serde_json::to_vec(&frames).expect("JSON values always encode")
}

/// Decodes the answer to one call.
pub(super) fn decode_single<T: DeserializeOwned>(body: &[u8]) -> Result<Outcome<T>, Malformed> {
    let answer: Answer<T> = parse(body)?;
    answer.outcome()
}

/// Decodes the answer to a batch of `count` calls. The entries may have any order.
pub(super) fn decode_batch<T: DeserializeOwned>(
    body: &[u8],
    count: usize,
) -> Result<BatchAnswer<T>, Malformed> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        return match decode_single::<IgnoredAny>(body)? {
            Ok(_) => Err(Malformed("one result for a batch".to_owned())),
            Err(error) => Ok(BatchAnswer::Refused(error)),
        };
    }
    let answers = parse_list(body, count)?;
    let mut each: Vec<Option<Outcome<T>>> = (0..count).map(|_| None).collect();
    for answer in answers {
        let index = answer.index();
        let outcome = answer.outcome()?;
        match (index.and_then(|index| each.get_mut(index)), outcome) {
            (Some(slot @ None), outcome) => *slot = Some(outcome),
            // geth answers an oversized batch with an array of one error.
            (_, Err(error)) if error.as_rpc_error().is_batch_refusal() => {
                return Ok(BatchAnswer::Refused(error));
            }
            (Some(Some(_)), _) => return Err(Malformed("two answers with one id".to_owned())),
            (None, _) => return Err(Malformed("an answer with an unknown id".to_owned())),
        }
    }
    if let Some(Some(Err(error))) = each.first()
        && each[1..].iter().all(Option::is_none)
        && error.as_rpc_error().is_batch_refusal()
    {
        return Ok(BatchAnswer::Refused(error.clone()));
    }
    Ok(BatchAnswer::Each(each))
}

impl<T> Answer<T> {
    /// The position of the answered call in the batch.
    fn index(&self) -> Option<usize> {
        usize::try_from(self.id?).ok()
    }

    fn outcome(self) -> Result<Outcome<T>, Malformed> {
        match (self.error, self.result) {
            (Some(error), _) => Ok(Err(error)),
            (None, Some(result)) => Ok(Ok(result)),
            (None, None) => Err(Malformed("neither result nor error".to_owned())),
        }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Malformed> {
    serde_json::from_slice(body).map_err(|error| Malformed(readable(&error.to_string())))
}

/// Parses at most `max` answers: more than were requested answer nothing and would only fill memory.
fn parse_list<T: DeserializeOwned>(body: &[u8], max: usize) -> Result<Vec<Answer<T>>, Malformed> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let list = List {
        max,
        of: PhantomData,
    };
    let answers = list.deserialize(&mut deserializer);
    answers
        .and_then(|answers| deserializer.end().map(|()| answers))
        .map_err(|error| Malformed(readable(&error.to_string())))
}

struct List<T> {
    max: usize,
    of: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> DeserializeSeed<'de> for List<T> {
    type Value = Vec<Answer<T>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: DeserializeOwned> Visitor<'de> for List<T> {
    type Value = Vec<Answer<T>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of answers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut answers = Vec::new();
        while let Some(answer) = list.next_element()? {
            if answers.len() == self.max {
                return Err(A::Error::custom("more answers than calls"));
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// A foreign text made safe to show: one line, of limited length.
pub(super) fn readable(text: &str) -> String {
    let mut chars = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = chars.by_ref().take(TEXT_CHARS_MAX).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The specification requires a number; anything else becomes 0.
fn code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    number(deserializer).map(Option::unwrap_or_default)
}

/// A number, also in quotes: some gateways turn numbers into strings.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?.get();
    Ok(raw.trim_matches('"').parse().ok())
}

fn message<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?.get();
    Ok(match serde_json::from_str::<String>(raw) {
        Ok(text) => readable(&text),
        Err(_) => readable(raw),
    })
}

fn data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ErrorData, D::Error> {
    #[derive(Deserialize)]
    struct Parts<'a> {
        #[serde(borrow)]
        data: Option<&'a RawValue>,
        #[serde(borrow)]
        result: Option<&'a RawValue>,
        #[serde(borrow)]
        rate: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Rate {
        backoff_seconds: f64,
    }
    fn read<T: DeserializeOwned>(raw: Option<&RawValue>) -> Option<T> {
        serde_json::from_str(raw?.get()).ok()
    }
    let raw = <&RawValue>::deserialize(deserializer)?;
    let mut data = ErrorData::default();
    if let Some(text) = read(Some(raw)) {
        data.returned = Some(text);
    } else if let Ok(parts) = serde_json::from_str::<Parts<'_>>(raw.get()) {
        data.returned = read(parts.data).or_else(|| read(parts.result));
        data.backoff_seconds = read(parts.rate).map(|rate: Rate| rate.backoff_seconds);
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(body: &str, count: usize) -> Result<BatchAnswer<Option<u64>>, Malformed> {
        decode_batch(body.as_bytes(), count)
    }

    #[test]
    fn null_is_a_result_and_a_missing_field_is_not() {
        let null: Outcome<Option<u64>> = decode_single(br#"{"id":0,"result":null}"#).unwrap();
        assert_eq!(null, Ok(None));
        for body in [
            "",
            "null",
            "[]",
            "{}",
            r#"{"id":0}"#,
            "<html>",
            r#"{"id":0,"result":"x"}"#,
        ] {
            assert!(
                decode_single::<Option<u64>>(body.as_bytes()).is_err(),
                "{body}"
            );
        }
        let deep = "[".repeat(100_000);
        assert!(decode_single::<Value>(deep.as_bytes()).is_err());
    }

    #[test]
    fn only_known_parts_of_error_data_are_kept() {
        let decode = |data: &str| {
            let body = format!(r#"{{"error":{{"data":{data}}}}}"#);
            decode_single::<Value>(body.as_bytes())
                .unwrap()
                .unwrap_err()
        };
        assert_eq!(
            decode(r#""0x08c3""#).data.returned.as_deref(),
            Some("0x08c3")
        );
        let nested = decode(
            r#"{"a":[{"b":0}],"data":"0x1","result":7,"rate":{"backoff_seconds":2.5,"c":1}}"#,
        );
        assert_eq!(
            nested.requested_backoff(),
            Some(Duration::from_millis(2_500))
        );
        assert_eq!(nested.data.returned.as_deref(), Some("0x1"));
        for strange in ["null", "7", "[{}]", r#"{"data":1,"data":2}"#] {
            assert_eq!(decode(strange).data, ErrorData::default(), "{strange}");
        }
        assert_eq!(decode(r#"{"rate":"x"}"#).requested_backoff(), None);
    }

    #[test]
    fn malformed_error_objects_are_decoded() {
        for (body, code, message) in [
            (
                r#"{"id":0,"error":{"code":-32000,"message":"no"}}"#,
                -32000,
                "no",
            ),
            (
                r#"{"id":null,"error":{"code":"-5","message":"a\nb"},"result":null}"#,
                -5,
                "a b",
            ),
            (r#"{"id":0,"error":{}}"#, 0, ""),
            (
                r#"{"id":0,"error":{"code":1.5,"message":{"why":1}}}"#,
                0,
                r#"{"why":1}"#,
            ),
        ] {
            let error = decode_single::<Value>(body.as_bytes())
                .unwrap()
                .unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (code, message));
        }
        let long = format!(r#"{{"error":{{"message":"{}"}}}}"#, "ä".repeat(10_000));
        let error = decode_single::<Value>(long.as_bytes())
            .unwrap()
            .unwrap_err();
        assert_eq!(error.message.chars().count(), TEXT_CHARS_MAX + 1);
    }

    #[test]
    fn batch_answers_are_ordered_and_gaps_are_none() {
        let body = r#" [{"id":2,"result":7},{"id":"0","error":{"message":"no"}}]"#;
        let BatchAnswer::Each(each) = batch(body, 3).unwrap() else {
            panic!("refused")
        };
        assert!(matches!(&each[0], Some(Err(error)) if error.message == "no"));
        assert!(each[1].is_none());
        assert_eq!(each[2], Some(Ok(Some(7))));
    }

    #[test]
    fn batch_refusal_differs_from_refused_calls() {
        for body in [
            r#"{"id":null,"error":{"code":-32600,"message":"batch requests are not supported"}}"#,
            r#"{"error":{"message":"invalid request"}}"#,
            r#"[{"id":0,"error":{"code":-32600,"message":"batch too large"}}]"#,
            r#"[{"id":null,"error":{"code":-32600,"message":"batch too large"}}]"#,
        ] {
            assert!(
                matches!(batch(body, 2), Ok(BatchAnswer::Refused(_))),
                "{body}"
            );
        }
        for body in [
            r#"{"id":0,"result":1}"#,
            r#"[{"id":0,"result":1},{"id":0,"result":2}]"#,
            r#"[{"id":9,"result":1}]"#,
            r#"[{"result":1}]"#,
            r#"[{"id":0,"result":1},{"id":1,"result":2},{"id":2,"result":3}]"#,
            r#"[{"id":0,"result":1}] 1"#,
            "[1]",
        ] {
            assert!(batch(body, 2).is_err(), "{body}");
        }
    }
}
