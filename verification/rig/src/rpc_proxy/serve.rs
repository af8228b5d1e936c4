//! Connections, and the way of one request.

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
use super::node::{Answered, Unreachable};
use super::rule::{Answer, Fate};
use super::{Death, Hidden, Link, Shared, view};
use crate::proxy::Then;

/// The listener is closed, and opened again, well before this.
pub(super) const DEAF_WITHIN: Duration = Duration::from_secs(20);

/// The longest body of a request.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// More wait until another one ends.
const CONNECTIONS_MAX: usize = 4_096;

/// Takes connections until the proxy is dropped.
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
        let refuses = |link: &Link| *link == Link::Dead(Death::Refuses);
        loop {
            let permit = Arc::clone(&room).acquire_owned().await;
            let permit = permit.expect("it is never closed");
            tokio::select! {
                taken = here.accept() => {
                    // A client that is gone before it was taken is nobody's trouble.
                    if let Ok((client, _)) = taken {
                        let shared = Arc::clone(&shared);
                        tokio::spawn(async move {
                            connection(client, shared).await;
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

/// A listener on the address, which is reserved for us.
pub(super) fn listen(address: SocketAddr) -> std::net::TcpListener {
    let listener = std::net::TcpListener::bind(address)
        .unwrap_or_else(|error| panic!("the reserved port {address}: {error}"));
    listener.set_nonblocking(true).expect("a socket of ours");
    listener
}

async fn connection(client: TcpStream, shared: Arc<Shared>) {
    let mut link = shared.link.subscribe();
    if *link.borrow() != Link::Up {
        client.set_zero_linger().ok(); // without it, it is closed, which is nearly as bad
        return;
    }
    // Small messages must not wait for each other: delays are ours to make.
    client.set_nodelay(true).ok();
    let service = service_fn(|request| handle(request, &shared));
    let served =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(client), service);
    tokio::select! {
        // An error is a client that left, or one whose answer was to be lost.
        ended = served => { ended.ok(); }
        changed = link.wait_for(|link| *link != Link::Up) => {
            changed.expect("the proxy keeps its sender");
        }
    }
}

/// Ends a connection in the place of an answer.
#[derive(Debug, thiserror::Error)]
#[error("lost on command")]
struct Lost;

async fn handle(
    request: Request<Incoming>,
    shared: &Shared,
) -> Result<Response<Full<Bytes>>, Lost> {
    let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX);
    let Ok(body) = body.collect().await else {
        return Err(Lost); // too long, or not sent to its end
    };
    let body = body.to_bytes();
    let message = Message::parse(&body);
    let plan = shared.state().plan(&message);
    tokio::time::sleep(plan.delay).await;
    let lost = match plan.fate {
        Fate::TurnedAway { code, retry_after } => return Ok(turned_away(code, retry_after)),
        Fate::RequestLost(then) => return lose(then).await,
        Fate::AnswerLost(then) => Some(then),
        Fate::Answered => None,
    };
    let answered = answer(shared, &message, body, plan.answers).await;
    if let Some(then) = lost {
        return lose(then).await;
    }
    Ok(match answered {
        Ok(Answered { status, body }) => response(status, body),
        Err(Unreachable) => turned_away(StatusCode::BAD_GATEWAY.as_u16(), None),
    })
}

async fn lose(then: Then) -> Result<Response<Full<Bytes>>, Lost> {
    match then {
        Then::Cut => Err(Lost),
        Then::Silence => std::future::pending().await,
    }
}

/// The node's own answer, or ours to some calls and the node's to the others.
async fn answer(
    shared: &Shared,
    message: &Message,
    body: Bytes,
    mut answers: Vec<Answer>,
) -> Result<Answered, Unreachable> {
    let calls = message.calls();
    let (view, chain_id, hidden) = {
        let state = shared.state();
        (state.view, state.chain_id, state.hidden.clone())
    };
    let visible = view.visible(&shared.node).await?;
    for (call, answer) in calls.iter().zip(&mut answers) {
        if *answer != Answer::Node {
            continue;
        }
        if let (Some(id), "eth_chainId") = (chain_id, call.method.as_str()) {
            *answer = Answer::Proxy(json!({ "result": format!("{id:#x}") }));
        } else if let (Some(id), "net_version") = (chain_id, call.method.as_str()) {
            *answer = Answer::Proxy(json!({ "result": id.to_string() }));
        } else if let Some(visible) = visible
            && let Some(own) = view::answer(&shared.node, call, visible).await?
        {
            *answer = Answer::Proxy(own);
        }
    }
    let is_untouched = answers.iter().all(|answer| *answer == Answer::Node)
        && (matches!(hidden, Hidden::Nothing) || !calls.iter().any(has_receipts));
    if is_untouched {
        return shared.node.pass(body).await;
    }
    let mut bodies = mixed(shared, calls, answers).await?;
    for (call, body) in calls.iter().zip(&mut bodies) {
        hide(&hidden, call, body);
    }
    let whole = match message.is_batch {
        true => Value::Array(bodies),
        false => bodies.pop().expect("one call has one answer"),
    };
    Ok(Answered {
        status: StatusCode::OK.as_u16(),
        body: whole.to_string().into(),
    })
}

/// The answers to all calls, in order; the node gets what is left to it in one batch.
async fn mixed(
    shared: &Shared,
    calls: &[Call],
    answers: Vec<Answer>,
) -> Result<Vec<Value>, Unreachable> {
    let is_passed = |answer: &Answer| !matches!(answer, Answer::Proxy(_));
    let passed: Vec<&Call> = calls
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| is_passed(answer))
        .map(|(call, _)| call)
        .collect();
    let mut of_node = ask_node(shared, &passed).await?.into_iter();
    let mut next = || of_node.next().expect("one for each that was passed on");
    let each = calls.iter().zip(answers).map(|(call, answer)| {
        let mut body = match answer {
            Answer::Proxy(body) => body,
            Answer::ProxyAfterNode(body) => {
                next();
                body
            }
            Answer::Node => next(),
        };
        body["jsonrpc"] = json!("2.0");
        body["id"] = call.id.clone();
        body
    });
    Ok(each.collect())
}

/// The node's answers to these calls, in their order.
async fn ask_node(shared: &Shared, calls: &[&Call]) -> Result<Vec<Value>, Unreachable> {
    let malformed = |_: serde_json::Error| Unreachable;
    match calls {
        [] => Ok(Vec::new()),
        [call] => {
            let answered = shared.node.pass(call.body.to_string()).await?;
            Ok(vec![
                serde_json::from_slice(&answered.body).map_err(malformed)?,
            ])
        }
        many => {
            let batch: Vec<&Value> = many.iter().map(|call| &call.body).collect();
            let answered = shared.node.pass(json!(batch).to_string()).await?;
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

/// Takes hidden receipts out of an answer.
fn hide(hidden: &Hidden, call: &Call, body: &mut Value) {
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

fn turned_away(code: u16, retry_after: Option<u64>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from("turned away on command"));
    *response.status_mut() = StatusCode::from_u16(code).expect("a rule names an HTTP status");
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn response(status: u16, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("it came as one");
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
