//! The TCP listener of a server.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::Failure;

/// Binds a listener. `setting` names the key or flag that chooses another port.
pub async fn bind(address: SocketAddr, setting: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|e| {
        if e.kind() != ErrorKind::AddrInUse {
            return Failure::refused(&format!("cannot listen on {address}"), &e);
        }
        Failure::Refused(format!(
            "port {} on {} is taken (by another Lanekeeper?): stop that process, or set {setting} to \
             another port",
            address.port(),
            address.ip()
        ))
    })
}
