//! The load generator: N clients, each with its own kept-alive connection and one request at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cli::Failure;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rand::Rng as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The longest recorded latency, in microseconds.
const LATENCY_US_MAX: u64 = 60_000_000;

/// What is sent, to which nodes, for how long.
#[derive(Clone)]
pub(crate) struct Load {
    /// The nodes; each client uses one of them.
    pub(crate) addresses: Arc<[SocketAddr]>,
    /// The accounts that send, round robin.
    pub(crate) signers: Arc<[String]>,
    pub(crate) clients: u16,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    /// Counts accepted requests for the progress bar.
    pub(crate) progress: Arc<AtomicU64>,
}

/// The result of a run.
#[derive(Clone)]
pub(crate) struct Measured {
    /// Accepted within the measured time.
    pub(crate) accepted: u64,
    /// Accepted in total, including the warm-up.
    pub(crate) accepted_total: u64,
    /// Other answers in total.
    pub(crate) refused_total: u64,
    pub(crate) duration: Duration,
    /// In microseconds, of requests accepted within the measured time.
    pub(crate) latency: Histogram<u64>,
}

impl Measured {
    fn new(duration: Duration) -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("fixed bounds hold");
        Self {
            accepted: 0,
            accepted_total: 0,
            refused_total: 0,
            duration,
            latency,
        }
    }

    pub(crate) fn per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let accepted = self.accepted as f64;
        accepted / self.duration.as_secs_f64()
    }

    fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.accepted_total += other.accepted_total;
        self.refused_total += other.refused_total;
        self.latency.add(&other.latency).expect("the same bounds");
    }
}

/// Runs all clients until the measured time ends.
pub(crate) async fn generate_load(load: &Load) -> Result<Measured, Failure> {
    let mut clients = JoinSet::new();
    for number in 0..load.clients {
        let number = usize::from(number);
        let address = load.addresses[number % load.addresses.len()];
        let connection = connect(address).await?;
        clients.spawn(run_client(load.clone(), number, address, connection));
    }
    let mut all = Measured::new(load.duration);
    while let Some(ended) = clients.join_next().await {
        all.add(
            &ended.map_err(|e| Failure::refused("a client of the load generator failed", &e))??,
        );
    }
    Ok(all)
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, Failure> {
    let failed =
        |e: &dyn std::error::Error| Failure::Unreachable(format!("{address} does not answer: {e}"));
    let stream = TcpStream::connect(address).await.map_err(|e| failed(&e))?;
    stream.set_nodelay(true).map_err(|e| failed(&e))?;
    let (sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(|e| failed(&e))?;
    // The sender reports the errors of the connection too.
    tokio::spawn(connection);
    Ok(sender)
}

async fn run_client(
    load: Load,
    number: usize,
    address: SocketAddr,
    mut connection: SendRequest<Full<Bytes>>,
) -> Result<Measured, Failure> {
    let mut measured = Measured::new(load.duration);
    let counted_from = Instant::now() + load.warm_up;
    let end = counted_from + load.duration;
    let mut index = number;
    loop {
        let signer = &load.signers[index % load.signers.len()];
        // All clients together cycle through all lanes.
        index += usize::from(load.clients);
        let request = build_request(address, signer);
        let started = Instant::now();
        if started >= end {
            return Ok(measured);
        }
        let status = send_request(&mut connection, request).await?;
        let ended = Instant::now();
        if status != StatusCode::ACCEPTED {
            measured.refused_total += 1;
            continue;
        }
        measured.accepted_total += 1;
        load.progress.fetch_add(1, Ordering::Relaxed);
        if started >= counted_from && ended <= end {
            measured.accepted += 1;
            let micros = u64::try_from((ended - started).as_micros()).unwrap_or(LATENCY_US_MAX);
            measured.latency.saturating_record(micros);
        }
    }
}

fn build_request(address: SocketAddr, signer: &str) -> Request<Full<Bytes>> {
    let key: u128 = rand::rng().random();
    // With a gas limit, so that the node estimates nothing.
    let body = format!(
        r#"{{"signer":"{signer}","requestId":"{key:032x}","payload":{{"to":"0x00000000000000000000000000000000000b0b0b","value":"1","gas":"21000"}}}}"#
    );
    Request::builder()
        .method(Method::POST)
        .uri("/api/v1/tx")
        .header(header::HOST, address.to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .expect("a fixed head is valid")
}

async fn send_request(
    connection: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<StatusCode, Failure> {
    let lost =
        |e: hyper::Error| Failure::Unreachable(format!("the server closed the connection: {e}"));
    connection.ready().await.map_err(lost)?;
    let response = connection.send_request(request).await.map_err(lost)?;
    let status = response.status();
    response.into_body().collect().await.map_err(lost)?;
    Ok(status)
}
