//! Lanes: list and read them, and resume a halted one.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use domain::LaneKey;
use serde::Serialize;

use crate::calls::{PathParts, invalid_encoding};
use crate::middleware::origin;
use crate::parse::{self, Query};
use crate::problem::{Problem, ProblemKind};
use crate::response;
use crate::router::Api;

/// `GET /api/v1/lanes`: every configured signer on every chain, in the order of their keys.
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let (after, limit) = parse::lane_page(&Query::parse(uri.query(), &["limit", "cursor"])?)?;
    let one_more = limit.saturating_add(1); // whether there is another page
    let mut lanes = api.node.lanes(after, one_more).await?;
    let has_more = lanes.len() > limit;
    lanes.truncate(limit);
    let last = lanes.last().filter(|_| has_more);
    let next = last.map(|lane| lane.record.key.to_string());
    let now = api.config.clock.now();
    Ok(response::ok(&LaneList {
        lanes: lanes
            .iter()
            .map(|lane| api_types::Lane::new(lane, now))
            .collect(),
        next,
    }))
}

/// `GET /api/v1/lanes/{chainId}/{signer}`.
pub(crate) async fn get_lane(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let key = lane_key(parts)?;
    Query::parse(uri.query(), &[])?;
    lane_response(&api, key, StatusCode::OK).await
}

/// `POST /api/v1/lanes/{chainId}/{signer}/resume`: an operator accepts the possible loss of a halted lane.
pub(crate) async fn resume(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let key = lane_key(parts)?;
    let (parts, body) = request.into_parts();
    Query::parse(parts.uri.query(), &[])?;
    let body = parse::read_json_body(&parts.headers, body, api.config.max_body).await?;
    let reason = parse::parse_resume(&body)?;
    let caller = origin(&parts).caller.unwrap_or_else(|| "no API key".into());
    let reason = format!("{reason} ({caller})");
    if !api.node.accept_loss(key, &reason).await? {
        return Err(Problem::new(
            ProblemKind::LaneNotHalted,
            format!("lane {key} is not halted, so there is no loss to accept: nothing has changed"),
        ));
    }
    // The loss is accepted, whatever becomes of the read.
    let response = lane_response(&api, key, StatusCode::ACCEPTED).await;
    response.map_err(Problem::with_possible_effect)
}

pub(super) fn lane_key(parts: PathParts<(String, String)>) -> Result<LaneKey, Problem> {
    let Ok(Path((chain, signer))) = parts else {
        return Err(invalid_encoding().in_path("chainId/signer"));
    };
    Ok(LaneKey {
        chain_id: parse::chain_id(&chain).map_err(|violation| violation.in_path("chainId"))?,
        signer: parse::address(&signer).map_err(|violation| violation.in_path("signer"))?,
    })
}

async fn lane_response(api: &Api, key: LaneKey, status: StatusCode) -> Result<Response, Problem> {
    let lane = api.node.lane(key).await?.ok_or_else(|| {
        Problem::new(
            ProblemKind::UnknownLane,
            format!("no signer is configured for lane {key}"),
        )
    })?;
    let now = api.config.clock.now();
    Ok(response::json(status, &api_types::Lane::new(&lane, now)))
}

#[derive(Serialize)]
struct LaneList<'a> {
    lanes: Vec<api_types::Lane<'a>>,
    next: Option<String>,
}
