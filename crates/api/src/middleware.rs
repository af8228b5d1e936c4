//! Applied to every call: request id, node name, metrics, and the responses to unknown paths and panics.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, RETRY_AFTER,
};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Uri, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use browser_guard::BrowserGuard;
use engine::node::Origin;
use tower_http::cors::CorsLayer;

use crate::access::Caller;
use crate::parse::{IDEMPOTENCY_KEY, excerpt, parse_trace_id, traceparent};
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

const LANEKEEPER_NODE: HeaderName = HeaderName::from_static("lanekeeper-node");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request for logs and traces: the caller's `X-Request-Id`, or a generated one.
#[derive(Clone)]
struct RequestTraceId(HeaderValue);

/// The caller of a request, and its trace.
pub(crate) fn origin(parts: &Parts) -> Origin {
    let caller = parts.extensions.get::<Caller>();
    let id = parts.extensions.get::<RequestTraceId>();
    let id = id.and_then(|RequestTraceId(id)| id.to_str().ok());
    Origin {
        caller: caller.map(|Caller(name)| name.to_string()),
        trace: traceparent(&parts.headers).or(id).map(str::to_owned),
    }
}

/// Adds the ids of request and node to the response, and measures the call.
pub(crate) async fn identify_request(
    State(api): State<Arc<Api>>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = match request.headers().get(&REQUEST_ID) {
        Some(given) if parse_trace_id(given).is_some() => given.clone(),
        Some(_) | None => new_trace_id(&api),
    };
    // The route's pattern, not the path: ids must not become metric labels.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unknown".to_owned(), |path| path.as_str().to_owned());
    let method = request.method().clone();
    let started = api.config.clock.monotonic();
    request.extensions_mut().insert(RequestTraceId(id.clone()));

    let mut response = match check_host(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };

    let took = api.config.clock.monotonic().since(started);
    let status = response.status();
    if status.is_server_error() {
        tracing::warn!(%method, route, %status, request = ?id, "a request failed");
    } else {
        tracing::debug!(%method, route, %status, request = ?id, ?took, "request answered");
    }
    metrics::histogram!("lanekeeper_http_request_seconds", "route" => route.clone())
        .record(took.as_secs_f64());
    metrics::counter!(
        "lanekeeper_http_requests_total",
        "route" => route, "method" => method_label(&method), "status" => status.as_str().to_owned()
    )
    .increment(1);
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        *response.body_mut() = Body::from(problem.document(id.to_str().ok()));
        response.headers_mut().remove(CONTENT_LENGTH); // of the document without the id
    }
    let headers = response.headers_mut();
    headers.insert(LANEKEEPER_NODE, api.node_header.clone());
    headers.insert(REQUEST_ID, id);
    response
}

/// A request names its host once (RFC 9112, 3.2). Where it names two, a proxy in front may have judged the other one.
fn check_host(request: &Request) -> Result<(), Problem> {
    let count = request.headers().get_all(HOST).iter().count();
    if count == 1 || (count == 0 && request.version() < Version::HTTP_11) {
        return Ok(());
    }
    Err(Problem::new(
        ProblemKind::InvalidHeader,
        format!("header `Host` is there {count} times: send it once"),
    ))
}

/// Lets browsers show responses to pages of the allowed origins, and answers their preflight requests.
pub(crate) fn allowed_origins(guard: &BrowserGuard) -> Option<CorsLayer> {
    let origins = guard.allowed_origins.iter();
    let origins: Vec<HeaderValue> = origins
        .filter_map(|origin| HeaderValue::from_str(origin.trim_end_matches('/')).ok())
        .collect();
    let cors = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([AUTHORIZATION, CONTENT_TYPE, IDEMPOTENCY_KEY, REQUEST_ID])
        .expose_headers([LANEKEEPER_NODE, REQUEST_ID, RETRY_AFTER]);
    (!origins.is_empty()).then(|| cors.allow_origin(origins))
}

/// A closed set: callers may invent methods, and each label value is a time series.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        _ => "other",
    }
}

fn new_trace_id(api: &Api) -> HeaderValue {
    let count = api.request_count.fetch_add(1, Ordering::Relaxed);
    let id = format!("{:016x}-{count:x}", api.request_prefix);
    HeaderValue::try_from(id).expect("hex digits and a hyphen are a header value")
}

pub(crate) async fn unknown_path(uri: Uri) -> Problem {
    Problem::new(
        ProblemKind::UnknownPath,
        format!(
            "there is nothing at {}: check the path",
            excerpt(uri.path())
        ),
    )
}

/// The router adds the header `Allow`.
pub(crate) async fn wrong_method(method: Method, uri: Uri) -> Problem {
    Problem::new(
        ProblemKind::MethodNotAllowed,
        format!(
            "{} has no method {}: see the header `Allow`",
            excerpt(uri.path()),
            excerpt(method.as_str())
        ),
    )
}

/// A bug: the caller learns that the outcome is unknown, the log records the message.
pub(crate) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let message = match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.as_str(),
        (None, Some(text)) => text,
        (None, None) => "a panic without a message",
    };
    tracing::error!(message, "a request panicked");
    Problem::new(
        ProblemKind::Internal,
        "this node failed while it processed the request: repeat it with the same requestId to \
         learn what happened",
    )
    .into_response()
}
