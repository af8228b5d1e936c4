//! A TCP proxy that fails on command: cut, frozen, slow, or losing one request or answer.
//!
//! It runs on a thread of its own, so a test that blocks does not block the network.

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
    wire: Arc<Wire>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the client sees after its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The connection closes.
    Cut,
    /// Nothing, for ever: only the client's own deadline ends it.
    Silence,
}

impl TcpProxy {
    /// A proxy in front of a loopback port.
    pub fn in_front_of(port: u16) -> Self {
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket of ours");
        let port = listener.local_addr().expect("it is bound").port();
        let wire = Arc::new(Wire::new(target));
        let (stop, stopped) = oneshot::channel();
        let relayed = Arc::clone(&wire);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime needs no more than a few file handles");
            runtime.block_on(async {
                tokio::select! {
                    () = relay::accept(listener, relayed) => {}
                    _ = stopped => {} // also when the proxy was dropped without a word
                }
            });
        });
        Self {
            port,
            wire,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections, and every new one at once.
    pub fn cut(&self) {
        self.wire.link.send_replace(Link::Cut);
    }

    /// Relays nothing any more, in neither direction, while all connections stay open and new ones
    /// are taken: what a network partition or a frozen peer looks like.
    pub fn freeze(&self) {
        self.wire.link.send_replace(Link::Frozen);
    }

    /// Everything takes this much longer, in each direction, from now on.
    pub fn delay(&self, by: Duration) {
        self.wire.rules().delay = by;
    }

    /// The next request with these bytes reaches the server, is carried out there, and its answer
    /// is lost.
    pub fn lose_answer_to(&self, bytes: impl AsRef<[u8]>, then: Then) {
        self.wire.lose(bytes.as_ref(), Loss::Answer(then));
    }

    /// The next request with these bytes never reaches the server, and its connection closes.
    pub fn lose_request(&self, bytes: impl AsRef<[u8]>) {
        self.wire.lose(bytes.as_ref(), Loss::Request);
    }

    /// No request with these bytes reaches the server, nor anything that follows it on its connection, until
    /// all faults are taken back. Everything else goes on.
    pub fn hold(&self, bytes: impl AsRef<[u8]>) {
        assert!(
            !bytes.as_ref().is_empty(),
            "every request has no bytes in it"
        );
        self.wire.rules().held = Some(bytes.as_ref().to_owned());
    }

    /// How many requests were held on command.
    pub fn held(&self) -> u64 {
        self.wire.held.load(Ordering::SeqCst)
    }

    /// Cuts after this many further bytes of answers, in the middle of one.
    pub fn cut_after(&self, answer_bytes: usize) {
        self.wire.rules().answer_bytes_left = Some(answer_bytes);
    }

    /// How many requests and answers were lost on command.
    pub fn lost(&self) -> u64 {
        self.wire.lost.load(Ordering::SeqCst)
    }

    /// Takes all faults back. What was frozen goes on.
    pub fn heal(&self) {
        *self.wire.rules() = Rules::default();
        self.wire.link.send_replace(Link::Up);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed, and the test sees broken connections.
            thread.join().ok();
        }
    }
}

/// What all connections of a proxy share.
#[derive(Debug)]
struct Wire {
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
    /// What happens to the next request with these bytes.
    loss: Option<(Vec<u8>, Loss)>,
    /// Requests with these bytes wait.
    held: Option<Vec<u8>>,
    answer_bytes_left: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Request,
    Answer(Then),
}

impl Wire {
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
        assert!(!bytes.is_empty(), "every request has no bytes in it");
        self.rules().loss = Some((bytes.to_owned(), loss));
    }

    fn count_loss(&self) {
        self.lost.fetch_add(1, Ordering::SeqCst);
    }

    fn count_held(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
    }

    /// Until nothing is held any more.
    async fn until_nothing_is_held(&self) {
        let mut healed = self.link.subscribe();
        while self.rules().held.is_some() {
            healed.changed().await.expect("the wire keeps its sender");
        }
    }

    /// Until the link is in one of the states that `is_so` says.
    async fn until(&self, is_so: impl FnMut(&Link) -> bool) -> Link {
        let mut link = self.link.subscribe();
        let link = link.wait_for(is_so).await;
        *link.expect("the wire keeps its sender")
    }
}
