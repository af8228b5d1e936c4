//! Real sockets: keep-alive, slow clients and shutdown.

use std::time::Duration;

use serde_json::Value;
use sim::chain::MemoryChain;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::world::{CHAIN, Plan, World, transfer};

struct Server {
    world: World,
    address: std::net::SocketAddr,
    closing: watch::Sender<bool>,
    serving: JoinHandle<std::io::Result<()>>,
}

async fn start() -> Server {
    start_with(api::CONNECTIONS_PER_ADDRESS).await
}

async fn start_with(per_address: usize) -> Server {
    start_world(World::with_known_nonces().await, per_address).await
}

async fn start_world(world: World, per_address: usize) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (closing, closed) = watch::channel(false);
    let serving = tokio::spawn(api::serve(
        listener,
        world.router.clone(),
        per_address,
        closed,
    ));
    Server {
        world,
        address,
        closing,
        serving,
    }
}

/// Reads one response with a declared length: its head and its body.
async fn read_response(stream: &mut TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return (
                    head.to_owned(),
                    serde_json::from_str(body).unwrap_or(Value::Null),
                );
            }
        }
        assert!(
            stream.read_buf(&mut bytes).await.unwrap() > 0,
            "the server hung up: {text}"
        );
    }
}

#[tokio::test]
async fn connection_is_reused_until_the_node_stops() {
    let server = start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for n in 0..20 {
        let body = transfer(&format!("r{n}")).to_string();
        let request = format!(
            "POST /api/v1/tx HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let (head, tx) = read_response(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 202 "), "{head}");
        assert!(head.contains("lanekeeper-node: a"), "{head}");
        assert_eq!(tx["nonce"], n + 1);
    }
    server.closing.send_replace(true);
    // The idle connection and the listener are closed, and the server ends.
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    server.serving.await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
    drop(server.world);
}

#[tokio::test]
async fn pending_request_is_answered_before_shutdown() {
    let server = start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let body = transfer("r1").to_string();
    let head = format!(
        "POST /api/v1/tx HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server requests the body: the request is pending.
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).await.unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100"));
    server.closing.send_replace(true);
    stream.write_all(body.as_bytes()).await.unwrap();
    let (head, _) = read_response(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 202 "), "{head}");
    server.serving.await.unwrap().unwrap();
    drop(server.world);
}

/// Sends a request on a new connection: its first line, and after a `|` what follows the host. Returns the response's head.
async fn call(server: &Server, request: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let (line, rest) = request.split_once('|').unwrap_or((request, "\r\n"));
    let text = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{rest}");
    stream.write_all(text.as_bytes()).await.unwrap();
    let (head, _) = read_response(&mut stream).await;
    (stream, head)
}

const NOTIFICATION: &str = "POST /internal/v1/notify|Content-Type: application/json\r\nContent-Length: 2\r\n\
     Lanekeeper-Hop: 1\r\n\r\n[]";

#[tokio::test]
async fn connection_too_many_serves_health_checks_and_nodes_only() {
    let server = start_with(2).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let (stream, head) = call(&server, "GET /api/v1/tx").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        held.push(stream);
    }
    for (request, status) in [
        ("GET /healthz", 200),
        ("GET /readyz", 200),
        (NOTIFICATION, 204),
        ("GET /api/v1/tx", 429),
        ("GET /metrics", 429),
        ("POST /api/v1/tx|Content-Length: 0\r\n\r\n", 429),
        ("GET /api/v1/nothing", 404),
    ] {
        let (mut stream, head) = call(&server, request).await;
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {head}"
        );
        // Whatever it was, a place among the few is free again.
        assert!(head.contains("connection: close"), "{request}: {head}");
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "{request}");
    }
    held.clear();
    // The server notices the end of a connection on its own task.
    for _ in 0..1_000 {
        let (_, head) = call(&server, "GET /api/v1/tx").await;
        if head.starts_with("HTTP/1.1 200 ") {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the address does not get its share back");
}

#[tokio::test]
async fn connections_beyond_those_for_health_checks_are_refused_unread() {
    let server = start_with(1).await;
    let mut held = Vec::new();
    for _ in 0..=api::RESTRICTED_PER_ADDRESS {
        held.push(TcpStream::connect(server.address).await.unwrap());
    }
    let mut refused = TcpStream::connect(server.address).await.unwrap();
    let (head, _) = read_response(&mut refused).await;
    assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
    drop((held, server.world, server.closing));
}

async fn wait_for_waiters(world: &World, count: usize) {
    let changed = async {
        while world.node.handle().load().await.waiters != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let changed = tokio::time::timeout(Duration::from_secs(20), changed).await;
    changed.expect("the number of waiters changes");
}

#[tokio::test(start_paused = true)]
async fn client_that_has_gone_waits_for_nothing_whatever_else_it_sent() {
    let world = Plan::new(MemoryChain::new(CHAIN)).start().await;
    let server = start_world(world, api::CONNECTIONS_PER_ADDRESS).await;
    let created = server.world.create("waited", "/api/v1/tx").await;
    let path = format!("/api/v1/tx/{}", created.body["txId"].as_str().unwrap());
    for sent_too_much in ["", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request =
            format!("GET {path}?wait=mined&timeout=120s HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let request = request + sent_too_much;
        stream.write_all(request.as_bytes()).await.unwrap();
        wait_for_waiters(&server.world, 1).await;
        drop(stream);
        wait_for_waiters(&server.world, 0).await;
    }
    drop((server.world, server.closing));
}

#[tokio::test]
async fn invalid_http_closes_only_its_connection() {
    let server = start().await;
    let mut bad = TcpStream::connect(server.address).await.unwrap();
    bad.write_all(b"\x16\x03\x01 hello\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    bad.read_to_end(&mut rest).await.unwrap();
    let mut good = TcpStream::connect(server.address).await.unwrap();
    good.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(
        read_response(&mut good)
            .await
            .0
            .starts_with("HTTP/1.1 200 ")
    );
    drop((server.world, server.closing));
}

/// With paused time, the clock advances to the next timer as soon as no task can run.
#[tokio::test(start_paused = true)]
async fn incomplete_head_closes_the_connection() {
    let server = start().await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET /healthz HT").await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(80), slow.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection was held open");
    drop((server.world, server.closing));
}

#[tokio::test]
async fn client_that_waits_for_continue_is_refused_at_once() {
    let server = start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /api/v1/tx HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        64 << 20
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(5), read_response(&mut stream));
    let (head, problem) = answer.await.expect("no byte of the body is waited for");
    assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    assert_eq!(problem["type"], "urn:lanekeeper:problem:body-too-large");
}
