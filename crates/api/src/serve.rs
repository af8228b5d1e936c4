//! The HTTP/1.1 server, tuned for many small requests on kept-alive connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::access::RestrictedConnection;
use crate::connection_limits::{ConnectionLimits, ConnectionPermit, Service};
use crate::shared_socket::SharedSocket;
use crate::stall_guard::StallGuard;

/// How long a request's head may take, counted from when the connection becomes idle, so it also closes idle
/// connections. It is longer than the idle timeout of load balancers (60 s): the client must close first, or a
/// request may race the close.
const HEAD_READ_MAX: Duration = Duration::from_secs(75);
/// The same on a restricted connection, which ends after one request: idle ones would keep health checks out.
const RESTRICTED_HEAD_READ_MAX: Duration = Duration::from_secs(5);
/// How soon a client that has gone is noticed, whatever it sent before.
const GONE_CHECK_PERIOD: Duration = Duration::from_secs(1);
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
    (stream, from): (TcpStream, SocketAddr),
    router: Router,
    mut closing: watch::Receiver<bool>,
    permit: ConnectionPermit,
) {
    // Responses are small and complete: waiting to fill a packet only adds latency. A socket that refuses the
    // option still works.
    stream.set_nodelay(true).ok();
    let socket = Arc::new(stream);
    let io = SharedSocket::new(Arc::clone(&socket));
    let io = TokioIo::new(StallGuard::new(io, WRITE_STALL_MAX));
    let router = TowerToHyperService::new(router);
    let is_restricted = permit.service == Service::Restricted;
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(from));
        if is_restricted {
            request.extensions_mut().insert(RestrictedConnection);
        }
        router.call(request)
    });
    let connection = http(permit.service).serve_connection(io, service);
    tokio::pin!(connection);
    let served = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = wait_closed(&mut closing) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    tokio::select! {
        ended = served => if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended with an error");
        },
        () = wait_gone(&socket) => tracing::debug!(%from, "a client has gone during its request"),
    }
}

fn http(service: Service) -> http1::Builder {
    let head_read_max = match service {
        Service::All => HEAD_READ_MAX,
        Service::Restricted => RESTRICTED_HEAD_READ_MAX,
    };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .keep_alive(service == Service::All)
        .header_read_timeout(head_read_max)
        .max_buf_size(BUFFER_BYTES_MAX);
    http
}

/// Resolves a moment after the client has closed the connection, or its sending side: hyper ends a request then, but does
/// not notice it where the client has sent anything behind its request, and such a request would keep its place among the
/// waiters.
async fn wait_gone(socket: &TcpStream) {
    loop {
        let ready = socket.ready(Interest::READABLE).await;
        let has_gone = ready.map_or(true, |ready| ready.is_read_closed());
        sleep(GONE_CHECK_PERIOD).await; // what is answered by then is answered
        if has_gone {
            return;
        }
    }
}
