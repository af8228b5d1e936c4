//! Reading a body: bounded in size and time, and declared as JSON.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tokio::time::timeout;

use crate::parse::{excerpt, header_text};
use crate::problem::{Problem, ProblemKind};

/// How long a body may take to arrive.
const BODY_READ_MAX: Duration = Duration::from_secs(15);

/// Bytes of a refused body that are read and discarded.
const DISCARD_MAX: usize = 8 << 20;

/// Reads a body of at most `max` bytes that is declared as JSON.
pub(crate) async fn read_json_body(
    headers: &HeaderMap,
    body: Body,
    max: usize,
) -> Result<Bytes, Problem> {
    check_content_type(headers)?;
    let declared = body.size_hint().lower();
    if usize::try_from(declared).map_or(true, |declared| declared > max) {
        if !headers.contains_key(EXPECT) {
            discard(body).await;
        } // else the client waits for the response before it writes: reading would ask it to write
        return Err(too_large(max));
    }
    match timeout(BODY_READ_MAX, collect_parts(body, max)).await {
        Ok(collected) => collected,
        Err(_) => Err(Problem::new(
            ProblemKind::BodyTimeout,
            format!(
                "the body did not arrive within {} s: send it again",
                BODY_READ_MAX.as_secs()
            ),
        )),
    }
}

/// Reads a part of a refused body: a client that writes everything before it reads would otherwise see a broken
/// connection instead of the response.
async fn discard(body: Body) {
    discard_rest(body.into_data_stream()).await;
}

async fn discard_rest(mut parts: BodyDataStream) {
    let some = async {
        let mut left = DISCARD_MAX;
        while let Some(Ok(part)) = parts.next().await {
            left = left.saturating_sub(part.len());
            if left == 0 {
                return;
            }
        }
    };
    timeout(BODY_READ_MAX, some).await.ok(); // a slower client may see a broken connection
}

/// Concatenates the parts of a body. A small body has one part, which is not copied.
async fn collect_parts(body: Body, max: usize) -> Result<Bytes, Problem> {
    let mut parts = body.into_data_stream();
    let mut whole = Bytes::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| {
            Problem::new(
                ProblemKind::InvalidJson,
                format!("the body ended early ({error}): send it again"),
            )
        })?;
        if whole.len().saturating_add(part.len()) > max {
            discard_rest(parts).await;
            return Err(too_large(max));
        }
        whole = if whole.is_empty() {
            part
        } else {
            // The buffer is not shared after the first copy, so later parts are only appended.
            let mut longer = BytesMut::from(whole);
            longer.extend_from_slice(&part);
            longer.freeze()
        };
    }
    Ok(whole)
}

/// Browsers send other content types across sites without a CORS preflight. Requiring JSON prevents a web page
/// from posting to a node on the user's machine.
pub(crate) fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let declared = header_text(headers, &CONTENT_TYPE, "Content-Type")?.unwrap_or_default();
    let essence = declared.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(
            ProblemKind::UnsupportedMediaType,
            format!(
                "header `Content-Type` must be application/json, not {}: send the body as JSON",
                excerpt(essence)
            ),
        ));
    }
    let encoding = header_text(headers, &CONTENT_ENCODING, "Content-Encoding")?;
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(Problem::new(
            ProblemKind::UnsupportedMediaType,
            "header `Content-Encoding` is not supported: send the body uncompressed",
        ));
    }
    Ok(())
}

fn too_large(max: usize) -> Problem {
    Problem::new(
        ProblemKind::BodyTooLarge,
        format!("the body has more than the {max} bytes that are allowed: send less at once"),
    )
}
