//! The HTTP/1.1 server, tuned for many small requests on kept-alive connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::connection_limits::{ConnectionLimits, ConnectionPermit};
use crate::stall_guard::StallGuard;

/// How long a request's head may take, counted from when the connection becomes idle, so it also closes idle
/// connections. It is longer than the idle timeout of load balancers (60 s): the client must close first, or a
/// request may race the close.
const HEAD_READ_MAX: Duration = Duration::from_secs(75);
/// The largest request head, and the most that is buffered per connection.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// A client that accepts no byte of a response for this long is disconnected.
const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// How long pending requests may take when the node stops.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// The response on a connection too many; it is not served.
const TOO_MANY_CONNECTIONS: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
/// Pause after a failed accept, which is mostly a temporary lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `closing` becomes true (or loses its sender), then lets pending requests finish. One address has at most
/// `per_address` connections.
pub fn serve(
    listener: TcpListener,
    router: Router,
    per_address: usize,
    mut closing: watch::Receiver<bool>,
) -> BoxFuture<'static, io::Result<()>> {
    async move {
        let limits = ConnectionLimits::new(per_address);
        let mut connections = JoinSet::new();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEAD_READ_MAX)
            .max_buf_size(BUFFER_BYTES_MAX);
        loop {
            let (stream, from) = tokio::select! {
                biased;
                () = wait_closed(&mut closing) => break,
                accepted = accept(&listener) => accepted,
            };
            let Some(permit) = limits.admit(from) else {
                refuse(&stream, from);
                continue;
            };
            // Removes ended connections, so that the set does not grow without bound.
            while connections.try_join_next().is_some() {}
            connections.spawn(serve_connection(
                http.clone(),
                (stream, from),
                router.clone(),
                closing.clone(),
                permit,
            ));
        }
        drop(listener);
        let all_ended = async { while connections.join_next().await.is_some() {} };
        if timeout(CLOSE_MAX, all_ended).await.is_err() {
            tracing::warn!(
                count = connections.len(),
                "connections did not finish in time and are closed"
            );
            connections.shutdown().await;
        }
        Ok(())
    }
    .boxed()
}

/// Resolves when the node stops; a dropped sender means the same.
pub(crate) async fn wait_closed(closing: &mut watch::Receiver<bool>) {
    closing.wait_for(|closing| *closing).await.ok();
}

/// Accepts the next connection.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                // A connection that the client aborted before it was accepted is harmless.
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Closes a connection too many. Its client learns why, as far as the socket takes a few bytes at once.
fn refuse(stream: &TcpStream, from: SocketAddr) {
    tracing::debug!(%from, "a connection is refused: its address, or all together, hold too many");
    stream.try_write(TOO_MANY_CONNECTIONS).ok();
}

async fn serve_connection(
    http: http1::Builder,
    (stream, from): (TcpStream, SocketAddr),
    router: Router,
    mut closing: watch::Receiver<bool>,
    _permit: ConnectionPermit,
) {
    // Responses are small and complete: waiting to fill a packet only adds latency. A socket that refuses the
    // option still works.
    stream.set_nodelay(true).ok();
    let io = TokioIo::new(StallGuard::new(stream, WRITE_STALL_MAX));
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(from));
        router.call(request)
    });
    let connection = http.serve_connection(io, service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = wait_closed(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}
