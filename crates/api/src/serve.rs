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
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::stall_guard::StallGuard;

/// The most connections at once; more wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 8_192;
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
/// Pause after a failed accept, which is mostly a temporary lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `closing` becomes true (or loses its sender), then lets pending requests finish.
pub fn serve(
    listener: TcpListener,
    router: Router,
    mut closing: watch::Receiver<bool>,
) -> BoxFuture<'static, io::Result<()>> {
    async move {
        let limit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEAD_READ_MAX)
            .max_buf_size(BUFFER_BYTES_MAX);
        loop {
            let (stream, from, permit) = tokio::select! {
                biased;
                () = wait_closed(&mut closing) => break,
                accepted = accept(&listener, &limit) => accepted,
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

/// Accepts the next connection once a permit is free.
async fn accept(
    listener: &TcpListener,
    limit: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let permit = match Arc::clone(limit).try_acquire_owned() {
        Ok(permit) => permit,
        Err(_) => {
            tracing::warn!(
                CONNECTIONS_MAX,
                "the connection limit is reached; new connections wait"
            );
            Arc::clone(limit)
                .acquire_owned()
                .await
                .expect("the limit is never closed")
        }
    };
    loop {
        match listener.accept().await {
            Ok((stream, from)) => return (stream, from, permit),
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

async fn serve_connection(
    http: http1::Builder,
    (stream, from): (TcpStream, SocketAddr),
    router: Router,
    mut closing: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
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
