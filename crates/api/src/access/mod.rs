//! Access control: API keys, their scopes, and the check before every call.

mod browser;
pub mod keys;

pub(crate) use browser::refuse_foreign_page;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::MethodRouter;

use crate::access::keys::{ApiKey, Scope};
use crate::connection_limits::count_refused_connection;
use crate::parse::header_text;
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

/// How callers authenticate.
#[derive(Clone, Debug)]
pub enum Auth {
    /// No authentication. The configuration allows that on loopback only.
    None,
    /// By one of these API keys.
    Keys(Vec<ApiKey>),
}

impl Auth {
    /// Whether a caller is known, whatever it may do.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::None => true,
            Self::Keys(known) => {
                let presented = headers.get(AUTHORIZATION).and_then(|it| it.to_str().ok());
                let presented = presented.and_then(key_of_bearer);
                presented.is_some_and(|key| keys::find_key(known, key).is_some())
            }
        }
    }
}

/// What a call requires of its caller.
#[derive(Clone, Copy)]
pub(crate) enum AccessRule {
    /// Nothing: load balancers and orchestrators have no key.
    Public,
    /// A key with one of these scopes.
    AnyOf(&'static [Scope]),
    /// A MAC of this cluster, or without a secret what only a program on this machine sends; the call verifies it itself
    /// (see `peers`).
    Cluster,
}

/// Marks the requests of a connection that is one too many, where health checks and nodes are served only.
#[derive(Clone, Copy)]
pub(crate) struct RestrictedConnection;

/// The name of the caller's API key.
#[derive(Clone)]
pub(crate) struct Caller(pub(crate) Arc<str>);

impl AccessRule {
    /// Adds the check in front of a call.
    pub(crate) fn guard(
        self,
        api: &Arc<Api>,
        call: MethodRouter<Arc<Api>>,
    ) -> MethodRouter<Arc<Api>> {
        let Self::AnyOf(scopes) = self else {
            return call;
        };
        // Only in front of methods that exist: a wrong method gets a 405 without a key.
        let call = match &api.config.auth {
            Auth::None => call,
            Auth::Keys(keys) => {
                let keys = Arc::from(keys.as_slice());
                let check = ScopeCheck { keys, scopes };
                call.route_layer(from_fn_with_state(check, authenticate))
            }
        };
        call.route_layer(from_fn_with_state(Arc::clone(api), check_way))
    }
}

/// Checks how a request came here: on which connection, and from which page. The body of a refused one is not read.
async fn check_way(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if request.extensions().get::<RestrictedConnection>().is_some() {
        count_refused_connection();
        let problem = Problem::new(
            ProblemKind::TooManyConnections,
            "this address, or all together, have too many connections: close some, or reuse them",
        );
        return Err(match request.method().is_safe() {
            true => problem,
            false => problem.with_possible_effect(),
        });
    }
    browser::check(&api.config.browser_guard, &request)?;
    Ok(next.run(request).await)
}

/// The check in front of one call.
#[derive(Clone)]
struct ScopeCheck {
    keys: Arc<[ApiKey]>,
    scopes: &'static [Scope],
}

async fn authenticate(
    State(check): State<ScopeCheck>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    match check.identify_caller(request.headers()) {
        Ok(caller) => request.extensions_mut().insert(caller),
        // Its body is not read: a stranger gets no time and no memory of this node.
        Err(problem) => return Err(problem),
    };
    Ok(next.run(request).await)
}

impl ScopeCheck {
    /// The caller, if its key has one of the scopes.
    fn identify_caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let presented = bearer_token(headers)?;
        let Some(key) = keys::find_key(&self.keys, presented) else {
            return Err(count_refusal(
                "unknown",
                ProblemKind::Unauthenticated,
                "the API key is not known here: check it, or contact the operator of this node",
            ));
        };
        if self.scopes.iter().any(|scope| key.scopes().contains(scope)) {
            return Ok(Caller(key.name().into()));
        }
        let detail = format!(
            "this call needs a key with the scope {}, and the key of {} has only {}",
            join_scopes(self.scopes, " or "),
            key.name(),
            join_scopes(key.scopes(), ", ")
        );
        Err(count_refusal("scope", ProblemKind::MissingScope, detail))
    }
}

/// The key in header `Authorization`.
fn bearer_token(headers: &HeaderMap) -> Result<&str, Problem> {
    let malformed = |problem: Problem| {
        let detail = format!("{}; send `Authorization: Bearer <key>`", problem.detail);
        count_refusal("malformed", ProblemKind::Unauthenticated, detail)
    };
    let Some(text) = header_text(headers, &AUTHORIZATION, "Authorization").map_err(malformed)?
    else {
        return Err(count_refusal(
            "missing",
            ProblemKind::Unauthenticated,
            "this call needs an API key: send header `Authorization: Bearer <key>`",
        ));
    };
    // The value is not repeated in the response: it may be a secret of another system.
    key_of_bearer(text).ok_or_else(|| {
        count_refusal(
            "malformed",
            ProblemKind::Unauthenticated,
            "header `Authorization` must be `Bearer` and an API key, which begins with `lk_`",
        )
    })
}

/// The key in `Bearer <key>`.
fn key_of_bearer(text: &str) -> Option<&str> {
    let (scheme, key) = text.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && keys::has_key_format(key)).then_some(key)
}

fn count_refusal(reason: &'static str, kind: ProblemKind, detail: impl Into<String>) -> Problem {
    metrics::counter!("lanekeeper_auth_refused_total", "reason" => reason).increment(1);
    Problem::new(kind, detail)
}

fn join_scopes(scopes: &[Scope], between: &str) -> String {
    let names: Vec<_> = scopes.iter().map(|scope| scope.as_str()).collect();
    names.join(between)
}
