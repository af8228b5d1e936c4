//! Reserved nonces: allocate one, mark its use, and list them.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use domain::{B256, Holder, LaneKey, Mark, Nonce};
use engine::ports::NonceReservations;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::calls::lanes::lane_key;
use crate::calls::{PathParts, REASON_MAX, invalid_encoding};
use crate::parse::{self, Query, RuleViolation};
use crate::problem::{Problem, ProblemKind};
use crate::response;
use crate::router::Api;

/// `POST /api/v1/lanes/{chainId}/{signer}/nonces`: reserves the smallest free nonce.
pub(crate) async fn allocate(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let lane = lane_key(parts)?;
    let (parts, body) = request.into_parts();
    Query::parse(parts.uri.query(), &[])?;
    // A body is not needed; one that is sent must be an empty object.
    let body = parse::read_json_body(&parts.headers, body, api.config.max_body).await?;
    if !body.is_empty() {
        parse_body::<EmptyBody>(&body)?;
    }
    let reservation = api.nonce_reservations()?.allocate(lane).await?;
    let body = api_types::Reservation::new(&reservation);
    Ok(response::json(StatusCode::CREATED, &body))
}

/// `GET /api/v1/lanes/{chainId}/{signer}/nonces`: the open reservations.
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let lane = lane_key(parts)?;
    Query::parse(uri.query(), &[])?;
    let reservations = api.nonce_reservations()?.list_reservations(lane).await?;
    Ok(response::ok(&api_types::ReservationList::new(
        &reservations,
    )))
}

/// `POST …/nonces/{nonce}/submitted`: a transaction with this nonce was sent.
pub(crate) async fn submitted(
    State(api): State<Arc<Api>>,
    parts: NoncePath,
    request: Request,
) -> Result<Response, Problem> {
    api.mark_with_hash(parts, request, Mark::Submitted).await
}

/// `POST …/nonces/{nonce}/used`: the nonce is used.
pub(crate) async fn used(
    State(api): State<Arc<Api>>,
    parts: NoncePath,
    request: Request,
) -> Result<Response, Problem> {
    api.mark_with_hash(parts, request, Mark::Used).await
}

/// `POST …/nonces/{nonce}/recyclable`: the holder releases the nonce.
pub(crate) async fn recyclable(
    State(api): State<Arc<Api>>,
    parts: NoncePath,
    request: Request,
) -> Result<Response, Problem> {
    let (lane_nonce, body) = read_mark_request::<RecyclableBody>(&api, parts, request).await?;
    let RecyclableBody { holder, reason } = body;
    if reason.trim().is_empty() || reason.len() > REASON_MAX {
        let rule = format!("must have 1 to {REASON_MAX} bytes: explain why the nonce is not used");
        return Err(RuleViolation::new(rule).in_field("reason"));
    }
    api.mark(
        lane_nonce,
        &holder,
        Mark::Recyclable {
            reason,
            asked: None, // the nonce component queries the chain
        },
    )
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmptyBody {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TxHashBody {
    holder: String,
    tx_hash: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RecyclableBody {
    holder: String,
    reason: String,
}

/// Chain, signer and nonce in the path.
type NoncePath = PathParts<(String, String, String)>;
/// The nonce that a mark is about.
type LaneNonce = (LaneKey, Nonce);

async fn read_mark_request<T: DeserializeOwned>(
    api: &Api,
    parts: NoncePath,
    request: Request,
) -> Result<(LaneNonce, T), Problem> {
    let Ok(Path((chain, signer, nonce))) = parts else {
        return Err(invalid_encoding().in_path("chainId/signer/nonce"));
    };
    let lane = lane_key(Ok(Path((chain, signer))))?;
    let nonce = parse_nonce(&nonce).map_err(|violation| violation.in_path("nonce"))?;
    let (parts, body) = request.into_parts();
    Query::parse(parts.uri.query(), &[])?;
    let body = parse::read_json_body(&parts.headers, body, api.config.max_body).await?;
    Ok(((lane, nonce), parse_body(&body)?))
}

fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let kind = match error.is_data() {
            true => ProblemKind::InvalidField,
            false => ProblemKind::InvalidJson,
        };
        Problem::new(kind, error.to_string())
    })
}

fn parse_nonce(text: &str) -> Result<Nonce, RuleViolation> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let nonce = text.parse().ok().filter(|_| is_plain);
    // EIP-2681: no transaction may use the last nonce.
    let nonce = nonce.filter(|nonce| *nonce < u64::MAX);
    nonce
        .map(Nonce)
        .ok_or_else(|| RuleViolation::must_be("a nonce in decimal digits", text))
}

fn parse_holder(text: &str) -> Result<Holder, Problem> {
    parse::hyphenated_uuid(text).map(Holder).ok_or_else(|| {
        let expected = "the holder that was returned with the nonce";
        RuleViolation::must_be(expected, text).in_field("holder")
    })
}

impl Api {
    fn nonce_reservations(&self) -> Result<&Arc<dyn NonceReservations>, Problem> {
        self.config.reservations.as_ref().ok_or_else(|| {
            Problem::new(
                ProblemKind::NotReservable,
                "no account of this node has reservable nonces: add a [[signer]] with kind = \"external\" and its address",
            )
        })
    }

    async fn mark_with_hash(
        &self,
        parts: NoncePath,
        request: Request,
        mark: fn(B256) -> Mark,
    ) -> Result<Response, Problem> {
        let (lane_nonce, body) = read_mark_request::<TxHashBody>(self, parts, request).await?;
        let hash = parse::hash(&body.tx_hash).map_err(|violation| violation.in_field("txHash"))?;
        self.mark(lane_nonce, &body.holder, mark(hash)).await
    }

    async fn mark(
        &self,
        (lane, nonce): LaneNonce,
        holder: &str,
        mark: Mark,
    ) -> Result<Response, Problem> {
        let holder = parse_holder(holder)?;
        let reservation = self
            .nonce_reservations()?
            .mark(lane, nonce, holder, mark)
            .await?;
        Ok(response::ok(&api_types::Reservation::new(&reservation)))
    }
}
