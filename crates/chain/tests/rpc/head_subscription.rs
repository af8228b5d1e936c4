//! The WebSocket subscription to new heads.

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

use crate::fake_node::{CHAIN, unreachable_url, wait_until};

const WAIT_MAX: Duration = Duration::from_secs(20);

/// A node that announces heads on command, on one connection at a time.
struct Announcer {
    url: EndpointUrl,
    commands: mpsc::Sender<Command>,
    connections: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

enum Command {
    Announce,
    HangUp,
}

impl Announcer {
    async fn start(chain: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/v3/key", listener.local_addr().unwrap());
        let (commands, mut inbox) = mpsc::channel(8);
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
            commands,
            connections,
            ended,
        }
    }

    async fn chain(&self) -> RpcChain {
        RpcChain::new(RpcChainConfig {
            ws: Some(self.url.clone()),
            ..RpcChainConfig::new(CHAIN, vec![unreachable_url().await])
        })
        .unwrap()
    }

    async fn announce(&self) {
        self.commands.send(Command::Announce).await.unwrap();
    }
}

async fn serve(
    mut socket: WebSocketStream<TcpStream>,
    chain: u64,
    inbox: &mut mpsc::Receiver<Command>,
) {
    let subscribed = Mutex::new(false);
    loop {
        let ready = *subscribed.lock().unwrap();
        tokio::select! {
            command = inbox.recv(), if ready => match command {
                Some(Command::Announce) => {
                    let params = json!({ "subscription": "0x1", "result": { "number": "0x7" } });
                    let head = json!({ "method": "eth_subscription", "params": params });
                    socket.send(Message::text(head.to_string())).await.unwrap();
                }
                Some(Command::HangUp) | None => return,
            },
            message = socket.next() => {
                let Some(Ok(Message::Text(text))) = message else { return };
                let request: Value = serde_json::from_str(text.as_str()).unwrap();
                let result = match request["method"].as_str().unwrap() {
                    "eth_chainId" => json!(format!("{chain:#x}")),
                    "eth_subscribe" => {
                        assert_eq!(request["params"], json!(["newHeads"]));
                        *subscribed.lock().unwrap() = true;
                        json!("0x1")
                    }
                    other => panic!("{other}"),
                };
                let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
                socket.send(Message::text(answer.to_string())).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn every_head_wakes_and_lost_connection_is_reopened() {
    let node = Announcer::start(CHAIN.0).await;
    let chain = node.chain().await;
    let wait_for_wakeup = async || timeout(WAIT_MAX, chain.wait_for_head()).await.unwrap();
    wait_for_wakeup().await; // for heads before the subscription
    for _ in 0..3 {
        node.announce().await;
        wait_for_wakeup().await;
    }
    node.commands.send(Command::HangUp).await.unwrap();
    wait_for_wakeup().await;
    assert_eq!(node.connections.load(Ordering::SeqCst), 2);
    node.announce().await;
    wait_for_wakeup().await;
    let quiet = timeout(Duration::from_millis(1), chain.wait_for_head()).await;
    assert!(quiet.is_err(), "no wakeup without a head");

    assert_eq!(node.ended.load(Ordering::SeqCst), 1);
    drop(chain);
    wait_until("the end of the connection", async || {
        node.ended.load(Ordering::SeqCst) == 2
    })
    .await;
}

#[tokio::test]
async fn head_announced_before_the_wait_is_not_lost() {
    let node = Announcer::start(CHAIN.0).await;
    let chain = node.chain().await;
    timeout(WAIT_MAX, chain.wait_for_head()).await.unwrap();
    node.announce().await;
    wait_until("the command to be read", async || {
        node.commands.capacity() == 8
    })
    .await;
    timeout(WAIT_MAX, chain.wait_for_head()).await.unwrap();
}

#[tokio::test]
async fn subscription_to_another_chain_does_not_wake() {
    let node = Announcer::start(5).await;
    let chain = node.chain().await;
    let listen = chain.wait_for_head();
    let tries = wait_until("a second try", async || {
        node.connections.load(Ordering::SeqCst) > 1
    });
    tokio::select! {
        () = listen => panic!("a head of another chain woke the waiter"),
        () = tries => {}
    }
}

#[tokio::test]
async fn invalid_configurations_are_refused() {
    let ws = EndpointUrl::parse_ws("ws://127.0.0.1:1").unwrap();
    let http = EndpointUrl::parse("http://127.0.0.1:1").unwrap();
    let defaults = || RpcChainConfig::new(CHAIN, vec![http.clone()]);
    let refused = |config| RpcChain::new(config).unwrap_err();
    let calls_to_ws = RpcChainConfig::new(CHAIN, vec![ws.clone()]);
    assert!(matches!(refused(calls_to_ws), RpcSetupError::Scheme { .. }));
    let subscription_to_http = RpcChainConfig {
        ws: Some(http.clone()),
        ..defaults()
    };
    assert!(matches!(
        refused(subscription_to_http),
        RpcSetupError::Scheme { .. }
    ));
    let zero_send_to = RpcChainConfig {
        send_to: 0,
        ..defaults()
    };
    assert!(matches!(
        refused(zero_send_to),
        RpcSetupError::ZeroSendTo(_)
    ));
    let zero_rate = RpcChainConfig {
        requests_per_second: Some(0),
        ..defaults()
    };
    assert!(matches!(
        refused(zero_rate),
        RpcSetupError::ZeroRequestRate(_)
    ));
    // Without a WebSocket URL no head is announced.
    let chain = RpcChain::new(defaults()).unwrap();
    let quiet = timeout(Duration::from_millis(1), chain.wait_for_head()).await;
    assert!(quiet.is_err());
}
