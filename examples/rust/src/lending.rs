//! The nonce component, put together: books in PostgreSQL, a chain to ask, and a sweep that looks after what was
//! forgotten. Every process of the business does the same.

use std::sync::Arc;
use std::time::Duration;

use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use domain::ChainId;
use domain::lane::Finality;
use nonce::postgres::{Connect as _, Db, DbConfig, Plain, prepare};
use nonce::{LentChain, NonceComponent, RowLock, Settings, SystemClock};
use tokio::task::JoinHandle;

use crate::Failure;

/// How many blocks must stand on a transaction before its nonce counts as used for good.
const FINAL_DEPTH: u64 = 2;
/// For how many blocks forks are looked for after that.
const WATCH_DEPTH: u64 = 64;
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

pub(crate) struct ReservationRules {
    component: NonceComponent,
    sweep: JoinHandle<()>,
}

impl ReservationRules {
    pub(crate) async fn start(
        database: &str,
        rpc: &str,
        chain_id: ChainId,
    ) -> Result<Self, Failure> {
        let connect = Plain::parse(database)?;
        // Makes the tables if they are not there. Where a role of its own serves, an owner does this once instead.
        prepare(connect.connect().await?.client_mut(), None).await?;
        let db = Arc::new(Db::new(Arc::new(connect), DbConfig::default()));
        let scheme = Arc::new(RowLock::new(db, None));
        let endpoints = vec![EndpointUrl::parse(rpc)?];
        let chain = LentChain {
            chain: Arc::new(RpcChain::new(RpcChainConfig::new(chain_id, endpoints))?),
            finality: Finality::Depth(FINAL_DEPTH),
            watch_depth: WATCH_DEPTH,
        };
        let clock = Arc::new(SystemClock::new());
        let component = NonceComponent::start(Settings::default(), scheme, vec![chain], clock)?;
        let sweep = tokio::spawn(component.sweep().run());
        Ok(Self { component, sweep })
    }

    pub(crate) fn component(&self) -> &NonceComponent {
        &self.component
    }

    pub(crate) async fn close(self) -> Result<(), Failure> {
        self.sweep.abort();
        Ok(self.component.close(CLOSE_WITHIN).await?)
    }
}
