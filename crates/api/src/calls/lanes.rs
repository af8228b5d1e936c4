//! Lanes: who keeps them, and why they wait.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use domain::LaneKey;
use engine::public;
use serde::Serialize;

use crate::answer;
use crate::calls::{PathParts, badly_encoded};
use crate::parse::{self, Query};
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

/// `GET /api/v1/lanes`: every configured signer on every chain, in the order of their keys.
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let (after, limit) = parse::lane_page(&Query::read(uri.query(), &["limit", "cursor"])?)?;
    let mut lanes = api.node.lanes().await?;
    lanes.sort_by_key(|lane| lane.record.key);
    lanes.retain(|lane| after.is_none_or(|after| lane.record.key > after));
    let has_more = lanes.len() > limit;
    lanes.truncate(limit);
    let next = if has_more {
        lanes.last().map(|lane| lane.record.key.to_string())
    } else {
        None
    };
    let now = api.config.clock.now();
    Ok(answer::ok(&LaneList {
        lanes: lanes
            .iter()
            .map(|lane| public::Lane::new(lane, now))
            .collect(),
        next,
    }))
}

/// `GET /api/v1/lanes/{chainId}/{signer}`.
pub(crate) async fn one(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let Ok(Path((chain, signer))) = parts else {
        return Err(badly_encoded().path("chainId/signer"));
    };
    let key = LaneKey {
        chain_id: parse::chain_id(&chain).map_err(|broken| broken.path("chainId"))?,
        signer: parse::address(&signer).map_err(|broken| broken.path("signer"))?,
    };
    Query::read(uri.query(), &[])?;
    match api.node.lane(key).await? {
        Some(lane) => Ok(answer::ok(&public::Lane::new(
            &lane,
            api.config.clock.now(),
        ))),
        None => Err(Problem::new(
            ProblemKind::UnknownLane,
            format!("no signer is configured for lane {key}"),
        )),
    }
}

#[derive(Serialize)]
struct LaneList<'a> {
    lanes: Vec<public::Lane<'a>>,
    next: Option<String>,
}
