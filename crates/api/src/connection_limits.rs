//! How many connections the server holds, altogether and from one address.
//!
//! A connection carries one request at a time, so this bounds the requests in flight as well. A part of all connections is
//! kept for addresses that hold few, and where an address, or all together, hold all they may, some more are admitted on
//! which only health checks and nodes of the cluster are served: behind a load balancer, and on one machine, they have the
//! address of the customers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

/// The most connections at once, besides the restricted ones.
pub const CONNECTIONS_MAX: usize = 8_192;
/// The default of `http.maxConnectionsPerAddress`: behind a load balancer all customers have one address.
pub const CONNECTIONS_PER_ADDRESS: usize = 4_096;
/// Of them, those that are kept for addresses with few connections.
const RESERVED_FOR_FEW: usize = 512;
/// So many connections are few.
const FEW: usize = 16;
/// The most restricted connections at once.
const RESTRICTED_MAX: usize = 512;
/// The most restricted connections of one address.
pub const RESTRICTED_PER_ADDRESS: usize = 64;
/// Bits of an IPv6 address that one subscriber has to itself.
const SUBSCRIBER_BITS: u32 = 64;

/// Admits connections.
pub(crate) struct ConnectionLimits {
    per_address: usize,
    unrestricted: Mutex<OpenConnections>,
    restricted: Mutex<OpenConnections>,
}

/// Connections of one service.
#[derive(Default)]
struct OpenConnections {
    total: usize,
    /// By address, of those that have any.
    by_address: BTreeMap<IpAddr, usize>,
}

/// What is served on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    All,
    /// Health checks and calls of nodes: the connection is one too many for anything else.
    Restricted,
}

/// A connection that is counted until this is dropped.
pub(crate) struct ConnectionPermit {
    pub(crate) service: Service,
    limits: Arc<ConnectionLimits>,
    address: IpAddr,
}

impl ConnectionLimits {
    pub(crate) fn new(per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            per_address,
            unrestricted: Mutex::default(),
            restricted: Mutex::default(),
        })
    }

    /// Counts a connection; `None` when there are too many of either kind.
    pub(crate) fn admit(self: &Arc<Self>, from: SocketAddr) -> Option<ConnectionPermit> {
        let address = subscriber(from.ip());
        let mut services = [Service::All, Service::Restricted].into_iter();
        let service = services.find(|service| self.count(*service, address));
        if service.is_none() {
            count_refused_connection();
        }
        Some(ConnectionPermit {
            service: service?,
            limits: Arc::clone(self),
            address,
        })
    }

    /// Whether there is room for one more, which is counted then.
    fn count(&self, service: Service, address: IpAddr) -> bool {
        let few_may_use = |held| match held < FEW {
            true => CONNECTIONS_MAX,
            false => CONNECTIONS_MAX.saturating_sub(RESERVED_FOR_FEW),
        };
        self.with_open(service, |open| match service {
            Service::All => open.admit(address, self.per_address, few_may_use),
            Service::Restricted => open.admit(address, RESTRICTED_PER_ADDRESS, |_| RESTRICTED_MAX),
        })
    }

    fn with_open<T>(&self, service: Service, change: impl FnOnce(&mut OpenConnections) -> T) -> T {
        let open = match service {
            Service::All => &self.unrestricted,
            Service::Restricted => &self.restricted,
        };
        change(&mut open.lock().expect("nothing panics while holding it"))
    }
}

/// Counts a connection too many.
pub(crate) fn count_refused_connection() {
    metrics::counter!("lanekeeper_http_connections_refused_total").increment(1);
}

impl OpenConnections {
    /// `most` is the largest total for an address that holds so many.
    fn admit(
        &mut self,
        address: IpAddr,
        per_address: usize,
        most: impl FnOnce(usize) -> usize,
    ) -> bool {
        let held = self.by_address.get(&address).copied().unwrap_or(0);
        let is_admitted = held < per_address && self.total < most(held);
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
        let release = |open: &mut OpenConnections| open.release(self.address);
        self.limits.with_open(self.service, release);
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

    /// Those of so many connections that are admitted with this service.
    fn admit_many(
        limits: &Arc<ConnectionLimits>,
        (from, service): (&str, Service),
        count: usize,
    ) -> Vec<ConnectionPermit> {
        (0..count)
            .filter_map(|_| limits.admit(address(from)))
            .filter(|permit| permit.service == service)
            .collect()
    }

    #[test]
    fn address_has_its_share_and_gets_it_back() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let limits = ConnectionLimits::new(20);
        let customers = ("10.0.0.1", Service::All);
        let held = admit_many(&limits, customers, 20);
        assert_eq!(held.len(), 20);
        let checks = ("10.0.0.1", Service::Restricted);
        let restricted = admit_many(&limits, checks, RESTRICTED_PER_ADDRESS + 10);
        assert_eq!(restricted.len(), RESTRICTED_PER_ADDRESS);
        let page = recorder.handle().render();
        let name = "lanekeeper_http_connections_refused_total";
        assert!(page.contains(&format!("{name} 10\n")), "{page}");
        let other = limits.admit(address("10.0.0.2")).unwrap();
        assert_eq!(other.service, Service::All);
        drop((held, restricted, other));
        assert_eq!(admit_many(&limits, customers, 20).len(), 20);
        for service in [Service::All, Service::Restricted] {
            let is_empty =
                |open: &mut OpenConnections| open.by_address.is_empty() && open.total == 0;
            assert!(limits.with_open(service, is_empty), "{service:?}");
        }
    }

    #[test]
    fn addresses_with_few_connections_reach_a_node_that_others_fill() {
        let limits = ConnectionLimits::new(CONNECTIONS_MAX);
        let crowd = admit_many(&limits, ("10.0.0.1", Service::All), CONNECTIONS_MAX);
        assert_eq!(crowd.len(), CONNECTIONS_MAX - RESERVED_FOR_FEW);
        let peer = admit_many(&limits, ("10.0.0.2", Service::All), 2 * FEW);
        assert_eq!(peer.len(), FEW);
        let mut others = Vec::new();
        for number in 0..100 {
            let other = format!("10.0.1.{number}");
            others.extend(admit_many(&limits, (&other, Service::All), FEW));
        }
        assert_eq!(
            others.len(),
            RESERVED_FOR_FEW - FEW,
            "and not more than there are"
        );
        let mut restricted = Vec::new();
        for number in 0..100 {
            let other = format!("10.0.2.{number}");
            restricted.extend(admit_many(&limits, (&other, Service::Restricted), FEW));
        }
        assert_eq!(restricted.len(), RESTRICTED_MAX);
    }

    #[test]
    fn one_subscriber_is_one_address() {
        let limits = ConnectionLimits::new(1);
        let mut held = Vec::new();
        for (from, service) in [
            ("2001:db8:1:2::1", Service::All),
            ("2001:db8:1:2:ffff::7", Service::Restricted),
            ("2001:db8:1:3::1", Service::All),
            ("::ffff:10.0.0.1", Service::All),
            ("10.0.0.1", Service::Restricted),
        ] {
            let permit = limits.admit(address(from)).unwrap();
            assert_eq!(permit.service, service, "{from}");
            held.push(permit);
        }
    }
}
