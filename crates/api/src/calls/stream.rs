//! `GET /api/v1/events/stream`: the feed as server-sent events.
//!
//! The stream is pulled: the store is read when the connection accepts more, so a slow reader costs one page of
//! memory. A reader that accepts nothing is disconnected by the connection's write limit (see `stall_guard`).

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
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};

use crate::parse::{self, Query};
use crate::problem::{Problem, ProblemKind};
use crate::router::Api;

/// Events per read.
const PAGE_LEN: usize = 250;
/// How often the feed is read without a wakeup: events of other nodes cause none here.
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// A busy node sends a wakeup for every turn; a stream reads at most this often.
const READ_INTERVAL_MIN: Duration = Duration::from_millis(20);
/// Shorter than the idle time after which proxies and clients close a connection.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(15);
/// Tells the client how soon to reconnect, in milliseconds.
const RETRY_DIRECTIVE: &str = "retry: 1000\n\n";

/// Streams the feed from a cursor on, without end. Header `Last-Event-ID` takes precedence over `after`: a browser
/// that reconnects repeats its first URL.
pub(crate) async fn stream(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, Problem> {
    let query = Query::parse(
        request.uri().query(),
        &["after", "chainId", "signer", "type"],
    )?;
    let mut filter = EventFilter {
        limit: PAGE_LEN,
        ..parse::event_filter(&query)?
    };
    if let Some(last) = parse::last_event_id(request.headers())? {
        filter.after = Some(last);
    }
    let Ok(permit) = Arc::clone(&api.streams).try_acquire_owned() else {
        return Err(Problem::new(
            ProblemKind::TooManyStreams,
            format!(
                "{} streams are open already: try again in a moment, or poll /api/v1/events",
                api.config.max_streams
            ),
        ));
    };
    // Subscribed before the first read, so that a write in between causes a wakeup.
    let wakeup = api.node.event_wakeup();
    let mut stream = EventStream {
        api,
        filter,
        wakeup: Some(wakeup),
        is_caught_up: false,
        heartbeat_at: Instant::now() + HEARTBEAT_PERIOD,
        _permit: permit,
    };
    // An invalid cursor or an unavailable store becomes a problem document, which must precede the first byte.
    let page = stream.api.node.events(&stream.filter).await?;
    let first = format!("{RETRY_DIRECTIVE}{}", stream.render_page(page));
    let body = futures::stream::unfold((stream, Some(first)), |(mut stream, first)| async move {
        let chunk = match first {
            Some(first) => first,
            None => stream.next().await?,
        };
        Some((Ok::<_, Infallible>(Bytes::from(chunk)), (stream, None)))
    });
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would otherwise buffer events until its buffer is full.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// One open stream.
struct EventStream {
    api: Arc<Api>,
    filter: EventFilter,
    /// `None` when the node's notifier is gone: then only polling is left.
    wakeup: Option<watch::Receiver<u64>>,
    /// Whether the last read was at the end of the feed.
    is_caught_up: bool,
    heartbeat_at: Instant,
    _permit: OwnedSemaphorePermit,
}

impl EventStream {
    /// The next bytes; `None` ends the stream, and the client reconnects with its last id.
    async fn next(&mut self) -> Option<String> {
        let api = Arc::clone(&self.api);
        tokio::select! {
            biased;
            () = api.wait_closing() => None,
            chunk = self.next_chunk() => match chunk {
                Ok(chunk) => Some(chunk),
                Err(error) => {
                    tracing::warn!(%error, "an event stream ends: the feed cannot be read");
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
            if self.is_caught_up {
                self.wait_for_events().await;
            }
            let page = match self.api.node.events(&self.filter).await {
                Err(StoreError::Busy(_)) => {
                    sleep_until((Instant::now() + POLL_PERIOD).min(self.heartbeat_at)).await;
                    continue;
                }
                page @ (Ok(_) | Err(_)) => page?,
            };
            let chunk = self.render_page(page);
            if !chunk.is_empty() {
                self.heartbeat_at = Instant::now() + HEARTBEAT_PERIOD;
                return Ok(chunk);
            }
        }
    }

    /// Waits until there may be more, or until the next heartbeat is due.
    async fn wait_for_events(&mut self) {
        let now = Instant::now();
        let read_at = (now + POLL_PERIOD).min(self.heartbeat_at);
        let Some(wakeup) = &mut self.wakeup else {
            return sleep_until(read_at).await;
        };
        tokio::select! {
            changed = wakeup.changed() => match changed {
                Ok(()) => sleep_until(read_at.min(now + READ_INTERVAL_MIN)).await,
                Err(_) => self.wakeup = None,
            },
            () = sleep_until(read_at) => {}
        }
    }

    /// Renders the events of a page, and moves the cursor behind it.
    fn render_page(&mut self, page: EventPage) -> String {
        let mut chunk = String::new();
        for record in &page.events {
            let json = serde_json::to_string(&api_types::Event::from(record))
                .expect("the public views write texts and numbers into memory");
            chunk += &format!("id: {}\ndata: {json}\n\n", record.cursor);
        }
        self.is_caught_up = self.filter.after.as_ref() == Some(&page.next);
        self.filter.after = Some(page.next);
        chunk
    }

    /// A comment and the cursor: a message without data updates the client's last id without being delivered, so a
    /// filtered stream resumes behind the events that it skipped.
    fn heartbeat(&mut self) -> String {
        self.heartbeat_at = Instant::now() + HEARTBEAT_PERIOD;
        match &self.filter.after {
            Some(cursor) => format!(": heartbeat\nid: {cursor}\n\n"),
            None => ": heartbeat\n\n".to_owned(),
        }
    }
}
