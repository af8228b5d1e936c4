//! A TCP proxy with faults on command: cut, frozen, slow, or losing one request or response.
//!
//! It runs on its own thread, so a blocking test does not block the network.

mod relay;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

/// A proxy on a loopback port. Dropping it closes all its connections.
#[derive(Debug)]
pub struct TcpProxy {
    port: u16,
    proxy: Arc<ProxyState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the client sees after its response was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLoss {
    /// The connection closes.
    Cut,
    /// Nothing: only the client's own deadline ends it.
    Silence,
}

impl TcpProxy {
    pub fn in_front_of(port: u16) -> Self {
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a new socket");
        let port = listener.local_addr().expect("it is bound").port();
        let proxy = Arc::new(ProxyState::new(target));
        let (stop, stopped) = oneshot::channel();
        let relayed = Arc::clone(&proxy);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime needs no more than a few file handles");
            runtime.block_on(async {
                tokio::select! {
                    () = relay::accept(listener, relayed) => {}
                    _ = stopped => {} // also when the sender was dropped
                }
            });
        });
        Self {
            port,
            proxy,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections, and every new one immediately.
    pub fn cut(&self) {
        self.proxy.link.send_replace(Link::Cut);
    }

    /// Relays nothing in either direction, while connections stay open and new ones are accepted: a network partition
    /// or a frozen peer.
    pub fn freeze(&self) {
        self.proxy.link.send_replace(Link::Frozen);
    }

    /// Adds a delay in each direction.
    pub fn delay(&self, by: Duration) {
        self.proxy.rules().delay = by;
    }

    /// The next request with these bytes is processed by the server, and its response is lost.
    pub fn lose_answer_to(&self, bytes: impl AsRef<[u8]>, then: AfterLoss) {
        self.proxy.lose(bytes.as_ref(), Loss::Answer(then));
    }

    /// The next request with these bytes does not reach the server, and its connection closes.
    pub fn lose_request(&self, bytes: impl AsRef<[u8]>) {
        self.proxy.lose(bytes.as_ref(), Loss::Request);
    }

    /// Holds requests with these bytes, and everything after them on their connection, until [`Self::heal`]. Other
    /// connections are not affected.
    pub fn hold(&self, bytes: impl AsRef<[u8]>) {
        assert!(
            !bytes.as_ref().is_empty(),
            "an empty pattern would match every request"
        );
        self.proxy.rules().held = Some(bytes.as_ref().to_owned());
    }

    /// The number of held requests.
    pub fn held(&self) -> u64 {
        self.proxy.held.load(Ordering::SeqCst)
    }

    /// Cuts after this many further response bytes.
    pub fn cut_after(&self, answer_bytes: usize) {
        self.proxy.rules().answer_bytes_left = Some(answer_bytes);
    }

    /// The number of lost requests and responses.
    pub fn lost(&self) -> u64 {
        self.proxy.lost.load(Ordering::SeqCst)
    }

    /// Removes all faults. Frozen and held bytes continue.
    pub fn heal(&self) {
        *self.proxy.rules() = Rules::default();
        self.proxy.link.send_replace(Link::Up);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed, and the test sees closed connections.
            thread.join().ok();
        }
    }
}

/// The state that all connections of a proxy share.
#[derive(Debug)]
struct ProxyState {
    target: SocketAddr,
    link: watch::Sender<Link>,
    rules: Mutex<Rules>,
    lost: AtomicU64,
    held: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Frozen,
    Cut,
}

#[derive(Debug, Default)]
struct Rules {
    delay: Duration,
    /// The loss of the next request with these bytes.
    loss: Option<(Vec<u8>, Loss)>,
    /// Requests with these bytes are held.
    held: Option<Vec<u8>>,
    answer_bytes_left: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Request,
    Answer(AfterLoss),
}

impl ProxyState {
    fn new(target: SocketAddr) -> Self {
        Self {
            target,
            link: watch::Sender::new(Link::Up),
            rules: Mutex::default(),
            lost: AtomicU64::new(0),
            held: AtomicU64::new(0),
        }
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lose(&self, bytes: &[u8], loss: Loss) {
        assert!(
            !bytes.is_empty(),
            "an empty pattern would match every request"
        );
        self.rules().loss = Some((bytes.to_owned(), loss));
    }

    fn count_loss(&self) {
        self.lost.fetch_add(1, Ordering::SeqCst);
    }

    fn count_held(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
    }

    async fn wait_until_released(&self) {
        let mut healed = self.link.subscribe();
        while self.rules().held.is_some() {
            healed.changed().await.expect("the wire keeps its sender");
        }
    }

    async fn wait_for_link(&self, condition: impl FnMut(&Link) -> bool) -> Link {
        let mut link = self.link.subscribe();
        let link = link.wait_for(condition).await;
        *link.expect("the wire keeps its sender")
    }
}
