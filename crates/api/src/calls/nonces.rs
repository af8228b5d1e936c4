//! Reserved nonces: allocate one, mark its use, and list them.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use domain::{B256, Holder, LaneKey, Mark, Nonce};
use engine::ports::NonceReservations;

use crate::calls::lanes::lane_key;
use crate::calls::{PathParts, invalid_encoding};
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
    let body = parse::read_json_body(&parts.headers, body, api.config.max_body).await?;
    parse::parse_empty_object(&body)?;
    let reservation = api.nonce_reservations(lane)?.allocate(lane).await?;
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
    let reservations = api
        .nonce_reservations(lane)?
        .list_reservations(lane)
        .await?;
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
    let (lane_nonce, body) = read_mark_request(&api, parts, request).await?;
    let (holder, reason) = parse::parse_release(&body)?;
    api.mark(
        lane_nonce,
        holder,
        Mark::Recyclable {
            reason,
            asked: None, // the nonce component queries the chain
        },
    )
    .await
}

/// Chain, signer and nonce in the path.
type NoncePath = PathParts<(String, String, String)>;
/// The nonce that a mark is about.
type LaneNonce = (LaneKey, Nonce);

async fn read_mark_request(
    api: &Api,
    parts: NoncePath,
    request: Request,
) -> Result<(LaneNonce, Bytes), Problem> {
    let Ok(Path((chain, signer, nonce))) = parts else {
        return Err(invalid_encoding().in_path("chainId/signer/nonce"));
    };
    let lane = lane_key(Ok(Path((chain, signer))))?;
    let nonce = parse_nonce(&nonce).map_err(|violation| violation.in_path("nonce"))?;
    let (parts, body) = request.into_parts();
    Query::parse(parts.uri.query(), &[])?;
    let body = parse::read_json_body(&parts.headers, body, api.config.max_body).await?;
    Ok(((lane, nonce), body))
}

fn parse_nonce(text: &str) -> Result<Nonce, RuleViolation> {
    // EIP-2681: no transaction may use the last nonce.
    let nonce = parse::plain_decimal(text).filter(|nonce| *nonce < u64::MAX);
    nonce.map(Nonce).ok_or_else(|| {
        RuleViolation::must_be("a nonce in decimal digits without leading zeros", text)
    })
}

impl Api {
    fn nonce_reservations(&self, lane: LaneKey) -> Result<&Arc<dyn NonceReservations>, Problem> {
        self.config.reservations.as_ref().ok_or_else(|| {
            if let Err(unknown) = self.node.check_configured(lane) {
                return unknown.into();
            }
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
        let (lane_nonce, body) = read_mark_request(self, parts, request).await?;
        let (holder, hash) = parse::parse_hash_mark(&body)?;
        self.mark(lane_nonce, holder, mark(hash)).await
    }

    async fn mark(
        &self,
        (lane, nonce): LaneNonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Response, Problem> {
        let reservation = self
            .nonce_reservations(lane)?
            .mark(lane, nonce, holder, mark)
            .await?;
        Ok(response::ok(&api_types::Reservation::new(&reservation)))
    }
}
