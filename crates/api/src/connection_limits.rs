//! How many connections the server holds, altogether and from one address.
//!
//! A connection carries one request at a time, so this bounds the requests in flight as well. A part of all connections is
//! kept for addresses that hold few: nodes of the cluster, health checks and operators reach a node whose customers use
//! all they may.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

/// The most connections at once.
pub const CONNECTIONS_MAX: usize = 8_192;
/// The default of `http.maxConnectionsPerAddress`: behind a load balancer all customers have one address.
pub const CONNECTIONS_PER_ADDRESS: usize = 4_096;
/// Of them, those that are kept for addresses with few connections.
const RESERVED_FOR_FEW: usize = 512;
/// So many connections are few.
const FEW: usize = 16;
/// Bits of an IPv6 address that one subscriber has to itself.
const SUBSCRIBER_BITS: u32 = 64;

/// Admits connections.
pub(crate) struct ConnectionLimits {
    per_address: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    total: usize,
    /// By address, of those that have any.
    by_address: BTreeMap<IpAddr, usize>,
}

/// A connection that is counted until this is dropped.
pub(crate) struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    address: IpAddr,
}

impl ConnectionLimits {
    pub(crate) fn new(per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            per_address,
            open: Mutex::default(),
        })
    }

    /// Counts a connection; `None` when there are too many.
    pub(crate) fn admit(self: &Arc<Self>, from: SocketAddr) -> Option<ConnectionPermit> {
        let address = subscriber(from.ip());
        let is_admitted = self.with_open(|open| open.admit(address, self.per_address));
        if !is_admitted {
            metrics::counter!("lanekeeper_http_connections_refused_total").increment(1);
            return None;
        }
        Some(ConnectionPermit {
            limits: Arc::clone(self),
            address,
        })
    }

    fn with_open<T>(&self, change: impl FnOnce(&mut OpenConnections) -> T) -> T {
        change(&mut self.open.lock().expect("nothing panics while holding it"))
    }
}

impl OpenConnections {
    fn admit(&mut self, address: IpAddr, per_address: usize) -> bool {
        let held = self.by_address.get(&address).copied().unwrap_or(0);
        let most = match held < FEW {
            true => CONNECTIONS_MAX,
            false => CONNECTIONS_MAX.saturating_sub(RESERVED_FOR_FEW),
        };
        let is_admitted = held < per_address && self.total < most;
        if is_admitted {
            self.total = self.total.saturating_add(1);
            self.by_address.insert(address, held.saturating_add(1));
        }
        is_admitted
    }

    fn release(&mut self, address: IpAddr) {
        self.total = self.total.saturating_sub(1);
        let left = self.by_address.remove(&address).unwrap_or(0);
        if left > 1 {
            self.by_address.insert(address, left.saturating_sub(1));
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limits.with_open(|open| open.release(self.address));
    }
}

/// The address that is counted: an IPv6 subscriber has a network of addresses.
fn subscriber(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let network = u128::MAX << (u128::BITS.saturating_sub(SUBSCRIBER_BITS));
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & network))
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    fn address(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().expect("an address"), 5_000)
    }

    fn admit_many(
        limits: &Arc<ConnectionLimits>,
        from: &str,
        count: usize,
    ) -> Vec<ConnectionPermit> {
        (0..count)
            .filter_map(|_| limits.admit(address(from)))
            .collect()
    }

    #[test]
    fn address_has_its_share_and_gets_it_back() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let limits = ConnectionLimits::new(20);
        let held = admit_many(&limits, "10.0.0.1", 30);
        assert_eq!(held.len(), 20);
        let page = recorder.handle().render();
        let name = "lanekeeper_http_connections_refused_total";
        assert!(page.contains(&format!("{name} 10\n")), "{page}");
        assert!(limits.admit(address("10.0.0.2")).is_some());
        drop(held);
        assert_eq!(admit_many(&limits, "10.0.0.1", 30).len(), 20);
        assert!(limits.with_open(|open| open.by_address.is_empty() && open.total == 0));
    }

    #[test]
    fn addresses_with_few_connections_reach_a_node_that_others_fill() {
        let limits = ConnectionLimits::new(CONNECTIONS_MAX);
        let crowd = admit_many(&limits, "10.0.0.1", CONNECTIONS_MAX);
        assert_eq!(crowd.len(), CONNECTIONS_MAX - RESERVED_FOR_FEW);
        let peer = admit_many(&limits, "10.0.0.2", 2 * FEW);
        assert_eq!(peer.len(), FEW);
        let mut others = Vec::new();
        for number in 0..100 {
            others.extend(admit_many(&limits, &format!("10.0.1.{number}"), FEW));
        }
        assert_eq!(
            others.len(),
            RESERVED_FOR_FEW - FEW,
            "and not more than there are"
        );
    }

    #[test]
    fn one_subscriber_is_one_address() {
        let limits = ConnectionLimits::new(1);
        let first = limits.admit(address("2001:db8:1:2::1"));
        assert!(first.is_some());
        assert!(limits.admit(address("2001:db8:1:2:ffff::7")).is_none());
        let other = limits.admit(address("2001:db8:1:3::1"));
        let mapped = limits.admit(address("::ffff:10.0.0.1"));
        assert!(other.is_some() && mapped.is_some());
        assert!(limits.admit(address("10.0.0.1")).is_none());
    }
}
