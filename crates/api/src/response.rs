//! JSON responses.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Enough for a typical tx, so that the hot path does not reallocate.
const TYPICAL_BYTES: usize = 2_048;

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let mut body = Vec::with_capacity(TYPICAL_BYTES);
    serde_json::to_writer(&mut body, value)
        .expect("the public views write texts and numbers into memory");
    let mut response = body.into_response();
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn ok(value: &impl Serialize) -> Response {
    json(StatusCode::OK, value)
}
