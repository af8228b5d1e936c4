//! JSON-RPC 2.0 as nodes really speak it: frames out, answers in. Nothing here trusts an answer.
//!
//! What is not needed of an answer stays text: a tree of it could take a hundred times its memory.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::limits::TEXT_CHARS_MAX;
use crate::classify::Complaint;

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

/// What a node says instead of a result.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct NodeError {
    #[serde(deserialize_with = "code")]
    pub(super) code: i64,
    #[serde(deserialize_with = "message")]
    pub(super) message: String,
    /// Only what somebody looks at: see [`data`].
    #[serde(deserialize_with = "data")]
    pub(super) data: Option<Value>,
}

impl NodeError {
    /// For the table of node errors.
    pub(super) fn complaint(&self) -> Complaint<'_> {
        Complaint {
            code: self.code,
            message: &self.message,
        }
    }

    /// For how long the endpoint wants to be left alone, where the error tells (infura does).
    pub(super) fn back_off(&self) -> Option<Duration> {
        let seconds = self.data.as_ref()?.get("rate")?.get("backoff_seconds")?;
        Duration::try_from_secs_f64(seconds.as_f64()?).ok()
    }

    /// Whether the node does not have the method (or not with these parameters).
    pub(super) fn is_missing_method(&self) -> bool {
        const TEXTS: [&str; 6] = [
            "method not found",
            "does not exist/is not available", // geth
            "method not supported",
            "unsupported method",
            "is not supported",
            "not implemented",
        ];
        let text = self.message.to_lowercase();
        [-32601, -32602].contains(&self.code) || TEXTS.iter().any(|known| text.contains(known))
    }

    /// Whether the node does not know the block that was asked for.
    pub(super) fn is_unknown_block(&self) -> bool {
        const TEXTS: [&str; 5] = [
            "unknown block",
            "block not found",
            "header not found",
            "could not be found",        // nethermind
            "header for hash not found", // erigon, old geth
        ];
        let text = self.message.to_lowercase();
        TEXTS.iter().any(|known| text.contains(known))
    }

    /// Whether the complaint is about the batch and not about a call in it.
    pub(super) fn is_about_batches(&self) -> bool {
        self.message.to_lowercase().contains("batch")
    }
}

/// What came of one call: its result, or the node's error.
pub(super) type Outcome<T> = Result<T, NodeError>;

/// The answer to a batch.
pub(super) enum BatchAnswer<T> {
    /// In the order of the calls; `None` where the node left one out.
    Each(Vec<Option<Outcome<T>>>),
    /// One error for all of them.
    Refused(NodeError),
}

/// An answer that is not one, with the reason.
#[derive(Debug)]
pub(super) struct Malformed(pub(super) String);

/// One call as the body of a request.
pub(super) fn encode_single(method: &str, params: &Value) -> Vec<u8> {
    let frame = Frame {
        jsonrpc: "2.0",
        id: 0,
        method,
        params,
    };
    serde_json::to_vec(&frame).expect("JSON values always encode")
}

/// Calls of one method as the body of a request, numbered from 0.
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

/// Reads the answer to one call.
pub(super) fn decode_single<T: DeserializeOwned>(body: &[u8]) -> Result<Outcome<T>, Malformed> {
    let answer: Answer<T> = parse(body)?;
    answer.outcome()
}

/// Reads the answer to a batch of `count` calls. Answers may come in any order.
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
            (_, Err(error)) if error.is_about_batches() => return Ok(BatchAnswer::Refused(error)),
            (Some(Some(_)), _) => return Err(Malformed("two answers with one id".to_owned())),
            (None, _) => return Err(Malformed("an answer to another question".to_owned())),
        }
    }
    if let Some(Some(Err(error))) = each.first()
        && each[1..].iter().all(Option::is_none)
        && error.is_about_batches()
    {
        return Ok(BatchAnswer::Refused(error.clone()));
    }
    Ok(BatchAnswer::Each(each))
}

impl<T> Answer<T> {
    /// Which call of the batch it answers. Some gateways turn numbers into strings.
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

/// At most so many answers: more than there were questions are none to them, and would only fill memory.
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
                return Err(A::Error::custom("more answers than questions"));
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// A foreign text as it may be shown: one line, of limited length.
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

/// The specification wants a number; what else comes says nothing.
fn code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    number(deserializer).map(Option::unwrap_or_default)
}

/// A number, also one in quotes.
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

/// What an error carries, as far as it is ever looked at: the bytes that an execution returned, as a text or in
/// one of two fields, and for how long to stay away.
fn data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
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
    fn text(raw: Option<&RawValue>) -> Option<String> {
        serde_json::from_str(raw?.get()).ok()
    }
    let raw = <&RawValue>::deserialize(deserializer)?;
    if let Some(text) = text(Some(raw)) {
        return Ok(Some(Value::String(text)));
    }
    let parts: Option<Parts<'_>> = serde_json::from_str(raw.get()).ok();
    Ok(parts.map(|parts| {
        let rate = parts
            .rate
            .and_then(|rate| serde_json::from_str(rate.get()).ok());
        let back_off = rate.map(|Rate { backoff_seconds }| backoff_seconds);
        json!({
            "data": text(parts.data), "result": text(parts.result),
            "rate": { "backoff_seconds": back_off },
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(body: &str, count: usize) -> Result<BatchAnswer<Option<u64>>, Malformed> {
        decode_batch(body.as_bytes(), count)
    }

    #[test]
    fn null_is_a_result_and_nothing_is_not() {
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
    fn of_what_an_error_carries_only_the_known_is_kept() {
        let of = |data: &str| {
            let body = format!(r#"{{"error":{{"data":{data}}}}}"#);
            decode_single::<Value>(body.as_bytes())
                .unwrap()
                .unwrap_err()
        };
        assert_eq!(of(r#""0x08c3""#).data, Some(json!("0x08c3")));
        let nested =
            of(r#"{"a":[{"b":0}],"data":"0x1","result":7,"rate":{"backoff_seconds":2.5,"c":1}}"#);
        assert_eq!(nested.back_off(), Some(Duration::from_millis(2_500)));
        let kept = json!({"data": "0x1", "result": null, "rate": {"backoff_seconds": 2.5}});
        assert_eq!(nested.data, Some(kept));
        for strange in ["null", "7", "[{}]", r#"{"data":1,"data":2}"#] {
            assert_eq!(of(strange).data, None, "{strange}");
        }
        assert_eq!(of(r#"{"rate":"x"}"#).back_off(), None);
    }

    #[test]
    fn errors_are_read_whatever_their_form() {
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
    fn batches_are_put_in_order_and_holes_are_seen() {
        let body = r#" [{"id":2,"result":7},{"id":"0","error":{"message":"no"}}]"#;
        let BatchAnswer::Each(each) = batch(body, 3).unwrap() else {
            panic!("refused")
        };
        assert!(matches!(&each[0], Some(Err(error)) if error.message == "no"));
        assert!(each[1].is_none());
        assert_eq!(each[2], Some(Ok(Some(7))));
    }

    #[test]
    fn a_refused_batch_is_told_from_refused_calls() {
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
