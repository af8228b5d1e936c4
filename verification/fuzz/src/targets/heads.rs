//! Messages of nodes that announce new heads by WebSocket.
//!
//! Each part of an input is one message; its first line says whether it is `text` (or nothing known),
//! `binary`, `ping`, `close`, or `raw` bytes on the wire.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use engine::ports::Chain as _;
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async};

use super::Target;
use crate::parts::{first_line, parts};
use crate::worlds::node::CHAIN;
use crate::worlds::still_runtime;

/// How long heads are listened for, by the clock that stands still: a few tries to connect.
const LISTEN_FOR: Duration = Duration::from_secs(3);
/// Heads that are taken from one input.
const HEADS_MAX: usize = 20;

pub(super) fn make() -> Box<dyn Target> {
    let runtime = still_runtime();
    let script = Arc::new(Mutex::new(Vec::new()));
    let url = runtime.block_on(serve(Arc::clone(&script)));
    Box::new(Heads {
        url,
        script,
        runtime,
    })
}

struct Heads {
    url: EndpointUrl,
    script: Arc<Mutex<Vec<Vec<u8>>>>,
    runtime: Runtime,
}

impl Target for Heads {
    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let parts = parts(input).into_iter().map(<[u8]>::to_vec).collect();
        *self.script.lock().unwrap_or_else(PoisonError::into_inner) = parts;
        self.runtime.block_on(async {
            let closed_port = EndpointUrl::parse("http://127.0.0.1:9").expect("a good address");
            let mut config = RpcChainConfig::new(CHAIN, vec![closed_port]);
            config.ws = Some(self.url.clone());
            let chain = RpcChain::new(config).expect("a good configuration");
            for _ in 0..HEADS_MAX {
                if timeout(LISTEN_FOR, chain.wait_for_head()).await.is_err() {
                    break;
                }
            }
            Ok(())
        })
    }
}

async fn serve(script: Arc<Mutex<Vec<Vec<u8>>>>) -> EndpointUrl {
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a loopback socket can be opened");
    let address = listener
        .local_addr()
        .expect("a bound socket has an address");
    tokio::spawn(async move {
        // Ends with the runtime.
        while let Ok((stream, _)) = listener.accept().await {
            let parts = script
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            tokio::spawn(async move {
                // A connection that breaks is what the input wanted.
                play_server(stream, parts).await.ok();
            });
        }
    });
    EndpointUrl::parse_ws(&format!("ws://{address}")).expect("an address of ours")
}

type Broken = Box<dyn std::error::Error + Send + Sync>;

async fn play_server(stream: TcpStream, parts: Vec<Vec<u8>>) -> Result<(), Broken> {
    let mut socket: WebSocketStream<TcpStream> = accept_async(stream).await?;
    for part in parts {
        let (kind, body) = first_line(&part);
        let message = match kind.as_str() {
            "raw" => {
                socket.get_mut().write_all(body).await?;
                continue;
            }
            "binary" => Message::binary(body.to_vec()),
            "ping" => Message::Ping(body.iter().take(125).copied().collect::<Vec<_>>().into()),
            "close" => Message::Close(None),
            _ => Message::text(String::from_utf8_lossy(body).into_owned()),
        };
        socket.send(message).await?;
    }
    // Then it listens, until the other side goes.
    while socket.next().await.is_some_and(|message| message.is_ok()) {}
    Ok(())
}
