//! The pools: reads, writes and heartbeats have connections of their own, so that none starves another.

use std::time::Duration;

pub(super) use postgres_client::Param;
use postgres_client::{Connector, Pool, PoolConfig, Timeouts};

/// How long a call waits for a free connection, a new one included.
const CONNECTION_WITHIN: Duration = Duration::from_secs(2);

/// How much longer than the database's own limit a caller waits, so that the database answers first.
const GRACE: Duration = Duration::from_millis(500);

/// One connection is reserved for heartbeats and renewals, so that nothing else ever delays them.
const LEASE_CONNECTIONS: usize = 1;

/// The database.
pub(super) struct Db {
    pub(super) reads: Pool,
    /// Also for reads that a keeper needs in order to write.
    pub(super) writes: Pool,
    /// Renewals and heartbeats.
    pub(super) leases: Pool,
}

impl Db {
    /// With this many connections in all, opened when they are needed.
    pub(super) fn new(connector: &Connector, timeouts: &Timeouts, connections: usize) -> Self {
        let others = connections.saturating_sub(LEASE_CONNECTIONS).max(2);
        let for_reads = others / 2;
        let pool = |connections| {
            let config = PoolConfig {
                connections,
                connection_within: CONNECTION_WITHIN,
                answer_within: timeouts.statement.saturating_add(GRACE),
            };
            Pool::new(connector.clone(), config)
        };
        Self {
            reads: pool(for_reads),
            writes: pool(others.saturating_sub(for_reads)),
            leases: pool(LEASE_CONNECTIONS),
        }
    }
}
