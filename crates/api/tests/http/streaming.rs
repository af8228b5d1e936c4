//! Server-sent events.

use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use futures::StreamExt;
use serde_json::Value;
use sim::chain::MemoryChain;
use tokio::time::{Duration, Instant};

use crate::world::{CHAIN, World};

/// Without the events at final depth, whose position varies.
const STREAM: &str = "/api/v1/events/stream?type=TxAccepted,TxSubmitted,TxReceiptUpdated";

/// A client that reads the stream line by line.
struct Client {
    body: BodyDataStream,
    text: String,
}

/// A message: its id, and its data if any.
type Message = (Option<String>, Option<Value>);

impl Client {
    async fn connect(world: &World, path: &str, last_id: Option<&str>) -> Self {
        let mut request = Request::get(path);
        if let Some(last_id) = last_id {
            request = request.header("last-event-id", last_id);
        }
        let response = world.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut client = Self {
            body: response.into_body().into_data_stream(),
            text: String::new(),
        };
        assert_eq!(
            client.message().await,
            Some((None, None)),
            "the retry directive comes first"
        );
        client
    }

    /// The next message; `None` at the end of the stream.
    async fn message(&mut self) -> Option<Message> {
        loop {
            if let Some((message, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    message
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .map(str::to_owned)
                };
                let data = field("data: ").map(|data| serde_json::from_str(&data).unwrap());
                let message = (field("id: "), data);
                self.text = rest.to_owned();
                return Some(message);
            }
            let chunk = self.body.next().await?.unwrap();
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next message with data: its id and its event's type.
    async fn event(&mut self) -> (String, String) {
        loop {
            let (id, data) = self.message().await.expect("the stream continues");
            if let Some(data) = data {
                return (id.unwrap(), data["type"].as_str().unwrap().to_owned());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stream_sends_past_and_new_events_and_resumes_anywhere() {
    let world = World::with_known_nonces().await;
    world.create("r1", "/api/v1/tx?wait=mined").await;
    let mut client = Client::connect(&world, STREAM, None).await;
    // The events of the first tx.
    for _ in 0..3 {
        client.event().await;
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(client.event().await);
    }
    world.create("r2", "/api/v1/tx").await;
    for _ in 0..3 {
        seen.push(client.event().await);
    }
    let kinds: Vec<_> = seen.iter().map(|(_, kind)| kind.as_str()).collect();
    let one = ["TxAccepted", "TxSubmitted", "TxReceiptUpdated"];
    assert_eq!(kinds, [one, one].concat());
    drop(client);

    for (at, (id, _)) in seen.iter().enumerate().take(5) {
        // The header takes precedence over the query, which a browser repeats from its first request.
        let path = format!("{STREAM}&after={}", seen[0].0);
        let mut client = Client::connect(&world, &path, Some(id)).await;
        assert_eq!(client.event().await, seen[at + 1], "after event {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_stream_sends_heartbeats_that_move_the_cursor() {
    let world = World::new().await;
    let path = "/api/v1/events/stream?type=TxStuck";
    let mut client = Client::connect(&world, path, None).await;
    world.create("r1", "/api/v1/tx?wait=mined").await;
    let started = Instant::now();
    let (id, data) = client.message().await.unwrap();
    assert_eq!(data, None, "nothing is stuck");
    assert!(started.elapsed() <= Duration::from_secs(16));
    let after = world.get("/api/v1/events").await.body["next"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(id, Some(after), "skipped events are not read again");
}

#[tokio::test(start_paused = true)]
async fn streams_are_bounded_and_release_their_permit() {
    let world = World::new().await;
    let first = Client::connect(&world, "/api/v1/events/stream", None).await;
    let second = Client::connect(&world, "/api/v1/events/stream", None).await;
    world
        .get("/api/v1/events/stream")
        .await
        .problem(429, "too-many-streams");
    drop(first);
    let third = Client::connect(&world, "/api/v1/events/stream", None).await;
    drop((second, third));
}

#[tokio::test(start_paused = true)]
async fn stopping_node_ends_its_streams() {
    let world = World::with_chain(MemoryChain::new(CHAIN), |_| {}).await;
    let mut client = Client::connect(&world, "/api/v1/events/stream", None).await;
    world.closing.send_replace(true);
    assert_eq!(client.message().await, None);
}
