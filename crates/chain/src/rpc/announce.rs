//! Word of new heads by WebSocket: a bell without data. Heads are always asked for as well.

use std::convert::Infallible;
use std::sync::Arc;

use domain::ChainId;
use futures::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::answers::Quantity;
use super::limits;
use super::url::EndpointUrl;
use super::wire::readable;

/// A subscription that is kept up until this is dropped.
pub(super) struct Announcements {
    bell: Arc<Notify>,
    task: AbortHandle,
}

impl Announcements {
    /// Starts to listen.
    pub(super) fn start(url: EndpointUrl, chain: ChainId) -> Self {
        let bell = Arc::new(Notify::new());
        let listener = Listener {
            url,
            chain,
            bell: Arc::clone(&bell),
        };
        let task = tokio::spawn(listener.run()).abort_handle();
        Self { bell, task }
    }

    /// Returns when a head was announced since this returned last.
    pub(super) async fn next(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Announcements {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Listener {
    url: EndpointUrl,
    chain: ChainId,
    bell: Arc<Notify>,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// What comes over the line: answers to our two questions, and announcements.
#[derive(Deserialize)]
struct Frame {
    id: Option<u64>,
    method: Option<String>,
    result: Option<Box<RawValue>>,
}

const ID_CHAIN: u64 = 1;
const ID_SUBSCRIBE: u64 = 2;

impl Listener {
    async fn run(self) {
        let (chain, endpoint) = (self.chain, self.url.name());
        let mut wait = limits::RECONNECT_AFTER;
        loop {
            let mut worked = false;
            let Err(why) = self.listen(&mut worked).await;
            if worked {
                wait = limits::RECONNECT_AFTER;
            }
            tracing::warn!(%chain, endpoint, why, ?wait, "new heads are not announced; trying again");
            sleep(wait).await;
            wait = (wait * 2).min(limits::RECONNECT_AFTER_MAX);
        }
    }

    /// Subscribes, and rings at every announcement until something breaks.
    async fn listen(&self, worked: &mut bool) -> Result<Infallible, String> {
        let mut socket = self.connect().await?;
        ask(&mut socket, ID_CHAIN, "eth_chainId", json!([])).await?;
        let mut was_asked_for_a_word = false;
        loop {
            let Ok(word) = timeout(limits::SILENCE_MAX, socket.next()).await else {
                if was_asked_for_a_word {
                    return Err("it fell silent".to_owned());
                }
                was_asked_for_a_word = true;
                let ping = Message::Ping(Default::default());
                socket.send(ping).await.map_err(|error| said(&error))?;
                continue;
            };
            was_asked_for_a_word = false;
            let message = word
                .ok_or_else(|| "it closed the connection".to_owned())?
                .map_err(|error| said(&error))?;
            let Message::Text(text) = message else {
                continue; // pings are answered by the library
            };
            let Ok(frame) = serde_json::from_str::<Frame>(text.as_str()) else {
                return Err("it does not speak JSON-RPC".to_owned());
            };
            *worked |= self.take(&mut socket, frame).await?;
        }
    }

    /// Takes one message in; says whether the subscription works.
    async fn take(&self, socket: &mut Socket, frame: Frame) -> Result<bool, String> {
        if frame.method.as_deref() == Some("eth_subscription") {
            self.bell.notify_one();
            return Ok(true);
        }
        match (frame.id, frame.result) {
            (Some(ID_CHAIN), Some(result)) => {
                let found =
                    serde_json::from_str(result.get()).map(|Quantity(found)| ChainId(found));
                if found.as_ref().ok() != Some(&self.chain) {
                    return Err("it serves another chain".to_owned());
                }
                ask(socket, ID_SUBSCRIBE, "eth_subscribe", json!(["newHeads"])).await?;
                Ok(false)
            }
            (Some(ID_SUBSCRIBE), Some(_)) => {
                let (chain, endpoint) = (self.chain, self.url.name());
                tracing::info!(%chain, endpoint, "new heads are announced");
                self.bell.notify_one(); // for what was missed before
                Ok(true)
            }
            (Some(_) | None, _) => Err("it does not announce heads".to_owned()),
        }
    }

    async fn connect(&self) -> Result<Socket, String> {
        let config = WebSocketConfig::default()
            .max_message_size(Some(limits::ANNOUNCEMENT_BYTES_MAX))
            .max_frame_size(Some(limits::ANNOUNCEMENT_BYTES_MAX));
        let address = self.url.secret().as_str();
        let connecting = Box::pin(connect_async_with_config(address, Some(config), true));
        match timeout(limits::CONNECT_TIMEOUT_MAX, connecting).await {
            Ok(Ok((socket, _))) => Ok(socket),
            Ok(Err(error)) => Err(said(&error)),
            Err(_) => Err("it does not answer".to_owned()),
        }
    }
}

async fn ask(
    socket: &mut Socket,
    id: u64,
    method: &'static str,
    params: Value,
) -> Result<(), String> {
    let question = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let message = Message::text(question.to_string());
    socket.send(message).await.map_err(|error| said(&error))
}

fn said(error: &tungstenite::Error) -> String {
    if let tungstenite::Error::Url(_) = error {
        return "its address cannot be used".to_owned(); // the text may hold a credential
    }
    readable(&error.to_string())
}
