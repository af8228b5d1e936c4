//! Events: the feed by polling, and the history of one tx.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use engine::public;
use serde::Serialize;

use crate::answer;
use crate::calls::{PathParts, path_part};
use crate::parse::{self, Query};
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

/// `GET /api/v1/events`: the feed after a cursor; the end is `next` equal to `after`.
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::read(
        uri.query(),
        &["after", "chainId", "signer", "type", "limit"],
    )?;
    let page = api.node.events(&parse::event_filter(&query)?).await?;
    Ok(answer::ok(&Feed {
        events: page.events.iter().map(public::Event::from).collect(),
        next: &page.next,
    }))
}

/// `GET /api/v1/tx/{txId}/events`: its history, oldest first.
pub(crate) async fn of_tx(
    State(api): State<Arc<Api>>,
    id: PathParts<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let id = path_part(id, "txId", parse::tx_id)?;
    Query::read(uri.query(), &[])?;
    match api.node.tx_events(id).await? {
        Some(events) => Ok(answer::ok(&History {
            events: events.iter().map(public::Event::from).collect(),
        })),
        None => Err(Problem::new(
            ProblemKind::UnknownTx,
            format!("there is no tx {id}"),
        )),
    }
}

#[derive(Serialize)]
struct Feed<'a> {
    events: Vec<public::Event<'a>>,
    next: &'a str,
}

#[derive(Serialize)]
struct History<'a> {
    events: Vec<public::Event<'a>>,
}
