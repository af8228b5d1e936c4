//! Web pages cannot spend: the check of what browsers send, in front of every call that has a caller.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use browser_guard::Refusal;

use super::count_refusal;
use crate::parse::check_content_type;
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

pub(super) async fn refuse_foreign_pages(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    check(&api, &request)?; // the body of a refused request is not read
    Ok(next.run(request).await)
}

fn check(api: &Api, request: &Request) -> Result<(), Problem> {
    let guard = &api.config.browser_guard;
    let checked = guard.check(request.uri(), request.headers());
    checked.map_err(|refusal| match &refusal {
        Refusal::ForeignHost(_) => count_refusal(
            "host",
            ProblemKind::ForeignHost,
            format!("{refusal}: use its address, or add the name to http.allowedHosts"),
        ),
        Refusal::ForeignPage(_) => count_refusal(
            "origin",
            ProblemKind::ForeignPage,
            format!("{refusal}: where that is intended, add its origin to http.allowedOrigins"),
        ),
    })?;
    // Also without a body: a browser asks the server first before a page may send this type to another site.
    match *request.method() {
        Method::POST => check_content_type(request.headers()),
        _ => Ok(()),
    }
}
