//! Loopback ports that stay reserved for one test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

/// Below Linux' ephemeral range: a server that is down for a moment must find its port free when it restarts.
const RANGE: Range<u16> = 20_000..30_000;

/// More failed tries mean that something else is wrong.
const TRIES_MAX: usize = 1_000;

/// A reserved port: no other user of this module gets it until this value is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// An abstract socket named after the port. It exists once per network, like the port itself,
    /// and the kernel frees it when the process ends, however it ends.
    _reservation: UnixDatagram,
}

impl Port {
    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

/// A port without a listener, reserved until the value is dropped.
pub fn free_port() -> Port {
    (0..TRIES_MAX)
        .find_map(|_| reserve(rand::random_range(RANGE)))
        .unwrap_or_else(|| panic!("no free port in {RANGE:?} after {TRIES_MAX} tries"))
}

fn reserve(number: u16) -> Option<Port> {
    let name = UnixAddr::from_abstract_name(format!("lanekeeper-rig-port-{number}"))
        .expect("the name is short");
    let reservation = UnixDatagram::bind_addr(&name).ok()?;
    // Other programs ignore these reservations, so the port itself must be free as well.
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    Some(Port {
        number,
        _reservation: reservation,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_port_is_handed_out_once() {
        let ports: Vec<Port> = (0..200).map(|_| free_port()).collect();
        let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), ports.len());
    }

    #[test]
    fn reserved_or_used_port_is_not_free() {
        let port = free_port();
        assert!(reserve(port.number()).is_none());
        let listener = TcpListener::bind(port.address()).unwrap();
        let number = port.number();
        drop(port);
        assert!(reserve(number).is_none());
        drop(listener);
        assert!(reserve(number).is_some());
    }
}
