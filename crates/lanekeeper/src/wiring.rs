//! The whole program on one screen: what is connected to what, and how it ends.

use std::net::SocketAddr;
use std::sync::Arc;

use api::ApiConfig;
use api::peers::HttpPeers;
use engine::node::{Node, Ports};
use engine::ports::{Chain, Clock, NonceReservations};
use engine::tasks::Tasks;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock::SystemClock;
use crate::config::Config;
use crate::failure::Failure;
use crate::lend::{self, ReservationRules};
use crate::open;
use crate::signals::Signals;
use crate::telemetry;

/// A node that serves.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    node: Node,
    reservations: Option<ReservationRules>,
    tasks: Tasks,
    closing: watch::Sender<bool>,
    server: JoinHandle<std::io::Result<()>>,
    drain_delay: std::time::Duration,
}

impl Running {
    /// store → chains → signer → clock → peers → node → lent nonces → API.
    pub(crate) async fn start(config: &Config) -> Result<Self, Failure> {
        // First: a second node on the same port must not even touch the store.
        let listener = open::bind(config.http.listen, "http.listen or --port").await?;
        let address = listener
            .local_addr()
            .map_err(|e| Failure::refused("the listener", &e))?;
        let metrics = telemetry::start_metrics()?;
        let auth = open::auth(config)?;
        let cluster_secret = open::cluster_secret(config)?;

        let store = open::store(config).await?;
        let chains: Vec<Arc<dyn Chain>> = config
            .chains
            .iter()
            .map(open::chain)
            .collect::<Result<_, _>>()?;
        let signer = open::signer(config).await?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let peers = HttpPeers::new(cluster_secret.clone(), Arc::clone(&clock));

        let node_config = config.node_config(address);
        lend::bind_own_lanes(config, &node_config, &*signer).await?;
        let ports = Ports {
            store,
            chains: chains.clone(),
            signer,
            clock: Arc::clone(&clock),
            peers: Arc::new(peers),
        };
        let tasks = Tasks::new();
        let node = Node::start(ports, node_config, tasks.clone())
            .await
            .map_err(|e| Failure::refused("the node does not start", &e))?;

        let reservations = ReservationRules::start(config, &node.handle(), &chains, &clock).await?;
        let (closing, closed) = watch::channel(false);
        let api_config = ApiConfig {
            lender: reservations.as_ref().map(ReservationRules::lender),
            max_body: usize::try_from(config.http.max_body.0).unwrap_or(ApiConfig::MAX_BODY),
            max_waiters: usize::try_from(config.http.max_waiters).unwrap_or(usize::MAX),
            max_streams: ApiConfig::MAX_STREAMS,
            auth,
            cluster_secret,
            metrics,
            clock,
            closing: closed.clone(),
        };
        let router = api::router(node.handle(), api_config);
        let server = tokio::spawn(api::serve(listener, router, closed));
        tracing::info!(node = config.node.name, %address, "ready");
        let drain_delay = config.node.drain_delay;
        Ok(Self {
            address,
            node,
            reservations,
            tasks,
            closing,
            server,
            drain_delay,
        })
    }

    /// Lends nonces in this process, where an account does.
    pub(crate) fn lender(&self) -> Option<Arc<dyn NonceReservations>> {
        self.reservations.as_ref().map(ReservationRules::lender)
    }

    /// Serves until it is told to stop, then hands everything over in order.
    pub(crate) async fn serve(mut self, signals: &mut Signals) -> Result<(), Failure> {
        tokio::select! {
            biased;
            ended = &mut self.server => {
                return Err(Failure::Refused(format!("the API ended: {ended:?}")));
            }
            () = self.tasks.ended() => {
                let why = self.tasks.panicked().unwrap_or_else(|| {
                    "another process with the same node.name has replaced this one".to_owned()
                });
                return Err(Failure::Refused(format!("the node ended: {why}")));
            }
            () = signals.stop() => {}
        }
        tracing::info!("stopping: finishing what is under way (once more to stop at once)");
        tokio::select! {
            biased;
            () = self.drain_and_stop() => Ok(()),
            () = signals.stop() => Err(Failure::Refused("stopped at once, without a drain".into())),
        }
    }

    /// Hands everything over in order, and ends.
    pub(crate) async fn drain_and_stop(self) {
        // Not ready any more, lanes given back; readers are still answered, so that a load
        // balancer has time to notice.
        // Loans first: their books may be in the node's lanes.
        if let Some(reservations) = self.reservations {
            reservations.close().await;
        }
        self.node.drain().await;
        tokio::time::sleep(self.drain_delay).await;
        self.closing.send_replace(true);
        if let Err(error) = self.server.await {
            tracing::error!(%error, "the API ended badly");
        }
        self.node.stop().await;
        tracing::info!("stopped");
    }
}
