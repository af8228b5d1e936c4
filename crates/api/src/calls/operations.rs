//! For operators: the nodes, whether this one lives and should get requests, and its metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use engine::public;
use serde::Serialize;

use crate::answer;
use crate::parse::Query;
use crate::problem::{Problem, RETRY_AFTER_SECONDS};
use crate::router::Api;

/// `GET /api/v1/nodes`.
pub(crate) async fn nodes(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    Query::read(uri.query(), &[])?;
    let members = api.node.members().await?;
    Ok(answer::ok(&NodeList {
        nodes: members
            .iter()
            .map(|member| Listed {
                is_this: member.node == *api.node.name(),
                node: public::Node::from(member),
            })
            .collect(),
    }))
}

/// `GET /healthz`: the process answers. Says nothing about anything else, so that a dead store does
/// not make an orchestrator restart every node.
pub(crate) async fn health() -> Response {
    answer::ok(&Health { status: "ok" })
}

/// `GET /readyz`: 200 when requests should come here.
pub(crate) async fn ready(State(api): State<Arc<Api>>) -> Response {
    let readiness = api.node.readiness().await;
    let ready = public::Ready::from(&readiness);
    if ready.is_ready() {
        return answer::ok(&ready);
    }
    let mut response = answer::json(StatusCode::SERVICE_UNAVAILABLE, &ready);
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    response
}

/// `GET /metrics`, in the text form of Prometheus.
pub(crate) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    let mut response = (api.config.metrics)().into_response();
    let form = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, form);
    response
}

#[derive(Serialize)]
struct NodeList<'a> {
    nodes: Vec<Listed<'a>>,
}

/// A node, and whether it is the one that answers.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    node: public::Node<'a>,
    #[serde(rename = "thisNode")]
    is_this: bool,
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
}
