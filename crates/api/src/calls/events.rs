//! Events: the feed by polling, and the events of one tx.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde::Serialize;

use crate::calls::{PathParts, parse_path_part};
use crate::parse::{self, Query};
use crate::problem::{Problem, ProblemKind};
use crate::response;
use crate::router::Api;

/// `GET /api/v1/events`: the feed after a cursor; `next` equal to `after` means the end of the feed.
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::parse(
        uri.query(),
        &["after", "chainId", "signer", "type", "limit"],
    )?;
    let page = api.node.events(&parse::event_filter(&query)?).await?;
    Ok(response::ok(&Feed {
        events: page.events.iter().map(api_types::Event::from).collect(),
        next: &page.next,
    }))
}

/// `GET /api/v1/tx/{txId}/events`: the events of a tx, oldest first.
pub(crate) async fn list_of_tx(
    State(api): State<Arc<Api>>,
    id: PathParts<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let id = parse_path_part(id, "txId", parse::tx_id)?;
    Query::parse(uri.query(), &[])?;
    match api.node.tx_events(id).await? {
        Some(events) => Ok(response::ok(&History {
            events: events.iter().map(api_types::Event::from).collect(),
        })),
        None => Err(Problem::new(
            ProblemKind::UnknownTx,
            format!("there is no tx {id}"),
        )),
    }
}

#[derive(Serialize)]
struct Feed<'a> {
    events: Vec<api_types::Event<'a>>,
    next: &'a str,
}

#[derive(Serialize)]
struct History<'a> {
    events: Vec<api_types::Event<'a>>,
}
