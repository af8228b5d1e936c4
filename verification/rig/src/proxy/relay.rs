//! One connection: two streams of chunks, each with delays and faults.

use std::io::{Error, ErrorKind};
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{AfterLoss, Link, Loss, ProxyState};

const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Chunks that wait for their due time; more wait in the sockets.
const CHUNKS_MAX: usize = 64;

struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    /// The response to this request will be lost.
    loses: Option<AfterLoss>,
}

/// Accepts connections until the proxy is dropped.
pub(super) async fn accept(listener: std::net::TcpListener, proxy: Arc<ProxyState>) {
    let listener = TcpListener::from_std(listener).expect("we are in a runtime");
    loop {
        // A client that disconnected before it was accepted is harmless.
        if let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay_connection(client, Arc::clone(&proxy)));
        }
    }
}

async fn relay_connection(client: TcpStream, proxy: Arc<ProxyState>) {
    if proxy.wait_for_link(|link| *link != Link::Frozen).await == Link::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(proxy.target).await else {
        return; // the client sees a closed connection; without the proxy it would be refused
    };
    // Nagle's algorithm would add delays that no rule asked for.
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let loses = watch::Sender::new(None);
    let requests = async {
        let (send, receive) = mpsc::channel(CHUNKS_MAX);
        tokio::try_join!(
            read_requests(from_client, send, &proxy, loses.subscribe()),
            write(to_server, receive, &proxy, &loses)
        )
    };
    let answers = async {
        let (send, receive) = mpsc::channel(CHUNKS_MAX);
        tokio::try_join!(
            read_answers(from_server, send, &proxy, loses.subscribe()),
            write(to_client, receive, &proxy, &loses)
        )
    };
    tokio::select! {
        // Either way the connection ends: the other side sees it close.
        _ = async { tokio::try_join!(requests, answers) } => {}
        _ = proxy.wait_for_link(|link| *link == Link::Cut) => {}
    }
}

/// Reads the client's bytes and applies request faults.
async fn read_requests(
    mut from: OwnedReadHalf,
    to: mpsc::Sender<Chunk>,
    proxy: &ProxyState,
    loses: watch::Receiver<Option<AfterLoss>>,
) -> Result<(), Error> {
    let mut before = Vec::new();
    while let Some(bytes) = read(&mut from, proxy).await? {
        let match_faults = match_faults(proxy, &mut before, &bytes);
        if match_faults.is_held {
            proxy.count_held();
            proxy.wait_until_released().await;
        }
        let loses = match match_faults.loss {
            Some(Loss::Request) => {
                proxy.count_loss();
                return Err(connection_ended());
            }
            Some(Loss::Answer(then)) => Some(then),
            None => None,
        };
        let due = Instant::now() + proxy.rules().delay;
        let chunk = Chunk { due, bytes, loses };
        to.send(chunk).await.map_err(lost)?;
    }
    match *loses.borrow() {
        Some(AfterLoss::Silence) => Err(connection_ended()), // otherwise the connection would stay open
        Some(AfterLoss::Cut) | None => Ok(()),
    }
}

/// The faults that match these bytes, together with earlier ones.
#[derive(Default)]
struct RequestFaults {
    /// Each loss applies once.
    loss: Option<Loss>,
    is_held: bool,
}

fn match_faults(proxy: &ProxyState, before: &mut Vec<u8>, bytes: &[u8]) -> RequestFaults {
    let mut rules = proxy.rules();
    let lost = rules.loss.as_ref().map(|(pattern, _)| pattern);
    let longest = lost.into_iter().chain(&rules.held).map(Vec::len).max();
    let Some(longest) = longest else {
        before.clear();
        before.extend_from_slice(bytes);
        return RequestFaults::default();
    };
    // A request may arrive in pieces, but a match that ended in an earlier piece was handled then.
    let tail = before.len().saturating_sub(longest - 1);
    before.drain(..tail);
    let known = before.len();
    before.extend_from_slice(bytes);
    let has = |pattern: &Vec<u8>| {
        let from = (known + 1).saturating_sub(pattern.len());
        let mut pieces = before[from..].windows(pattern.len());
        pieces.any(|piece| piece == pattern)
    };
    let is_held = rules.held.as_ref().is_some_and(has);
    let loss = rules.loss.take_if(|(pattern, _)| has(pattern));
    RequestFaults {
        loss: loss.map(|(_, loss)| loss),
        is_held,
    }
}

/// Reads the server's bytes and discards lost responses.
async fn read_answers(
    mut from: OwnedReadHalf,
    to: mpsc::Sender<Chunk>,
    proxy: &Arc<ProxyState>,
    loses: watch::Receiver<Option<AfterLoss>>,
) -> Result<(), Error> {
    while let Some(mut bytes) = read(&mut from, proxy).await? {
        let then = *loses.borrow();
        match then {
            None => {}
            Some(AfterLoss::Cut) => {
                proxy.count_loss();
                // The server must finish undisturbed, or it might roll the request back.
                tokio::spawn(drain(from));
                return Err(connection_ended());
            }
            Some(AfterLoss::Silence) => {
                proxy.count_loss();
                drain(from).await;
                return std::future::pending().await; // until the client disconnects
            }
        }
        let is_cut = truncate_to_limit(&mut bytes, proxy);
        let due = Instant::now() + proxy.rules().delay;
        let loses = None;
        let chunk = Chunk { due, bytes, loses };
        to.send(chunk).await.map_err(lost)?;
        if is_cut {
            return cut_when_written(to, proxy).await;
        }
    }
    Ok(())
}

/// Removes the bytes beyond the limit of [`TcpProxy::cut_after`]; true if there were any.
fn truncate_to_limit(bytes: &mut Vec<u8>, proxy: &ProxyState) -> bool {
    let mut rules = proxy.rules();
    let Some(left) = &mut rules.answer_bytes_left else {
        return false;
    };
    let is_cut = *left < bytes.len();
    bytes.truncate(*left);
    *left -= bytes.len();
    is_cut
}

/// Cuts the whole proxy once the writer has written its queue.
async fn cut_when_written(to: mpsc::Sender<Chunk>, proxy: &ProxyState) -> Result<(), Error> {
    drop(to.reserve_many(CHUNKS_MAX).await.map_err(lost)?);
    proxy.link.send_replace(Link::Cut);
    Err(connection_ended())
}

async fn drain(mut from: OwnedReadHalf) {
    let mut rest = vec![0; CHUNK_BYTES_MAX];
    while from.read(&mut rest).await.is_ok_and(|length| length > 0) {}
}

/// The next bytes, or `None` at the end. Waits while the link is frozen.
async fn read(from: &mut OwnedReadHalf, proxy: &ProxyState) -> Result<Option<Vec<u8>>, Error> {
    proxy.wait_for_link(|link| *link != Link::Frozen).await;
    let mut bytes = vec![0; CHUNK_BYTES_MAX];
    let length = from.read(&mut bytes).await?;
    bytes.truncate(length);
    Ok((length > 0).then_some(bytes))
}

/// Writes each chunk when it is due and the link is not frozen; forwards the end of the stream too.
async fn write(
    mut to: OwnedWriteHalf,
    mut chunks: mpsc::Receiver<Chunk>,
    proxy: &ProxyState,
    loses: &watch::Sender<Option<AfterLoss>>,
) -> Result<(), Error> {
    while let Some(chunk) = chunks.recv().await {
        tokio::time::sleep_until(chunk.due).await;
        proxy.wait_for_link(|link| *link != Link::Frozen).await;
        if chunk.loses.is_some() {
            // Before the request is sent, so that its response cannot overtake it.
            loses.send_replace(chunk.loses);
        }
        to.write_all(&chunk.bytes).await?;
    }
    to.shutdown().await
}

fn lost<E>(_: E) -> Error {
    connection_ended()
}

fn connection_ended() -> Error {
    Error::from(ErrorKind::ConnectionAborted)
}
