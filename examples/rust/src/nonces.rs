//! Sets up the nonce component: a ledger in PostgreSQL, a chain to query, and the sweep that frees forgotten nonces. Every
//! process of the application does the same.

use std::sync::Arc;
use std::time::Duration;

use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use domain::ChainId;
use domain::lane::Finality;
use nonce::postgres::{Connector, Pool, PoolConfig, Timeouts, prepare};
use nonce::{NonceComponent, ReservationChain, RowLock, Settings, SystemClock};
use tokio::task::JoinHandle;

use crate::Failure;

/// Blocks on top of a transaction before its nonce counts as used for good.
const FINAL_DEPTH: u64 = 2;
/// For how many blocks reorgs are checked after that.
const WATCH_DEPTH: u64 = 64;
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

pub(crate) struct NonceService {
    component: NonceComponent,
    sweep: JoinHandle<()>,
}

impl NonceService {
    pub(crate) async fn start(
        database: &str,
        rpc: &str,
        chain_id: ChainId,
    ) -> Result<Self, Failure> {
        let connector = Connector::parse(database, &Timeouts::default())?;
        // Creates the tables if they are missing. Where the serving role may not, the owner runs this once instead.
        prepare(connector.connect().await?.client_mut(), None).await?;
        let db = Arc::new(Pool::new(connector, PoolConfig::default()));
        let scheme = Arc::new(RowLock::new(db, None));
        let endpoints = vec![EndpointUrl::parse(rpc)?];
        let chain = ReservationChain {
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
