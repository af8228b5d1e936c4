//! Who may call what: API keys, their scopes, and the check before every call.

pub mod keys;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::MethodRouter;

use crate::access::keys::{ApiKey, Scope};
use crate::parse::{discard, header_text};
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

/// Whom the node serves.
#[derive(Clone, Debug)]
pub enum Auth {
    /// Everybody who reaches it. The configuration allows that on loopback only.
    None,
    /// Whoever shows one of these keys.
    Keys(Vec<ApiKey>),
}

/// What a call asks of its caller.
#[derive(Clone, Copy)]
pub(crate) enum Need {
    /// Nothing: load balancers and orchestrators have no key.
    Nothing,
    /// A key with one of these scopes.
    AnyOf(&'static [Scope]),
    /// To be a node of this cluster, which the call checks by itself (see `peers`).
    Cluster,
}

/// The name of the key that was shown, for those who want to know who asked.
#[derive(Clone)]
pub(crate) struct Caller(pub(crate) Arc<str>);

impl Need {
    /// Puts the check in front of a call.
    pub(crate) fn before(
        self,
        api: &Arc<Api>,
        call: MethodRouter<Arc<Api>>,
    ) -> MethodRouter<Arc<Api>> {
        match (self, &api.config.auth) {
            (Self::Nothing | Self::Cluster, _) | (Self::AnyOf(_), Auth::None) => call,
            (Self::AnyOf(scopes), Auth::Keys(_)) => {
                let door = Door {
                    api: Arc::clone(api),
                    scopes,
                };
                // Only in front of methods that exist: a wrong method is told to everybody.
                call.route_layer(from_fn_with_state(door, admit))
            }
        }
    }
}

/// The check in front of one call.
#[derive(Clone)]
struct Door {
    api: Arc<Api>,
    scopes: &'static [Scope],
}

async fn admit(
    State(door): State<Door>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    match door.check(request.headers()) {
        Ok(Some(caller)) => request.extensions_mut().insert(caller),
        Ok(None) => None,
        Err(problem) => {
            discard(request.into_body()).await;
            return Err(problem);
        }
    };
    Ok(next.run(request).await)
}

impl Door {
    /// Who calls; `None` where nobody is asked.
    fn check(&self, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
        let keys = match &self.api.config.auth {
            Auth::None => return Ok(None),
            Auth::Keys(keys) => keys,
        };
        let shown = bearer(headers)?;
        let Some(key) = keys::find(keys, shown) else {
            return Err(refused(
                "unknown",
                ProblemKind::Unauthenticated,
                "the API key is not known here: check it, or ask the operator of this node",
            ));
        };
        if self.scopes.iter().any(|scope| key.scopes().contains(scope)) {
            return Ok(Some(Caller(key.name().into())));
        }
        let detail = format!(
            "this call needs a key with the scope {}, and the key of {} has only {}",
            words(self.scopes, " or "),
            key.name(),
            words(key.scopes(), ", ")
        );
        Err(refused("scope", ProblemKind::MissingScope, detail))
    }
}

/// The key in header `Authorization`.
fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let malformed = |problem: Problem| {
        let detail = format!("{}; send `Authorization: Bearer <key>`", problem.detail);
        refused("malformed", ProblemKind::Unauthenticated, detail)
    };
    let Some(text) = header_text(headers, &AUTHORIZATION, "Authorization").map_err(malformed)?
    else {
        return Err(refused(
            "missing",
            ProblemKind::Unauthenticated,
            "this call needs an API key: send header `Authorization: Bearer <key>`",
        ));
    };
    let key = text
        .split_once(' ')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim());
    // What was sent is not repeated: it may be a secret of something else.
    key.filter(|key| keys::is_formed(key)).ok_or_else(|| {
        refused(
            "malformed",
            ProblemKind::Unauthenticated,
            "header `Authorization` must be `Bearer` and an API key, which begins with `lk_`",
        )
    })
}

fn refused(reason: &'static str, kind: ProblemKind, detail: impl Into<String>) -> Problem {
    metrics::counter!("lanekeeper_auth_refused_total", "reason" => reason).increment(1);
    Problem::new(kind, detail)
}

fn words(scopes: &[Scope], between: &str) -> String {
    let words: Vec<_> = scopes.iter().map(|scope| scope.as_str()).collect();
    words.join(between)
}
