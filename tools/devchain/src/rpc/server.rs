//! HTTP around the JSON-RPC. The work of a request runs on a blocking thread, a bounded number at
//! a time: execution and SQLite never hold up the async runtime.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use browser_guard::{BrowserGuard, Refusal};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::answer_body;
use crate::{Inner, limits};

/// A dev chain that answers on a socket. Dropping it stops the server without waiting.
#[derive(Debug)]
pub struct DevChainServer {
    local_addr: SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<io::Result<()>>,
}

impl DevChainServer {
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops taking requests and waits, for a bounded time, until the running ones are answered.
    pub async fn shutdown(self) {
        // An error means that the server has stopped already.
        self.stop.send(()).ok();
        let abort = self.server.abort_handle();
        if tokio::time::timeout(limits::SHUTDOWN_GRACE, self.server)
            .await
            .is_err()
        {
            abort.abort();
        }
    }
}

#[derive(Clone)]
struct Server {
    chain: Arc<Inner>,
    permits: Arc<Semaphore>,
}

pub(crate) fn serve(chain: Arc<Inner>, listener: TcpListener) -> io::Result<DevChainServer> {
    let local_addr = listener.local_addr()?;
    let permits = Arc::new(Semaphore::new(limits::REQUESTS_MAX));
    let app = Router::new()
        .route("/", post(handle))
        .layer(DefaultBodyLimit::max(limits::BODY_BYTES_MAX))
        .with_state(Server { chain, permits });
    // Otherwise the end of a long answer can wait for the client's delayed acknowledgement. An error means that the
    // client has disconnected, which the connection detects itself.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let (stop, stopped) = oneshot::channel();
    let server = axum::serve(listener, app).with_graceful_shutdown(async {
        // The handle requested the shutdown or was dropped.
        stopped.await.ok();
    });
    let server = tokio::spawn(server.into_future());
    Ok(DevChainServer {
        local_addr,
        stop,
        server,
    })
}

async fn handle(State(server): State<Server>, request: Request) -> Response {
    if let Err(refused) = check(&request) {
        return refused.into_response(); // its body is not read
    }
    let body = match Bytes::from_request(request, &()).await {
        Ok(body) => body,
        Err(unread) => return unread.into_response(),
    };
    let Ok(permit) = server.permits.acquire_owned().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let work = tokio::task::spawn_blocking(move || {
        let answer = answer_body(&server.chain, &body);
        drop(permit);
        answer
    });
    match work.await {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// By the headers alone, that no web page sent the request.
fn check(request: &Request) -> Result<(), (StatusCode, String)> {
    let checked = BrowserGuard::default().check(request.uri(), request.headers());
    checked.map_err(|refusal| {
        let status = match refusal {
            Refusal::ForeignHost(_) => StatusCode::MISDIRECTED_REQUEST,
            Refusal::ForeignPage(_) => StatusCode::FORBIDDEN,
        };
        (status, refusal.to_string())
    })?;
    // As in geth. It also blocks web pages: a browser sends this type to another origin only after a preflight
    // request, which this server refuses.
    if is_json(request.headers()) {
        return Ok(());
    }
    let text = "invalid content type, only application/json is supported";
    Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, text.to_owned()))
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|value| value.split(';').next());
    media_type.is_some_and(|value| value.trim().eq_ignore_ascii_case("application/json"))
}
