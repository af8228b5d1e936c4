//! One connection: two streams of chunks, each with its delay and its faults.

use std::io::{Error, ErrorKind};
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Link, Loss, Then, Wire};

/// The most that is read at once.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// How many chunks wait for their time; more wait in the sockets.
const CHUNKS_MAX: usize = 64;

/// A piece of a stream on its way.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    /// The answer to this request is lost.
    loses: Option<Then>,
}

/// Takes connections until the proxy is dropped.
pub(super) async fn accept(listener: std::net::TcpListener, wire: Arc<Wire>) {
    let listener = TcpListener::from_std(listener).expect("we are in a runtime");
    loop {
        // A client that is gone before it was taken is nobody's trouble.
        if let Ok((client, _)) = listener.accept().await {
            tokio::spawn(connection(client, Arc::clone(&wire)));
        }
    }
}

async fn connection(client: TcpStream, wire: Arc<Wire>) {
    if wire.until(|link| *link != Link::Frozen).await == Link::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(wire.target).await else {
        return; // the client sees its connection close, as without us it would be refused
    };
    // Small messages must not wait for each other: delays are ours to make.
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let loses = watch::Sender::new(None);
    let requests = async {
        let (send, receive) = mpsc::channel(CHUNKS_MAX);
        tokio::try_join!(
            read_requests(from_client, send, &wire, loses.subscribe()),
            write(to_server, receive, &wire, &loses)
        )
    };
    let answers = async {
        let (send, receive) = mpsc::channel(CHUNKS_MAX);
        tokio::try_join!(
            read_answers(from_server, send, &wire, loses.subscribe()),
            write(to_client, receive, &wire, &loses)
        )
    };
    tokio::select! {
        // Either way the connection is over: whoever is left sees it close.
        _ = async { tokio::try_join!(requests, answers) } => {}
        _ = wire.until(|link| *link == Link::Cut) => {}
    }
}

/// Reads what the client sends and looks out for the request that is to be lost.
async fn read_requests(
    mut from: OwnedReadHalf,
    to: mpsc::Sender<Chunk>,
    wire: &Wire,
    loses: watch::Receiver<Option<Then>>,
) -> Result<(), Error> {
    let mut before = Vec::new();
    while let Some(bytes) = read(&mut from, wire).await? {
        let fate = fate(wire, &mut before, &bytes);
        if fate.is_held {
            wire.count_held();
            wire.until_nothing_is_held().await;
        }
        let loses = match fate.loss {
            Some(Loss::Request) => {
                wire.count_loss();
                return Err(gone());
            }
            Some(Loss::Answer(then)) => Some(then),
            None => None,
        };
        let due = Instant::now() + wire.rules().delay;
        let chunk = Chunk { due, bytes, loses };
        to.send(chunk).await.map_err(lost)?;
    }
    match *loses.borrow() {
        Some(Then::Silence) => Err(gone()), // nothing else would end it
        Some(Then::Cut) | None => Ok(()),
    }
}

/// What the rules say of these bytes, after those before them.
#[derive(Default)]
struct Fate {
    /// Each loss happens once.
    loss: Option<Loss>,
    is_held: bool,
}

fn fate(wire: &Wire, before: &mut Vec<u8>, bytes: &[u8]) -> Fate {
    let mut rules = wire.rules();
    let lost = rules.loss.as_ref().map(|(pattern, _)| pattern);
    let longest = lost.into_iter().chain(&rules.held).map(Vec::len).max();
    let Some(longest) = longest else {
        before.clear();
        before.extend_from_slice(bytes);
        return Fate::default();
    };
    // A request may come in pieces, but what ended in an earlier piece was before our time.
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
    Fate {
        loss: loss.map(|(_, loss)| loss),
        is_held,
    }
}

/// Reads what the server answers; a lost answer ends here.
async fn read_answers(
    mut from: OwnedReadHalf,
    to: mpsc::Sender<Chunk>,
    wire: &Arc<Wire>,
    loses: watch::Receiver<Option<Then>>,
) -> Result<(), Error> {
    while let Some(mut bytes) = read(&mut from, wire).await? {
        let then = *loses.borrow();
        match then {
            None => {}
            Some(Then::Cut) => {
                wire.count_loss();
                // The server must come to its end undisturbed, or the request might be undone.
                tokio::spawn(drain(from));
                return Err(gone());
            }
            Some(Then::Silence) => {
                wire.count_loss();
                drain(from).await;
                return std::future::pending().await; // until the client hangs up
            }
        }
        let is_cut = shorten(&mut bytes, wire);
        let due = Instant::now() + wire.rules().delay;
        let loses = None;
        let chunk = Chunk { due, bytes, loses };
        to.send(chunk).await.map_err(lost)?;
        if is_cut {
            return cut_when_written(to, wire).await;
        }
    }
    Ok(())
}

/// Takes away what is beyond the last byte that may pass, and says whether there was any.
fn shorten(bytes: &mut Vec<u8>, wire: &Wire) -> bool {
    let mut rules = wire.rules();
    let Some(left) = &mut rules.answer_bytes_left else {
        return false;
    };
    let is_cut = *left < bytes.len();
    bytes.truncate(*left);
    *left -= bytes.len();
    is_cut
}

/// Cuts the whole proxy once the writer has taken what was sent to it.
async fn cut_when_written(to: mpsc::Sender<Chunk>, wire: &Wire) -> Result<(), Error> {
    drop(to.reserve_many(CHUNKS_MAX).await.map_err(lost)?);
    wire.link.send_replace(Link::Cut);
    Err(gone())
}

async fn drain(mut from: OwnedReadHalf) {
    let mut rest = vec![0; CHUNK_BYTES_MAX];
    while from.read(&mut rest).await.is_ok_and(|length| length > 0) {}
}

/// The next bytes, or `None` at the end. Reads nothing while the link is frozen.
async fn read(from: &mut OwnedReadHalf, wire: &Wire) -> Result<Option<Vec<u8>>, Error> {
    wire.until(|link| *link != Link::Frozen).await;
    let mut bytes = vec![0; CHUNK_BYTES_MAX];
    let length = from.read(&mut bytes).await?;
    bytes.truncate(length);
    Ok((length > 0).then_some(bytes))
}

/// Writes each chunk when it is due and the link is not frozen; the end is passed on too.
async fn write(
    mut to: OwnedWriteHalf,
    mut chunks: mpsc::Receiver<Chunk>,
    wire: &Wire,
    loses: &watch::Sender<Option<Then>>,
) -> Result<(), Error> {
    while let Some(chunk) = chunks.recv().await {
        tokio::time::sleep_until(chunk.due).await;
        wire.until(|link| *link != Link::Frozen).await;
        if chunk.loses.is_some() {
            // Before the request leaves, so that its answer cannot be faster.
            loses.send_replace(chunk.loses);
        }
        to.write_all(&chunk.bytes).await?;
    }
    to.shutdown().await
}

/// The other half of this direction has ended.
fn lost<E>(_: E) -> Error {
    gone()
}

fn gone() -> Error {
    Error::from(ErrorKind::ConnectionAborted)
}
