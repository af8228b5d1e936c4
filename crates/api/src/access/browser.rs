//! Web pages cannot spend: the check of what browsers send, in front of every call that has a caller.
//! Calls between nodes make it themselves where no MAC proves that a node sent them.

use axum::extract::Request;
use axum::http::{HeaderMap, Method, Uri};
use browser_guard::{BrowserGuard, Refusal};

use super::count_refusal;
use crate::parse::check_content_type;
use crate::problem::{Problem, ProblemKind};

pub(super) fn check(guard: &BrowserGuard, request: &Request) -> Result<(), Problem> {
    refuse_foreign_page(guard, request.uri(), request.headers())?;
    // Also without a body: a browser asks the server first before a page may send this type to another site.
    match *request.method() {
        Method::POST => check_content_type(request.headers()),
        _ => Ok(()),
    }
}

/// Refuses what only a page sends that the operator did not allow, by the headers alone.
pub(crate) fn refuse_foreign_page(
    guard: &BrowserGuard,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    guard.check(uri, headers).map_err(|refusal| match &refusal {
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
    })
}
