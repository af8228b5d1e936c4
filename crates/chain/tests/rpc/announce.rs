//! Word of new heads by WebSocket.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig, RpcSetupError};
use engine::ports::Chain;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::fake::{CHAIN, eventually, nobody};

const SOON: Duration = Duration::from_secs(20);

/// A node that announces heads when the test says so, on one connection after the other.
struct Announcer {
    url: EndpointUrl,
    orders: mpsc::Sender<Order>,
    connections: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

enum Order {
    Announce,
    HangUp,
}

impl Announcer {
    async fn start(chain: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/v3/key", listener.local_addr().unwrap());
        let (orders, mut inbox) = mpsc::channel(8);
        let (connections, ended) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let (opened, closed) = (connections.clone(), ended.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let socket = tokio_tungstenite::accept_async(stream).await.unwrap();
                opened.fetch_add(1, Ordering::SeqCst);
                serve(socket, chain, &mut inbox).await;
                closed.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self {
            url: EndpointUrl::parse_ws(&url).unwrap(),
            orders,
            connections,
            ended,
        }
    }

    async fn chain(&self) -> RpcChain {
        RpcChain::new(RpcChainConfig {
            ws: Some(self.url.clone()),
            ..RpcChainConfig::new(CHAIN, vec![nobody().await])
        })
        .unwrap()
    }

    async fn announce(&self) {
        self.orders.send(Order::Announce).await.unwrap();
    }
}

async fn serve(
    mut socket: WebSocketStream<TcpStream>,
    chain: u64,
    inbox: &mut mpsc::Receiver<Order>,
) {
    let subscribed = Mutex::new(false);
    loop {
        let ready = *subscribed.lock().unwrap();
        tokio::select! {
            order = inbox.recv(), if ready => match order {
                Some(Order::Announce) => {
                    let params = json!({ "subscription": "0x1", "result": { "number": "0x7" } });
                    let head = json!({ "method": "eth_subscription", "params": params });
                    socket.send(Message::text(head.to_string())).await.unwrap();
                }
                Some(Order::HangUp) | None => return,
            },
            message = socket.next() => {
                let Some(Ok(Message::Text(text))) = message else { return };
                let asked: Value = serde_json::from_str(text.as_str()).unwrap();
                let result = match asked["method"].as_str().unwrap() {
                    "eth_chainId" => json!(format!("{chain:#x}")),
                    "eth_subscribe" => {
                        assert_eq!(asked["params"], json!(["newHeads"]));
                        *subscribed.lock().unwrap() = true;
                        json!("0x1")
                    }
                    other => panic!("{other}"),
                };
                let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
                socket.send(Message::text(answer.to_string())).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn every_head_rings_and_a_lost_connection_is_made_again() {
    let node = Announcer::start(CHAIN.0).await;
    let chain = node.chain().await;
    let rings = async || timeout(SOON, chain.wait_for_head()).await.unwrap();
    rings().await; // for what was missed before the subscription
    for _ in 0..3 {
        node.announce().await;
        rings().await;
    }
    node.orders.send(Order::HangUp).await.unwrap();
    rings().await;
    assert_eq!(node.connections.load(Ordering::SeqCst), 2);
    node.announce().await;
    rings().await;
    let quiet = timeout(Duration::from_millis(1), chain.wait_for_head()).await;
    assert!(quiet.is_err(), "no head, no bell");

    assert_eq!(node.ended.load(Ordering::SeqCst), 1);
    drop(chain);
    eventually("the end of the connection", async || {
        node.ended.load(Ordering::SeqCst) == 2
    })
    .await;
}

#[tokio::test]
async fn a_bell_that_rang_before_anybody_listened_is_heard() {
    let node = Announcer::start(CHAIN.0).await;
    let chain = node.chain().await;
    timeout(SOON, chain.wait_for_head()).await.unwrap();
    node.announce().await;
    eventually("the order", async || node.orders.capacity() == 8).await;
    timeout(SOON, chain.wait_for_head()).await.unwrap();
}

#[tokio::test]
async fn another_chain_does_not_ring() {
    let node = Announcer::start(5).await;
    let chain = node.chain().await;
    let listen = chain.wait_for_head();
    let tries = eventually("a second try", async || {
        node.connections.load(Ordering::SeqCst) > 1
    });
    tokio::select! {
        () = listen => panic!("another chain rang"),
        () = tries => {}
    }
}

#[tokio::test]
async fn addresses_for_other_purposes_are_refused() {
    let ws = EndpointUrl::parse_ws("ws://127.0.0.1:1").unwrap();
    let http = EndpointUrl::parse("http://127.0.0.1:1").unwrap();
    let usual = || RpcChainConfig::new(CHAIN, vec![http.clone()]);
    let refused = |config| RpcChain::new(config).unwrap_err();
    let calls_to_ws = RpcChainConfig::new(CHAIN, vec![ws.clone()]);
    assert!(matches!(refused(calls_to_ws), RpcSetupError::Scheme { .. }));
    let word_of_http = RpcChainConfig {
        ws: Some(http.clone()),
        ..usual()
    };
    assert!(matches!(
        refused(word_of_http),
        RpcSetupError::Scheme { .. }
    ));
    let to_nobody = RpcChainConfig {
        send_to: 0,
        ..usual()
    };
    assert!(matches!(refused(to_nobody), RpcSetupError::NoSendTo(_)));
    let never = RpcChainConfig {
        requests_per_second: Some(0),
        ..usual()
    };
    assert!(matches!(refused(never), RpcSetupError::NoRequests(_)));
    // Nobody announces anything where no address is given.
    let chain = RpcChain::new(usual()).unwrap();
    let quiet = timeout(Duration::from_millis(1), chain.wait_for_head()).await;
    assert!(quiet.is_err());
}
