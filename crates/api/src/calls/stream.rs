//! `GET /api/v1/events/stream`: the feed as server-sent events.
//!
//! The stream is pulled: the store is read when the connection takes more, so a slow reader costs
//! one page of memory. One that takes nothing at all is cut off by the connection (see `stall`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use engine::ports::{EventFilter, EventPage, StoreError};
use engine::public;
use futures::stream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};

use crate::parse::{self, Query};
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

/// Events per read.
const PAGE: usize = 250;
/// How often the feed is read without a bell: other nodes ring none here.
const PERIOD: Duration = Duration::from_secs(1);
/// A busy node rings for every turn; a stream reads at most this often.
const GATHER: Duration = Duration::from_millis(20);
/// Silence after which proxies and clients would give a connection up.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The first words: how soon to come back when the connection breaks.
const HELLO: &str = "retry: 1000\n\n";

/// Sends the feed from a cursor on, for ever. Header `Last-Event-ID` goes before `after`: a browser
/// that reconnects repeats its first URL.
pub(crate) async fn stream(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let query = Query::read(
        request.uri().query(),
        &["after", "chainId", "signer", "type"],
    )?;
    let mut filter = EventFilter {
        limit: PAGE,
        ..parse::event_filter(&query)?
    };
    if let Some(last) = parse::last_event_id(request.headers())? {
        filter.after = Some(last);
    }
    let Ok(place) = Arc::clone(&api.streams).try_acquire_owned() else {
        return Err(Problem::new(
            ProblemKind::TooManyStreams,
            format!(
                "{} streams are open already: try again in a moment, or poll /api/v1/events",
                api.config.max_streams
            ),
        ));
    };
    // The bell first, then the read: what is written in between rings.
    let bell = api.node.event_wakeup();
    let mut feed = Feed {
        api,
        filter,
        bell: Some(bell),
        caught_up: false,
        heartbeat_at: Instant::now() + HEARTBEAT,
        _place: place,
    };
    // A bad cursor or a dead store is told as a problem, which only works before the first byte.
    let page = feed.api.node.events(&feed.filter).await?;
    let first = format!("{HELLO}{}", feed.take(page));
    let body = stream::unfold((feed, Some(first)), |(mut feed, first)| async move {
        let chunk = match first {
            Some(first) => first,
            None => feed.next().await?,
        };
        Some((Ok::<_, Infallible>(Bytes::from(chunk)), (feed, None)))
    });
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would otherwise collect events until its buffer is full.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// One open stream.
struct Feed {
    api: Arc<Api>,
    filter: EventFilter,
    /// `None` when the node stopped ringing: then only the period is left.
    bell: Option<watch::Receiver<u64>>,
    /// Whether the last read was at the end of the feed.
    caught_up: bool,
    heartbeat_at: Instant,
    _place: OwnedSemaphorePermit,
}

impl Feed {
    /// The next bytes; `None` ends the stream, and the client comes back with its last id.
    async fn next(&mut self) -> Option<String> {
        let api = Arc::clone(&self.api);
        tokio::select! {
            biased;
            () = api.closing() => None,
            chunk = self.next_chunk() => match chunk {
                Ok(chunk) => Some(chunk),
                Err(error) => {
                    tracing::warn!(%error, "an event stream ends");
                    None
                }
            },
        }
    }

    async fn next_chunk(&mut self) -> Result<String, StoreError> {
        loop {
            if Instant::now() >= self.heartbeat_at {
                return Ok(self.heartbeat());
            }
            if self.caught_up {
                self.wait().await;
            }
            let page = self.api.node.events(&self.filter).await?;
            let chunk = self.take(page);
            if !chunk.is_empty() {
                self.heartbeat_at = Instant::now() + HEARTBEAT;
                return Ok(chunk);
            }
        }
    }

    /// Waits until there may be more, or until the next heartbeat is due.
    async fn wait(&mut self) {
        let now = Instant::now();
        let read_at = (now + PERIOD).min(self.heartbeat_at);
        let Some(bell) = &mut self.bell else {
            return sleep_until(read_at).await;
        };
        tokio::select! {
            rung = bell.changed() => match rung {
                Ok(()) => sleep_until(read_at.min(now + GATHER)).await,
                Err(_) => self.bell = None,
            },
            () = sleep_until(read_at) => {}
        }
    }

    /// Takes a page: moves the cursor and writes its events.
    fn take(&mut self, page: EventPage) -> String {
        let mut chunk = String::new();
        for record in &page.events {
            let json = serde_json::to_string(&public::Event::from(record))
                .expect("the public views write texts and numbers into memory");
            chunk.push_str("id: ");
            chunk.push_str(&record.cursor);
            chunk.push_str("\ndata: ");
            chunk.push_str(&json);
            chunk.push_str("\n\n");
        }
        self.caught_up = self.filter.after.as_ref() == Some(&page.next);
        self.filter.after = Some(page.next);
        chunk
    }

    /// A comment, and the cursor: a message without data moves the client's last id without being
    /// shown, so that a filtered stream resumes without reading again what it skipped.
    fn heartbeat(&mut self) -> String {
        self.heartbeat_at = Instant::now() + HEARTBEAT;
        match &self.filter.after {
            Some(cursor) => format!(": heartbeat\nid: {cursor}\n\n"),
            None => ": heartbeat\n\n".to_owned(),
        }
    }
}
