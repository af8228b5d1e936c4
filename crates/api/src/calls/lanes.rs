//! Lanes: who keeps them, and why they wait.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use domain::LaneKey;
use engine::public;
use serde::{Deserialize, Serialize};

use crate::answer;
use crate::calls::{PathParts, badly_encoded};
use crate::identify::origin;
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
    let key = lane_key(parts)?;
    Query::read(uri.query(), &[])?;
    show(&api, key, StatusCode::OK).await
}

/// `POST /api/v1/lanes/{chainId}/{signer}/resume`: an operator accepts what a halted lane has lost.
pub(crate) async fn resume(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let key = lane_key(parts)?;
    let (parts, body) = request.into_parts();
    Query::read(parts.uri.query(), &[])?;
    let body = parse::json_body(&parts.headers, body, api.config.max_body).await?;
    let Resume {
        reason,
        accept_loss,
    } = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(ProblemKind::InvalidJson, error.to_string()))?;
    if !accept_loss || reason.trim().is_empty() || reason.len() > REASON_MAX {
        return Err(Problem::new(
            ProblemKind::InvalidField,
            format!(
                "a halted lane goes on only with `acceptLoss: true` and a `reason` of 1 to \
                 {REASON_MAX} bytes: compare it with the chain first"
            ),
        ));
    }
    let caller = origin(&parts)
        .caller
        .unwrap_or_else(|| "nobody named".into());
    let told = format!("{reason} ({caller})");
    api.node.accept_loss(key, &told).await?;
    show(&api, key, StatusCode::ACCEPTED).await
}

/// The longest reason.
const REASON_MAX: usize = 500;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Resume {
    reason: String,
    accept_loss: bool,
}

pub(super) fn lane_key(parts: PathParts<(String, String)>) -> Result<LaneKey, Problem> {
    let Ok(Path((chain, signer))) = parts else {
        return Err(badly_encoded().path("chainId/signer"));
    };
    Ok(LaneKey {
        chain_id: parse::chain_id(&chain).map_err(|broken| broken.path("chainId"))?,
        signer: parse::address(&signer).map_err(|broken| broken.path("signer"))?,
    })
}

async fn show(api: &Api, key: LaneKey, status: StatusCode) -> Result<Response, Problem> {
    let lane = api.node.lane(key).await?.ok_or_else(|| {
        Problem::new(
            ProblemKind::UnknownLane,
            format!("no signer is configured for lane {key}"),
        )
    })?;
    let now = api.config.clock.now();
    Ok(answer::json(status, &public::Lane::new(&lane, now)))
}

#[derive(Serialize)]
struct LaneList<'a> {
    lanes: Vec<public::Lane<'a>>,
    next: Option<String>,
}
