//! Real sockets: keep-alive, slow clients and shutdown.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::world::{World, transfer};

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
    let world = World::with_known_nonces().await;
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

#[tokio::test]
async fn connection_too_many_is_refused_until_another_one_ends() {
    let server = start_with(2).await;
    let health = async |stream: &mut TcpStream| {
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
        stream.write_all(request).await.unwrap();
        read_response(stream).await.0
    };
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        assert!(health(&mut stream).await.starts_with("HTTP/1.1 200 "));
        held.push(stream);
    }
    let mut refused = TcpStream::connect(server.address).await.unwrap();
    let (head, _) = read_response(&mut refused).await;
    assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
    assert!(health(&mut held[0]).await.starts_with("HTTP/1.1 200 "));
    held.clear();
    // The server notices the end of a connection on its own task.
    for _ in 0..1_000 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
        stream.write_all(request).await.unwrap();
        if read_response(&mut stream)
            .await
            .0
            .starts_with("HTTP/1.1 200 ")
        {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the address does not get its share back");
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
