//! A relay between the browser and an attacked server: it records what the browser sends, and its target can change while
//! the browser keeps using one name, as in DNS rebinding.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use proof::Outcome;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// More than all pages of one run send.
const RECORDED_BYTES_MAX: usize = 16 << 20;

const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// A relay on a loopback port; it ends with the value.
pub(super) struct Wire {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    target: AtomicU16,
    sent: Mutex<Vec<u8>>,
}

impl Wire {
    pub(super) async fn to(target: u16) -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            target: AtomicU16::new(target),
            sent: Mutex::default(),
        });
        let relayed = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            // A client that disconnected before it was accepted ends nothing else.
            loop {
                if let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(relay(client, Arc::clone(&relayed)));
                }
            }
        });
        Ok(Self {
            port,
            shared,
            accepting,
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// A function that leads later connections to another server.
    pub(super) fn rebind_to(&self, target: u16) -> impl Fn() + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.target.store(target, Ordering::SeqCst)
    }

    /// How often the browser sent this text.
    pub(super) fn count_sent(&self, text: &str) -> usize {
        let sent = self.shared.sent();
        let wanted = text.as_bytes();
        sent.windows(wanted.len())
            .filter(|window| *window == wanted)
            .count()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn sent(&self) -> MutexGuard<'_, Vec<u8>> {
        self.sent
            .lock()
            .expect("nothing panics while it holds this")
    }

    fn record(&self, bytes: &[u8]) {
        let mut sent = self.sent();
        let room = RECORDED_BYTES_MAX.saturating_sub(sent.len());
        sent.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

async fn relay(client: TcpStream, shared: Arc<Shared>) {
    let target = shared.target.load(Ordering::SeqCst);
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else {
        return; // the browser sees a closed connection
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let mut chunk = vec![0; CHUNK_BYTES_MAX];
        while let Ok(read @ 1..) = from_client.read(&mut chunk).await {
            shared.record(&chunk[..read]);
            to_server.write_all(&chunk[..read]).await?;
        }
        to_server.shutdown().await
    };
    let answers = async {
        tokio::io::copy(&mut from_server, &mut to_client).await?;
        to_client.shutdown().await
    };
    // An error is a connection that one of the two has closed.
    tokio::join!(requests, answers).0.ok();
}
