//! One address for the current primary, like a virtual IP.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Outcome;

/// A loopback port that forwards to another port, which can change.
pub struct VirtualAddress {
    port: u16,
    target: watch::Sender<u16>,
    _relays: JoinSet<()>,
}

impl VirtualAddress {
    pub async fn to(port: u16) -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let own_port = listener.local_addr()?.port();
        let target = watch::Sender::new(port);
        let mut relays = JoinSet::new();
        relays.spawn(accept(listener, target.clone()));
        Ok(Self {
            port: own_port,
            target,
            _relays: relays,
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Forwards to another port from now on; all connections close.
    pub fn point_to(&self, port: u16) {
        self.target.send_replace(port);
    }
}

async fn accept(listener: TcpListener, target: watch::Sender<u16>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A client that disconnected before it was accepted is harmless.
                if let Ok((client, _)) = accepted {
                    connections.spawn(relay(client, target.subscribe()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn relay(mut client: TcpStream, mut target: watch::Receiver<u16>) {
    let port = *target.borrow_and_update();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let Ok(mut server) = TcpStream::connect(address).await else {
        return; // the client sees a closed connection
    };
    client.set_nodelay(true).ok(); // only speed depends on it
    server.set_nodelay(true).ok();
    tokio::select! {
        // Either way the connection ends: the other side sees it close.
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = target.changed() => {}
    }
}
