//! Lent nonces: borrowing one, and saying what became of it.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use domain::{Holder, LaneKey, Mark, Nonce};
use engine::ports::NonceReservations;
use engine::public;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::answer;
use crate::calls::lanes::lane_key;
use crate::calls::{PathParts, badly_encoded};
use crate::parse::{self, Broken, Query, excerpt};
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

/// The longest reason for which a nonce is given back.
const REASON_MAX: usize = 500;

/// `POST /api/v1/lanes/{chainId}/{signer}/nonces`: lends the smallest free nonce.
pub(crate) async fn allocate(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let lane = lane_key(parts)?;
    let (parts, body) = request.into_parts();
    Query::read(parts.uri.query(), &[])?;
    // Nothing is to be said; what is said all the same must be understood.
    if parts.headers.contains_key(axum::http::header::CONTENT_TYPE) {
        let body = parse::json_body(&parts.headers, body, api.config.max_body).await?;
        read::<Nothing>(&body)?;
    } else {
        parse::discard(body).await;
    }
    let reservation = api.lender()?.allocate(lane).await?;
    let body = public::Reservation::new(&reservation);
    Ok(answer::json(StatusCode::CREATED, &body))
}

/// `GET /api/v1/lanes/{chainId}/{signer}/nonces`: what is lent at present.
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let lane = lane_key(parts)?;
    Query::read(uri.query(), &[])?;
    let lent = api.lender()?.list_reservations(lane).await?;
    Ok(answer::ok(&public::ReservationList::new(&lent)))
}

/// `POST …/nonces/{nonce}/submitted`: a transaction is out.
pub(crate) async fn submitted(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let (place, said) = hear::<Sent>(&api, parts, request).await?;
    let mark = Mark::Submitted(said.tx_hash()?);
    api.mark(place, &said.holder, mark).await
}

/// `POST …/nonces/{nonce}/used`: the nonce is used.
pub(crate) async fn used(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let (place, said) = hear::<Sent>(&api, parts, request).await?;
    let mark = Mark::Used(said.tx_hash()?);
    api.mark(place, &said.holder, mark).await
}

/// `POST …/nonces/{nonce}/recyclable`: the nonce is given back.
pub(crate) async fn recyclable(
    State(api): State<Arc<Api>>,
    parts: PathParts<(String, String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let (place, said) = hear::<GivenBack>(&api, parts, request).await?;
    let GivenBack { holder, reason } = said;
    if reason.trim().is_empty() || reason.len() > REASON_MAX {
        let rule = format!("must have 1 to {REASON_MAX} bytes: say why the nonce is not used");
        return Err(Broken::by(rule).field("reason"));
    }
    api.mark(
        place,
        &holder,
        Mark::Recyclable {
            reason,
            asked: None, // the lender asks
        },
    )
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Sent {
    holder: String,
    tx_hash: String,
}

impl Sent {
    fn tx_hash(&self) -> Result<domain::B256, Problem> {
        parse::hash(&self.tx_hash).map_err(|broken| broken.field("txHash"))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GivenBack {
    holder: String,
    reason: String,
}

/// Which nonce a mark is about.
type Place = (LaneKey, Nonce);

async fn hear<T: DeserializeOwned>(
    api: &Api,
    parts: PathParts<(String, String, String)>,
    request: Request,
) -> Result<(Place, T), Problem> {
    let Ok(Path((chain, signer, nonce))) = parts else {
        return Err(badly_encoded().path("chainId/signer/nonce"));
    };
    let lane = lane_key(Ok(Path((chain, signer))))?;
    let nonce = nonce_of(&nonce).map_err(|broken| broken.path("nonce"))?;
    let (parts, body) = request.into_parts();
    Query::read(parts.uri.query(), &[])?;
    let body = parse::json_body(&parts.headers, body, api.config.max_body).await?;
    Ok(((lane, nonce), read(&body)?))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let kind = match error.is_data() {
            true => ProblemKind::InvalidField,
            false => ProblemKind::InvalidJson,
        };
        Problem::new(kind, error.to_string())
    })
}

fn nonce_of(text: &str) -> Result<Nonce, Broken> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let nonce = text.parse().ok().filter(|_| is_plain);
    // The last one is no transaction's: EIP-2681.
    let nonce = nonce.filter(|nonce| *nonce < u64::MAX);
    nonce.map(Nonce).ok_or_else(|| {
        Broken::by(format!(
            "must be a nonce in decimal digits, not {}",
            excerpt(text)
        ))
    })
}

fn holder_of(text: &str) -> Result<Holder, Problem> {
    let holder = if text.len() == 36 {
        Uuid::try_parse(text).ok()
    } else {
        None
    };
    holder.map(Holder).ok_or_else(|| {
        let rule = format!(
            "must be the holder that came with the nonce, not {}",
            excerpt(text)
        );
        Broken::by(rule).field("holder")
    })
}

impl Api {
    fn lender(&self) -> Result<&Arc<dyn NonceReservations>, Problem> {
        self.config.lender.as_ref().ok_or_else(|| {
            Problem::new(
                ProblemKind::NotReservable,
                "no account lends its nonces here: add a [[signer]] with kind = \"external\" and its address",
            )
        })
    }

    async fn mark(&self, place: Place, holder: &str, mark: Mark) -> Result<Response, Problem> {
        let (lane, nonce) = place;
        let holder = holder_of(holder)?;
        let reservation = self.lender()?.mark(lane, nonce, holder, mark).await?;
        Ok(answer::ok(&public::Reservation::new(&reservation)))
    }
}
