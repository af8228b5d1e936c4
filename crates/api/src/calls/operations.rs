//! For operators: the nodes of the cluster, health, readiness and metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use crate::parse::Query;
use crate::problem::{Problem, RETRY_AFTER_SECONDS};
use crate::response;
use crate::router::Api;

/// `GET /api/v1/nodes`.
pub(crate) async fn nodes(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    Query::parse(uri.query(), &[])?;
    let members = api.node.members().await?;
    Ok(response::ok(&NodeList {
        nodes: members
            .iter()
            .map(|member| ListedNode {
                is_this_node: member.node == *api.node.name(),
                node: api_types::Node::from(member),
            })
            .collect(),
    }))
}

/// `GET /healthz`: the process responds. It checks nothing else, so that an unavailable store does not make an
/// orchestrator restart every node.
pub(crate) async fn health() -> Response {
    response::ok(&json!({ "status": "ok" }))
}

/// `GET /readyz`: 200 when a load balancer should send requests to this node. Without a key, where keys are needed, it
/// shows no hosts, and neither does it to a page that may not use this node: it is answered under every name.
pub(crate) async fn ready(State(api): State<Arc<Api>>, uri: Uri, headers: HeaderMap) -> Response {
    let readiness = api.readiness().await;
    let mut ready = api_types::NodeReadiness::from(&readiness);
    let is_page = api.config.browser_guard.check(&uri, &headers).is_err();
    if is_page || !api.config.auth.admits(&headers) {
        ready = ready.for_strangers();
    }
    if ready.is_ready() {
        return response::ok(&ready);
    }
    let mut response = response::json(StatusCode::SERVICE_UNAVAILABLE, &ready);
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    response
}

/// `GET /metrics`, in Prometheus' text format.
pub(crate) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    let mut response = (api.config.metrics)().into_response();
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[derive(Serialize)]
struct NodeList<'a> {
    nodes: Vec<ListedNode<'a>>,
}

/// A node, and whether it is the one that responds.
#[derive(Serialize)]
struct ListedNode<'a> {
    #[serde(flatten)]
    node: api_types::Node<'a>,
    #[serde(rename = "thisNode")]
    is_this_node: bool,
}
