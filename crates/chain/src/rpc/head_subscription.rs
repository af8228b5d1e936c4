//! A WebSocket subscription to new heads: a wakeup without data. Heads are always polled as well.

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

/// A subscription that reconnects until it is dropped.
pub(super) struct HeadSubscription {
    wakeup: Arc<Notify>,
    task: AbortHandle,
}

impl HeadSubscription {
    pub(super) fn start(url: EndpointUrl, chain: ChainId) -> Self {
        let wakeup = Arc::new(Notify::new());
        let listener = HeadListener {
            url,
            chain,
            wakeup: Arc::clone(&wakeup),
        };
        let task = tokio::spawn(listener.run()).abort_handle();
        Self { wakeup, task }
    }

    /// Waits until a head is announced; returns at once if one was since the last call.
    pub(super) async fn next(&self) {
        self.wakeup.notified().await;
    }
}

impl Drop for HeadSubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct HeadListener {
    url: EndpointUrl,
    chain: ChainId,
    wakeup: Arc<Notify>,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A received message: the answer to one of the two requests, or an announcement.
#[derive(Deserialize)]
struct Frame {
    id: Option<u64>,
    method: Option<String>,
    result: Option<Box<RawValue>>,
}

const ID_CHAIN: u64 = 1;
const ID_SUBSCRIBE: u64 = 2;

impl HeadListener {
    async fn run(self) {
        let (chain, endpoint) = (self.chain, self.url.name());
        let mut wait = limits::RECONNECT_BACKOFF;
        loop {
            let mut worked = false;
            let Err(why) = self.listen(&mut worked).await;
            if worked {
                wait = limits::RECONNECT_BACKOFF;
            }
            tracing::warn!(%chain, endpoint, why, ?wait, "subscription to new heads failed; polling continues, reconnecting after the wait");
            sleep(wait).await;
            wait = (wait * 2).min(limits::RECONNECT_BACKOFF_MAX);
        }
    }

    /// Subscribes, and notifies at every announcement until the connection fails.
    async fn listen(&self, worked: &mut bool) -> Result<Infallible, String> {
        let mut socket = self.connect().await?;
        send_request(&mut socket, ID_CHAIN, "eth_chainId", json!([])).await?;
        let mut was_pinged = false;
        loop {
            let Ok(received) = timeout(limits::SUBSCRIPTION_IDLE_MAX, socket.next()).await else {
                if was_pinged {
                    return Err("no message arrived, also not after a ping".to_owned());
                }
                was_pinged = true;
                let ping = Message::Ping(Default::default());
                socket.send(ping).await.map_err(error_text)?;
                continue;
            };
            was_pinged = false;
            let message = received
                .ok_or_else(|| "the endpoint closed the connection".to_owned())?
                .map_err(error_text)?;
            let Message::Text(text) = message else {
                continue; // the library answers pings
            };
            let Ok(frame) = serde_json::from_str::<Frame>(text.as_str()) else {
                return Err("a message is not JSON-RPC".to_owned());
            };
            *worked |= self.handle_frame(&mut socket, frame).await?;
        }
    }

    /// Handles one message; returns whether the subscription works.
    async fn handle_frame(&self, socket: &mut Socket, frame: Frame) -> Result<bool, String> {
        if frame.method.as_deref() == Some("eth_subscription") {
            self.wakeup.notify_one();
            return Ok(true);
        }
        match (frame.id, frame.result) {
            (Some(ID_CHAIN), Some(result)) => {
                let found =
                    serde_json::from_str(result.get()).map(|Quantity(found)| ChainId(found));
                if found.as_ref().ok() != Some(&self.chain) {
                    return Err("the endpoint serves another chain".to_owned());
                }
                send_request(socket, ID_SUBSCRIBE, "eth_subscribe", json!(["newHeads"])).await?;
                Ok(false)
            }
            (Some(ID_SUBSCRIBE), Some(_)) => {
                let (chain, endpoint) = (self.chain, self.url.name());
                tracing::info!(%chain, endpoint, "subscribed to new heads");
                self.wakeup.notify_one(); // for heads before the subscription
                Ok(true)
            }
            (Some(_) | None, _) => Err("the endpoint supports no subscription to heads".to_owned()),
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
            Ok(Err(error)) => Err(error_text(error)),
            Err(_) => Err("no connection within the time limit".to_owned()),
        }
    }
}

async fn send_request(
    socket: &mut Socket,
    id: u64,
    method: &'static str,
    params: Value,
) -> Result<(), String> {
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let message = Message::text(request.to_string());
    socket.send(message).await.map_err(error_text)
}

fn error_text(error: tungstenite::Error) -> String {
    if let tungstenite::Error::Url(_) = error {
        return "its URL is invalid".to_owned(); // the text may contain a credential
    }
    readable(&error.to_string())
}
