//! The JSON-RPC methods. Each family is a file that lists its method names.

mod blocks;
mod calls;
mod control;
mod error;
mod fees;
mod filters;
mod logs;
mod params;
mod pool;
mod render;
mod send;
mod server;
mod state;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::error::RpcError;
pub(super) use self::filters::Filters;
use self::params::Params;
pub use self::server::DevChainServer;
pub(super) use self::server::serve;
use super::{Inner, limits};

/// The JSON text of a result. Text, because answers can be long and are built only once.
type Answer = Result<String, RpcError>;

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    id: Value,
    method: String,
    #[serde(default)]
    params: Option<Value>,
}

/// Answers an HTTP body: one request or a batch. Runs on a blocking thread.
fn answer_body(chain: &Inner, body: &[u8]) -> String {
    let is_batch = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if !is_batch {
        return match serde_json::from_slice::<Value>(body) {
            Err(_) => envelope(&Value::Null, &Err(RpcError::parse())),
            Ok(value) => answer_batch(chain, vec![value]).remove(0),
        };
    }
    match serde_json::from_slice::<Vec<Value>>(body) {
        Err(_) => envelope(&Value::Null, &Err(RpcError::parse())),
        Ok(batch) if batch.is_empty() => {
            envelope(&Value::Null, &Err(RpcError::invalid_request("empty batch")))
        }
        Ok(batch) if batch.len() > limits::BATCH_MAX => envelope(
            &Value::Null,
            &Err(RpcError::invalid_request("batch too large")),
        ),
        Ok(batch) => format!("[{}]", answer_batch(chain, batch).join(",")),
    }
}

/// Answers in order. Consecutive raw txs are added together, under one lock of the pool.
fn answer_batch(chain: &Inner, batch: Vec<Value>) -> Vec<String> {
    let mut answers = Vec::with_capacity(batch.len());
    let mut length = 0;
    let mut calls = batch.into_iter().map(parse).peekable();
    while let Some(call) = calls.next() {
        let first = answers.len();
        match call {
            (id, Err(error)) => answers.push(envelope(&id, &Err(error))),
            (id, Ok(_)) if length > limits::BATCH_ANSWER_BYTES_MAX => {
                answers.push(envelope(&id, &Err(RpcError::answer_too_large())));
            }
            (id, Ok((method, params))) if method == send::METHOD => {
                let mut run = vec![(id, params)];
                let is_send =
                    |call: &Call| matches!(call, (_, Ok((name, _))) if name == send::METHOD);
                while let Some((id, Ok((_, params)))) = calls.next_if(is_send) {
                    run.push((id, params));
                }
                let results = send::send_raw(chain, run.iter().map(|(_, params)| params));
                answers.extend(
                    run.iter()
                        .zip(&results)
                        .map(|((id, _), result)| envelope(id, result)),
                );
            }
            (id, Ok((method, params))) => {
                answers.push(envelope(&id, &dispatch(chain, &method, &params)));
            }
        }
        length += answers[first..].iter().map(String::len).sum::<usize>();
    }
    answers
}

type Call = (Value, Result<(String, Params), RpcError>);

fn parse(value: Value) -> Call {
    let id = value.get("id").cloned().unwrap_or_default();
    let call = match serde_json::from_value::<Request>(value) {
        Err(_) => Err(RpcError::invalid_request("invalid request")),
        Ok(request) if request.id.is_object() || request.id.is_array() => {
            return (
                Value::Null,
                Err(RpcError::invalid_request("invalid request")),
            );
        }
        Ok(request) => Params::new(request.params).map(|params| (request.method, params)),
    };
    (id, call)
}

fn dispatch(chain: &Inner, method: &str, params: &Params) -> Answer {
    blocks::call(chain, method, params)
        .or_else(|| state::call(chain, method, params))
        .or_else(|| fees::call(chain, method, params))
        .or_else(|| logs::call(chain, method, params))
        .or_else(|| pool::call(chain, method, params))
        .or_else(|| control::call(chain, method, params))
        .unwrap_or_else(|| Err(RpcError::no_method(method)))
}

fn json<T: Serialize + ?Sized>(value: &T) -> Answer {
    serde_json::to_string(value)
        .map_err(|error| RpcError::server(format!("answer cannot be written: {error}")))
}

fn envelope(id: &Value, answer: &Answer) -> String {
    match answer {
        Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        Err(error) => {
            let mut object = serde_json::json!({"code": error.code, "message": error.message});
            if let Some(data) = &error.data {
                object["data"] = Value::String(data.to_string());
            }
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{object}}}"#)
        }
    }
}
