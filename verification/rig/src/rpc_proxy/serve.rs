//! Connections, and the handling of one request.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::message::{Call, Message};
use super::node::{NodeResponse, Unreachable};
use super::rule::{CallAnswer, RequestOutcome};
use super::{Hidden, Link, OutageKind, Shared, view};
use crate::proxy::AfterLoss;

/// The listener is closed or reopened well before this.
pub(super) const LISTENER_CHANGE_WITHIN: Duration = Duration::from_secs(20);

const REQUEST_BYTES_MAX: usize = 64 << 20;

const CONNECTIONS_MAX: usize = 4_096;

/// Accepts connections until the proxy is dropped.
pub(super) async fn accept(
    address: SocketAddr,
    listener: std::net::TcpListener,
    shared: Arc<Shared>,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut link = shared.link.subscribe();
    let mut listener = Some(listener);
    loop {
        let here = listener.take().unwrap_or_else(|| listen(address));
        let here = TcpListener::from_std(here).expect("we are in a runtime");
        let refuses = |link: &Link| *link == Link::Dead(OutageKind::Refuses);
        loop {
            let permit = Arc::clone(&room).acquire_owned().await;
            let permit = permit.expect("it is never closed");
            tokio::select! {
                taken = here.accept() => {
                    // A client that disconnected before it was accepted is harmless.
                    if let Ok((client, _)) = taken {
                        let shared = Arc::clone(&shared);
                        tokio::spawn(async move {
                            serve_connection(client, shared).await;
                            drop(permit);
                        });
                    }
                }
                changed = link.wait_for(refuses) => {
                    changed.expect("the proxy keeps its sender");
                    break;
                }
            }
        }
        drop(here);
        let back = link.wait_for(|link| !refuses(link)).await;
        back.expect("the proxy keeps its sender");
    }
}

/// How often a reserved port is tried, 10 ms apart.
const LISTEN_TRIES_MAX: u32 = 200;

/// A listener on the reserved address. A child process that another thread has just forked holds a copy of the socket
/// with which the port was probed, until it executes its program: the port is then in use for a moment.
pub(super) fn listen(address: SocketAddr) -> std::net::TcpListener {
    let mut tries = 0;
    let listener = loop {
        match std::net::TcpListener::bind(address) {
            Ok(listener) => break listener,
            Err(error) if error.kind() == ErrorKind::AddrInUse && tries < LISTEN_TRIES_MAX => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("the reserved port {address}: {error}"),
        }
    };
    listener.set_nonblocking(true).expect("a new socket");
    listener
}

async fn serve_connection(client: TcpStream, shared: Arc<Shared>) {
    let mut link = shared.link.subscribe();
    if *link.borrow() != Link::Up {
        client.set_zero_linger().ok(); // otherwise it is closed without a reset, which is similar
        return;
    }
    // Nagle's algorithm would add delays that no rule asked for.
    client.set_nodelay(true).ok();
    let service = service_fn(|request| handle(request, &shared));
    let served =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(client), service);
    tokio::select! {
        // An error is a disconnected client, or a response that was lost on command.
        ended = served => { ended.ok(); }
        changed = link.wait_for(|link| *link != Link::Up) => {
            changed.expect("the proxy keeps its sender");
        }
    }
}

/// Ends a connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("lost on command")]
struct Lost;

async fn handle(
    request: Request<Incoming>,
    shared: &Shared,
) -> Result<Response<Full<Bytes>>, Lost> {
    let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX);
    let Ok(body) = body.collect().await else {
        return Err(Lost); // too long or incomplete
    };
    let body = body.to_bytes();
    let message = Message::parse(&body);
    let plan = shared.state().plan(&message);
    tokio::time::sleep(plan.delay).await;
    let lost = match plan.outcome {
        RequestOutcome::Refused { code, retry_after } => {
            return Ok(http_error_response(code, retry_after));
        }
        RequestOutcome::RequestLost(then) => return lose(then).await,
        RequestOutcome::AnswerLost(then) => Some(then),
        RequestOutcome::Answered => None,
    };
    let answered = answer_request(shared, &message, body, plan.answers).await;
    if let Some(then) = lost {
        return lose(then).await;
    }
    Ok(match answered {
        Ok(NodeResponse { status, body }) => json_response(status, body),
        Err(Unreachable) => http_error_response(StatusCode::BAD_GATEWAY.as_u16(), None),
    })
}

async fn lose(then: AfterLoss) -> Result<Response<Full<Bytes>>, Lost> {
    match then {
        AfterLoss::Cut => Err(Lost),
        AfterLoss::Silence => std::future::pending().await,
    }
}

/// The node's response, with the proxy's answers to calls that a rule or view changes.
async fn answer_request(
    shared: &Shared,
    message: &Message,
    body: Bytes,
    mut answers: Vec<CallAnswer>,
) -> Result<NodeResponse, Unreachable> {
    let calls = message.calls();
    let (view, chain_id, hidden) = {
        let state = shared.state();
        (state.view, state.chain_id, state.hidden.clone())
    };
    let visible = view.visible(&shared.node).await?;
    for (call, answer) in calls.iter().zip(&mut answers) {
        if *answer != CallAnswer::Node {
            continue;
        }
        if let (Some(id), "eth_chainId") = (chain_id, call.method.as_str()) {
            *answer = CallAnswer::Proxy(json!({ "result": format!("{id:#x}") }));
        } else if let (Some(id), "net_version") = (chain_id, call.method.as_str()) {
            *answer = CallAnswer::Proxy(json!({ "result": id.to_string() }));
        } else if let Some(visible) = visible
            && let Some(own) = view::answer_at_height(&shared.node, call, visible).await?
        {
            *answer = CallAnswer::Proxy(own);
        }
    }
    let is_untouched = answers.iter().all(|answer| *answer == CallAnswer::Node)
        && (matches!(hidden, Hidden::Nothing) || !calls.iter().any(has_receipts));
    if is_untouched {
        return shared.node.forward(body).await;
    }
    let mut bodies = answer_mixed_batch(shared, calls, answers).await?;
    for (call, body) in calls.iter().zip(&mut bodies) {
        hide_receipts(&hidden, call, body);
    }
    let whole = match message.is_batch {
        true => Value::Array(bodies),
        false => bodies.pop().expect("one call has one answer"),
    };
    Ok(NodeResponse {
        status: StatusCode::OK.as_u16(),
        body: whole.to_string().into(),
    })
}

/// The answers to all calls, in order; the node gets the remaining ones in one batch.
async fn answer_mixed_batch(
    shared: &Shared,
    calls: &[Call],
    answers: Vec<CallAnswer>,
) -> Result<Vec<Value>, Unreachable> {
    let is_passed = |answer: &CallAnswer| !matches!(answer, CallAnswer::Proxy(_));
    let passed: Vec<&Call> = calls
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| is_passed(answer))
        .map(|(call, _)| call)
        .collect();
    let mut node_answers = call_node(shared, &passed).await?.into_iter();
    let mut next = || {
        node_answers
            .next()
            .expect("one for each that was passed on")
    };
    let each = calls.iter().zip(answers).map(|(call, answer)| {
        let mut body = match answer {
            CallAnswer::Proxy(body) => body,
            CallAnswer::ProxyAfterNode(body) => {
                next();
                body
            }
            CallAnswer::Node => next(),
            CallAnswer::Changed(lie) => lie.change(&call.method, next()),
        };
        body["jsonrpc"] = json!("2.0");
        body["id"] = call.id.clone();
        body
    });
    Ok(each.collect())
}

/// The node's answers, in order.
async fn call_node(shared: &Shared, calls: &[&Call]) -> Result<Vec<Value>, Unreachable> {
    let malformed = |_: serde_json::Error| Unreachable;
    match calls {
        [] => Ok(Vec::new()),
        [call] => {
            let answered = shared.node.forward(call.body.to_string()).await?;
            Ok(vec![
                serde_json::from_slice(&answered.body).map_err(malformed)?,
            ])
        }
        many => {
            let batch: Vec<&Value> = many.iter().map(|call| &call.body).collect();
            let answered = shared.node.forward(json!(batch).to_string()).await?;
            let answers: Vec<Value> = serde_json::from_slice(&answered.body).map_err(malformed)?;
            let of = |call: &&Call| answers.iter().find(|answer| answer["id"] == call.id);
            let in_order = many.iter().map(|call| of(call).cloned());
            in_order.collect::<Option<_>>().ok_or(Unreachable)
        }
    }
}

fn has_receipts(call: &Call) -> bool {
    ["eth_getTransactionReceipt", "eth_getBlockReceipts"].contains(&call.method.as_str())
}

/// Removes hidden receipts from an answer.
fn hide_receipts(hidden: &Hidden, call: &Call, body: &mut Value) {
    let hash_of =
        |receipt: &Value| -> Option<B256> { receipt["transactionHash"].as_str()?.parse().ok() };
    let is_hidden = |hash: Option<B256>| match hidden {
        Hidden::Nothing => false,
        Hidden::All => true,
        Hidden::Txs(hashes) => hash.is_some_and(|hash| hashes.contains(&hash)),
    };
    match call.method.as_str() {
        "eth_getTransactionReceipt" if is_hidden(call.hash) => body["result"] = Value::Null,
        "eth_getBlockReceipts" => {
            if let Some(receipts) = body["result"].as_array_mut() {
                receipts.retain(|receipt| !is_hidden(hash_of(receipt)));
            }
        }
        _ => {}
    }
}

fn http_error_response(code: u16, retry_after: Option<u64>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from("refused on command"));
    *response.status_mut() = StatusCode::from_u16(code).expect("a rule names an HTTP status");
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn json_response(status: u16, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("it came as one");
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
