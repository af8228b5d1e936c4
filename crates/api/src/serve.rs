//! Serving: HTTP/1.1 over TCP, tuned for many small requests on kept-alive connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
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

use crate::stall::StallGuard;

/// How many connections are served at once; more wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 8_192;
/// How long a request's head may take, from the moment the connection is idle. So it also ends idle
/// connections: later than load balancers do (60 s), because who closes first must be the client,
/// or a request may race the close.
const HEAD_READ_MAX: Duration = Duration::from_secs(75);
/// The largest request head, and the most that is buffered per connection.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// A peer that takes no byte of an answer for so long is cut off.
const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// How long requests under way may take when the node stops.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed accept: out of file descriptors, mostly, which passes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `closing` becomes true (or loses its sender), then lets requests under way finish.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()> {
    let limit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_READ_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    loop {
        let (stream, from, place) = tokio::select! {
            biased;
            () = closed(&mut closing) => break,
            accepted = accept(&listener, &limit) => accepted,
        };
        // Ended ones are taken out here, so that the set does not grow with the history.
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(
            http.clone(),
            (stream, from),
            router.clone(),
            closing.clone(),
            place,
        ));
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if timeout(CLOSE_MAX, all_ended).await.is_err() {
        tracing::warn!(
            count = connections.len(),
            "connections are cut off at the end"
        );
        connections.shutdown().await;
    }
    Ok(())
}

/// Resolves when the node stops. A lost sender means the same.
pub(crate) async fn closed(closing: &mut watch::Receiver<bool>) {
    closing.wait_for(|closing| *closing).await.ok();
}

/// The next connection, when there is a place for it.
async fn accept(
    listener: &TcpListener,
    limit: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let place = match Arc::clone(limit).try_acquire_owned() {
        Ok(place) => place,
        Err(_) => {
            tracing::warn!(CONNECTIONS_MAX, "all connections are in use; new ones wait");
            Arc::clone(limit)
                .acquire_owned()
                .await
                .expect("the limit is never closed")
        }
    };
    loop {
        match listener.accept().await {
            Ok((stream, from)) => return (stream, from, place),
            Err(error) => {
                // A connection that was gone before it was taken is no trouble of ours.
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Serves one connection to its end.
async fn connection(
    http: http1::Builder,
    (stream, from): (TcpStream, SocketAddr),
    router: Router,
    mut closing: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    // Answers are small and complete: waiting to fill a packet only adds latency. A socket that
    // refuses the option still works.
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
        () = closed(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}
