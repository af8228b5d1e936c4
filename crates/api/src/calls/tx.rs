//! Txs: create one or many, read and list them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use domain::{LaneKey, TxId};
use engine::node::{AcceptedTx, Origin, WaitFor};
use engine::ports::TxRecord;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::calls::{PathParts, parse_path_part};
use crate::middleware::origin;
use crate::parse::{self, Query, RequestContext, Wait};
use crate::problem::{Problem, ProblemKind};
use crate::response;
use crate::router::Api;

/// `POST /api/v1/tx`: the request is durable when the response is 202 (new) or 200 (already known).
pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let wait = parse::parse_wait(&Query::parse(parts.uri.query(), &["wait", "timeout"])?)?;
    let key = parse::idempotency_key(&parts.headers)?;
    let body = parse::read_json_body(&parts.headers, body, api.config.max_body).await?;
    let request = parse::parse_new_tx(&body, api.context(key, &origin(&parts)))?;
    // Acquired before the request is accepted: a refusal afterwards would hide the acceptance.
    let permit = api
        .acquire_waiter_permit(wait)
        .map_err(Problem::with_possible_effect)?;
    let accepted = api.node.create(request).await?;
    let status = accepted_status(&accepted);
    let record = match permit {
        None => accepted.record,
        // The request is accepted even if waiting fails, so a failed wait is not an error.
        Some(permit) => match api.wait(accepted.record.tx.id, wait, permit).await {
            Ok(Some(record)) => record,
            Ok(None) | Err(_) => accepted.record,
        },
    };
    Ok(response::json(status, &api_types::Tx::from(&record)))
}

/// `POST /api/v1/tx/batch`: each item has its own result, in the order given.
pub(crate) async fn create_many(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    Query::parse(parts.uri.query(), &[])?;
    if parse::idempotency_key(&parts.headers)?.is_some() {
        return Err(Problem::new(
            ProblemKind::InvalidHeader,
            "header `Idempotency-Key` does not cover a batch: send a `requestId` with each item",
        ));
    }
    let body = parse::read_json_body(&parts.headers, body, api.config.max_body).await?;
    let parsed = parse::parse_batch(&body, api.context(None, &origin(&parts)))?;

    // The node gets the valid items; each `Ok` of `checked` stands for the next of its answers.
    let mut requests = Vec::with_capacity(parsed.len());
    let mut checked = Vec::with_capacity(parsed.len());
    for request in parsed {
        checked.push(request.map(|request| requests.push(request)));
    }
    let mut answers = api.node.create_many(requests).await.into_iter();
    let results: Vec<Result<AcceptedTx, Problem>> = checked
        .into_iter()
        .map(|checked| {
            checked?;
            let answer = answers.next().expect("the node answers every request");
            answer.map_err(Problem::from)
        })
        .collect();
    assert_eq!(answers.len(), 0, "the node answers every request once");
    let results = results.iter().map(BatchResult::from).collect();
    Ok(response::ok(&BatchResults { results }))
}

/// `GET /api/v1/tx/{txId}`, optionally waiting for a state.
pub(crate) async fn by_id(
    State(api): State<Arc<Api>>,
    id: PathParts<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let id = parse_path_part(id, "txId", parse::tx_id)?;
    let wait = parse::parse_wait(&Query::parse(uri.query(), &["wait", "timeout"])?)?;
    let record = match api.acquire_waiter_permit(wait)? {
        None => api.node.tx(id).await?,
        Some(permit) => api.wait(id, wait, permit).await?,
    };
    tx_response(record, || format!("there is no tx {id}"))
}

/// `GET /api/v1/tx/by-request`: by the client's idempotency key.
pub(crate) async fn by_request(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::parse(uri.query(), &["chainId", "signer", "requestId"])?;
    let chain_id = match (query.get("chainId"), api.node.only_chain()) {
        (None, Some(only)) => only,
        (None | Some(_), _) => query.required("chainId", parse::chain_id)?,
    };
    let signer = query.required("signer", parse::address)?;
    let request_id = query.required("requestId", parse::request_id)?;
    let lane = LaneKey { chain_id, signer };
    let record = api.node.tx_by_request(lane, &request_id).await?;
    tx_response(record, || {
        format!("lane {lane} has no tx with requestId {request_id}")
    })
}

/// `GET /api/v1/tx/by-hash/{hash}`: by the hash of any of its attempts.
pub(crate) async fn by_hash(
    State(api): State<Arc<Api>>,
    hash: PathParts<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let hash = parse_path_part(hash, "hash", parse::hash)?;
    Query::parse(uri.query(), &[])?;
    let record = api.node.tx_by_hash(hash).await?;
    tx_response(record, || format!("no attempt has the hash {hash}"))
}

/// `GET /api/v1/tx`: newest first, or lane by lane where a signer or an open state is named.
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::parse(
        uri.query(),
        &["chainId", "signer", "state", "limit", "cursor"],
    )?;
    let page = api.node.txs(&parse::tx_filter(&query)?).await?;
    Ok(response::ok(&TxList {
        txs: page.txs.iter().map(api_types::Tx::from).collect(),
        next: page.next.map(parse::tx_cursor_text),
    }))
}

impl Api {
    fn context<'a>(&self, key: Option<&'a str>, origin: &'a Origin) -> RequestContext<'a> {
        RequestContext {
            key,
            only_chain: self.node.only_chain(),
            origin,
        }
    }

    /// A permit of the bounded number of waiters; `None` when the caller does not wait.
    fn acquire_waiter_permit(&self, wait: Wait) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        if wait.until == WaitFor::Accepted {
            return Ok(None);
        }
        match Arc::clone(&self.waiters).try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            Err(_) => Err(Problem::new(
                ProblemKind::TooManyWaiters,
                format!(
                    "{} callers are waiting already: send it without `wait`, or try again in a moment",
                    self.config.max_waiters
                ),
            )),
        }
    }

    /// Waits at most until this node stops; then the caller gets the tx as it is.
    async fn wait(
        &self,
        id: TxId,
        wait: Wait,
        _permit: OwnedSemaphorePermit,
    ) -> Result<Option<TxRecord>, Problem> {
        tokio::select! {
            biased;
            waited = self.node.wait(id, wait.until, wait.timeout) => waited.map_err(|refusal| Problem::from(refusal).of_read()),
            () = self.wait_closing() => Ok(self.node.tx(id).await?),
        }
    }
}

fn accepted_status(accepted: &AcceptedTx) -> StatusCode {
    if accepted.is_new {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    }
}

fn tx_response(
    record: Option<TxRecord>,
    missing: impl FnOnce() -> String,
) -> Result<Response, Problem> {
    match record {
        Some(record) => Ok(response::ok(&api_types::Tx::from(&record))),
        None => Err(Problem::new(ProblemKind::UnknownTx, missing())),
    }
}

#[derive(Serialize)]
struct TxList<'a> {
    txs: Vec<api_types::Tx<'a>>,
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
    tx: Option<api_types::Tx<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a Problem>,
}

impl<'a> From<&'a Result<AcceptedTx, Problem>> for BatchResult<'a> {
    fn from(result: &'a Result<AcceptedTx, Problem>) -> Self {
        match result {
            Ok(accepted) => Self {
                status: accepted_status(accepted).as_u16(),
                tx: Some(api_types::Tx::from(&accepted.record)),
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
