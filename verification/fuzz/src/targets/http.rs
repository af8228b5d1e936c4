//! Requests of customers, to every call, at a node without keys. Also requests of other nodes on this
//! machine, which need no seal there.
//!
//! An input is a request as it stands on the wire: the first line has method and target, then come
//! headers, an empty line, and the body.

use std::time::Duration;

use api::Auth;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use futures::StreamExt as _;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::Target;
use crate::parts::first_line;
use crate::worlds::node::NodeWorld;
use crate::worlds::still_runtime;

/// After so many inputs the node is made anew, so that what it holds does not grow.
const INPUTS_PER_NODE: u32 = 300;
/// An answer must come within this, by the clock that stands still: longer than the longest wait.
const ANSWER_AFTER_MAX: Duration = Duration::from_secs(200);
/// A stream of events is read for so long: until after a heartbeat.
const STREAM_FOR: Duration = Duration::from_secs(20);
/// The longest answer: pages have a bound.
const ANSWER_BYTES_MAX: usize = 64 << 20;

pub(super) fn make() -> Box<dyn Target> {
    Box::new(Http::default())
}

#[derive(Default)]
struct Http {
    /// The node before the runtime that drives it.
    world: Option<(NodeWorld, Runtime)>,
    inputs: u32,
}

impl Target for Http {
    fn prepare(&mut self) {
        if self.world.is_none() || self.inputs >= INPUTS_PER_NODE {
            self.world = None;
            self.inputs = 0;
            let runtime = still_runtime();
            let world = runtime.block_on(NodeWorld::start(None, Auth::None, None));
            self.world = Some((world, runtime));
        }
        self.inputs += 1;
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let (world, runtime) = self.world.as_ref().expect("it was prepared");
        match request(input) {
            Some(request) => runtime.block_on(call_router(world, request)),
            None => Ok(()),
        }
    }
}

/// The request of an input; `None` where the HTTP library would already refuse it.
pub(super) fn request(input: &[u8]) -> Option<Request<Body>> {
    let (line, mut rest) = first_line(input);
    let (method, target) = line.split_once(' ')?;
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::from_bytes(method.as_bytes()).ok()?;
    *request.uri_mut() = Uri::try_from(target).ok()?;
    loop {
        let (line, after) = first_line(rest);
        rest = after;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        let value = HeaderValue::from_bytes(value.trim().as_bytes()).ok()?;
        request.headers_mut().append(name, value);
    }
    *request.body_mut() = Body::from(rest.to_vec());
    Some(request)
}

/// Sends a request and checks what every answer promises.
pub(super) async fn call_router(world: &NodeWorld, request: Request<Body>) -> Result<(), String> {
    let is_head = request.method() == Method::HEAD;
    let answer = timeout(ANSWER_AFTER_MAX, world.send(request)).await;
    let answer = answer.map_err(|_over| "no answer in time".to_owned())?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let body = read(answer).await?;
    if status == StatusCode::INTERNAL_SERVER_ERROR {
        return Err(format!(
            "an internal error: {}",
            String::from_utf8_lossy(&body)
        ));
    }
    if status.is_success() || is_head {
        return Ok(());
    }
    check_problem(status, &headers, &body)
}

async fn read(answer: Response<Body>) -> Result<Vec<u8>, String> {
    let mut parts = answer.into_body().into_data_stream();
    let mut body = Vec::new();
    let until = tokio::time::Instant::now() + STREAM_FOR;
    while let Ok(Some(part)) = tokio::time::timeout_at(until, parts.next()).await {
        let part = part.map_err(|error| format!("an answer breaks off: {error}"))?;
        body.extend_from_slice(&part);
        if body.len() > ANSWER_BYTES_MAX {
            return Err("an answer without end".to_owned());
        }
    }
    Ok(body)
}

/// What is no success is told as a problem document, always. Only a node that is not ready says so in
/// its own words.
fn check_problem(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<(), String> {
    let document: Value = serde_json::from_slice(body)
        .map_err(|error| format!("an error without a document: {status} {error}"))?;
    let is_readiness = status == StatusCode::SERVICE_UNAVAILABLE && document.get("ready").is_some();
    let has_type = headers
        .get("content-type")
        .is_some_and(|kind| kind == "application/problem+json");
    if is_readiness || (has_type && document["status"] == status.as_u16()) {
        return Ok(());
    }
    Err(format!(
        "an error that is no problem document: {status} {document}"
    ))
}
