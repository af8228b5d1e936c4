//! The pools: writes, heartbeats, the engine's reads and those of customers have connections of their own, so that none
//! starves another.

use std::time::Duration;

use postgres_client::{Connector, PoolConfig, Timeouts};
pub(super) use postgres_client::{Param, Pool};

/// How long a call waits for a free connection, a new one included.
const CONNECTION_WITHIN: Duration = Duration::from_secs(2);

/// How much longer than the database's own limit a caller waits, so that the database answers first.
const GRACE: Duration = Duration::from_millis(500);

/// One connection is reserved for heartbeats and renewals, so that nothing else ever delays them.
const LEASE_CONNECTIONS: usize = 1;

/// The engine's reads get one of so many of the other connections: they are few and short.
const ENGINE_SHARE: usize = 4;

/// How many reads of customers may wait for a connection; further ones are refused at once.
const CUSTOMERS_WAITING_MAX: usize = 1_024;

/// Whose reads a handle of the store makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    Engine,
    Customer,
}

/// The database.
pub(super) struct Db {
    /// Opening lanes, their backlog and queue, adoption and readiness.
    pub(super) engine: Pool,
    /// Lists, single txs, events.
    customers: Pool,
    /// Also for reads that a keeper needs in order to write.
    pub(super) writes: Pool,
    /// Renewals and heartbeats.
    pub(super) leases: Pool,
}

impl Db {
    /// With this many connections in all, opened when they are needed.
    pub(super) fn new(connector: &Connector, timeouts: &Timeouts, connections: usize) -> Self {
        let shares = Shares::of(connections);
        let pool = |connections, waiting_max| {
            let config = PoolConfig {
                connections,
                connection_within: CONNECTION_WITHIN,
                waiting_max,
                answer_within: timeouts.statement.saturating_add(GRACE),
            };
            Pool::new(connector.clone(), config)
        };
        Self {
            engine: pool(shares.engine, usize::MAX),
            customers: pool(shares.customers, CUSTOMERS_WAITING_MAX),
            writes: pool(shares.writes, usize::MAX),
            leases: pool(LEASE_CONNECTIONS, usize::MAX),
        }
    }

    pub(super) fn reads_of(&self, reader: Reader) -> &Pool {
        match reader {
            Reader::Engine => &self.engine,
            Reader::Customer => &self.customers,
        }
    }
}

/// How the connections are divided, besides the one for leases.
#[derive(Debug, PartialEq, Eq)]
struct Shares {
    engine: usize,
    customers: usize,
    writes: usize,
}

impl Shares {
    /// Each has at least one, also where fewer connections were configured.
    fn of(connections: usize) -> Self {
        let others = connections.saturating_sub(LEASE_CONNECTIONS).max(3);
        let engine = (others / ENGINE_SHARE).max(1);
        let customers = (others - engine) / 2;
        Self {
            engine,
            customers,
            writes: others - engine - customers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LEASE_CONNECTIONS, Shares};

    #[test]
    fn every_pool_has_a_share_and_all_of_them_are_the_configured_number() {
        for connections in 4..500 {
            let Shares {
                engine,
                customers,
                writes,
            } = Shares::of(connections);
            assert!(engine >= 1 && customers >= 1 && writes >= customers);
            let all = LEASE_CONNECTIONS + engine + customers + writes;
            assert_eq!(all, connections);
        }
        let least = Shares::of(0);
        assert_eq!((least.engine, least.customers, least.writes), (1, 1, 1));
    }
}
