//! Txs: make one or many, and look at them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use domain::{LaneKey, TxId};
use engine::node::{Accepted, WaitFor};
use engine::ports::TxRecord;
use engine::public;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::answer;
use crate::calls::{PathParts, path_part};
use crate::identify::origin;
use crate::parse::{self, Door, Query, Wait};
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

/// `POST /api/v1/tx`: durable when it answers 202 (new) or 200 (known).
pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let wait = parse::wait(&Query::read(parts.uri.query(), &["wait", "timeout"])?)?;
    let key = parse::idempotency_key(&parts.headers)?;
    let body = parse::json_body(&parts.headers, body, api.config.max_body).await?;
    let request = parse::new_tx(
        &body,
        Door {
            key,
            only_chain: api.node.only_chain(),
            origin: &origin(&parts),
        },
    )?;
    // Taken before the request is accepted: afterwards a refusal to wait would hide the acceptance.
    let place = api.place_to_wait(wait)?;
    let accepted = api.node.create(request).await?;
    let status = status_of(&accepted);
    let record = match place {
        None => accepted.record,
        // Whatever comes of waiting, the request is accepted and that is the answer.
        Some(place) => match api.wait(accepted.record.tx.id, wait, place).await {
            Ok(Some(record)) => record,
            Ok(None) | Err(_) => accepted.record,
        },
    };
    Ok(answer::json(status, &public::Tx::from(&record)))
}

/// `POST /api/v1/tx/batch`: each for itself, answered in the order given.
pub(crate) async fn create_many(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    Query::read(parts.uri.query(), &[])?;
    if parse::idempotency_key(&parts.headers)?.is_some() {
        return Err(Problem::new(
            ProblemKind::InvalidHeader,
            "header `Idempotency-Key` does not cover a batch: send a `requestId` with each item",
        ));
    }
    let body = parse::json_body(&parts.headers, body, api.config.max_body).await?;
    let parsed = parse::batch(
        &body,
        Door {
            key: None,
            only_chain: api.node.only_chain(),
            origin: &origin(&parts),
        },
    )?;

    let mut good = Vec::with_capacity(parsed.len());
    let mut refused = Vec::new();
    for (item, request) in parsed.into_iter().enumerate() {
        match request {
            Ok(request) => good.push((item, request)),
            Err(problem) => refused.push((item, Err(problem))),
        }
    }
    let (places, requests): (Vec<usize>, Vec<_>) = good.into_iter().unzip();
    let answers = api.node.create_many(requests).await;
    assert_eq!(
        answers.len(),
        places.len(),
        "the node answers every request of a batch"
    );

    let answers = answers
        .into_iter()
        .map(|answer| answer.map_err(Problem::from));
    let mut results: Vec<_> = places.into_iter().zip(answers).chain(refused).collect();
    results.sort_by_key(|(item, _)| *item);
    let results = results
        .iter()
        .map(|(_, result)| BatchResult::from(result))
        .collect();
    Ok(answer::ok(&BatchResults { results }))
}

/// `GET /api/v1/tx/{txId}`, waiting if asked to.
pub(crate) async fn by_id(
    State(api): State<Arc<Api>>,
    id: PathParts<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let id = path_part(id, "txId", parse::tx_id)?;
    let wait = parse::wait(&Query::read(uri.query(), &["wait", "timeout"])?)?;
    let record = match api.place_to_wait(wait)? {
        None => api.node.tx(id).await?,
        Some(place) => api.wait(id, wait, place).await?,
    };
    found(record, || format!("there is no tx {id}"))
}

/// `GET /api/v1/tx/by-request`: by the key of the business.
pub(crate) async fn by_request(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::read(uri.query(), &["chainId", "signer", "requestId"])?;
    let chain_id = match (query.get("chainId"), api.node.only_chain()) {
        (None, Some(only)) => only,
        (None | Some(_), _) => query.required("chainId", parse::chain_id)?,
    };
    let signer = query.required("signer", parse::address)?;
    let request_id = query.required("requestId", parse::request_id)?;
    let lane = LaneKey { chain_id, signer };
    let record = api.node.tx_by_request(lane, &request_id).await?;
    found(record, || {
        format!("lane {lane} has no tx with requestId {request_id}")
    })
}

/// `GET /api/v1/tx/by-hash/{hash}`: by the hash of any of its attempts.
pub(crate) async fn by_hash(
    State(api): State<Arc<Api>>,
    hash: PathParts<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let hash = path_part(hash, "hash", parse::hash)?;
    Query::read(uri.query(), &[])?;
    let record = api.node.tx_by_hash(hash).await?;
    found(record, || format!("no attempt of ours has the hash {hash}"))
}

/// `GET /api/v1/tx`: newest first.
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::read(
        uri.query(),
        &["chainId", "signer", "state", "limit", "cursor"],
    )?;
    let page = api.node.txs(&parse::tx_filter(&query)?).await?;
    Ok(answer::ok(&TxList {
        txs: page.txs.iter().map(public::Tx::from).collect(),
        next: page.next.map(|id| id.to_string()),
    }))
}

impl Api {
    /// A place among the bounded number of waiters; none is needed by who does not wait.
    fn place_to_wait(&self, wait: Wait) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        if wait.until == WaitFor::Accepted {
            return Ok(None);
        }
        match Arc::clone(&self.waiters).try_acquire_owned() {
            Ok(place) => Ok(Some(place)),
            Err(_) => Err(Problem::new(
                ProblemKind::TooManyWaiters,
                format!(
                    "{} callers wait already: send it without `wait`, or try again in a moment",
                    self.config.max_waiters
                ),
            )),
        }
    }

    /// Waits, but not beyond the life of this node: then the caller gets the tx as it is.
    async fn wait(
        &self,
        id: TxId,
        wait: Wait,
        _place: OwnedSemaphorePermit,
    ) -> Result<Option<TxRecord>, Problem> {
        tokio::select! {
            biased;
            waited = self.node.wait(id, wait.until, wait.timeout) => Ok(waited?),
            () = self.closing() => Ok(self.node.tx(id).await?),
        }
    }
}

fn status_of(accepted: &Accepted) -> StatusCode {
    if accepted.is_new {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    }
}

fn found(record: Option<TxRecord>, missing: impl FnOnce() -> String) -> Result<Response, Problem> {
    match record {
        Some(record) => Ok(answer::ok(&public::Tx::from(&record))),
        None => Err(Problem::new(ProblemKind::UnknownTx, missing())),
    }
}

#[derive(Serialize)]
struct TxList<'a> {
    txs: Vec<public::Tx<'a>>,
    next: Option<String>,
}

#[derive(Serialize)]
struct BatchResults<'a> {
    results: Vec<BatchResult<'a>>,
}

/// One item's own status, with either the tx or the problem.
#[derive(Serialize)]
struct BatchResult<'a> {
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx: Option<public::Tx<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a Problem>,
}

impl<'a> From<&'a Result<Accepted, Problem>> for BatchResult<'a> {
    fn from(result: &'a Result<Accepted, Problem>) -> Self {
        match result {
            Ok(accepted) => Self {
                status: status_of(accepted).as_u16(),
                tx: Some(public::Tx::from(&accepted.record)),
                problem: None,
            },
            Err(problem) => Self {
                status: problem.kind.status().as_u16(),
                tx: None,
                problem: Some(problem),
            },
        }
    }
}
