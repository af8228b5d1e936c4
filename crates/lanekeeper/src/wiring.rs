//! How the parts of a node are connected, and how it stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::peers::HttpPeers;
use api::{ApiConfig, Auth};
use cli::{Failure, Signals, listener};
use engine::node::{Node, Ports};
use engine::ports::{Chain, Clock, NonceReservations};
use engine::tasks::Tasks;
use nonce::SystemClock;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::reservations::{self, ReservationService};
use crate::{adapters, telemetry};

/// A node that serves requests.
pub(crate) struct RunningNode {
    pub(crate) address: SocketAddr,
    node: Node,
    reservations: Option<ReservationService>,
    tasks: Tasks,
    closing: watch::Sender<bool>,
    server: JoinHandle<std::io::Result<()>>,
    drain_delay: Duration,
}

impl RunningNode {
    /// store → chains → signers → clock → peers → witness → node → reservations → API.
    pub(crate) async fn start(config: &Config) -> Result<Self, Failure> {
        // The port comes first: a second process on the same port must not touch the store.
        let listener = listener::bind(config.http.listen, "http.listen or --port").await?;
        let address = listener
            .local_addr()
            .map_err(|e| Failure::refused("cannot read the address of the listener", &e))?;
        let metrics = telemetry::start_metrics()?;
        let auth = adapters::load_auth(config)?;
        let cluster_secret = adapters::load_cluster_secret(config)?;

        let store = adapters::open_store(config).await?;
        let chains: Vec<Arc<dyn Chain>> = config
            .chains
            .iter()
            .map(adapters::open_chain)
            .collect::<Result<_, _>>()?;
        let signer = adapters::load_signers(config).await?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let peers = HttpPeers::new(cluster_secret.clone(), Arc::clone(&clock));

        let node_config = config.node_config(address);
        reservations::bind_own_lanes(config, &node_config, &*signer).await?;
        let witness = adapters::open_witness(config, &node_config.name).await?;
        let ports = Ports {
            store,
            chains: chains.clone(),
            signer,
            clock: Arc::clone(&clock),
            peers: Arc::new(peers),
            witness,
        };
        let tasks = Tasks::new();
        let node = Node::start(ports, node_config, tasks.clone())
            .await
            .map_err(|e| Failure::refused("cannot start the node", &e))?;

        let reservations =
            ReservationService::start(config, &node.handle(), &chains, &clock).await?;
        let (closing, closed) = watch::channel(false);
        let api_config = ApiConfig {
            reservations: reservations.as_ref().map(ReservationService::port),
            max_body: usize::try_from(config.http.max_body.0).unwrap_or(ApiConfig::MAX_BODY),
            max_waiters: usize::try_from(config.http.max_waiters).unwrap_or(usize::MAX),
            browser_guard: config.browser_guard(matches!(auth, Auth::Keys(_))),
            auth,
            cluster_secret,
            metrics,
            ..ApiConfig::new(clock, closed.clone())
        };
        let router = api::router(node.handle(), api_config);
        let per_address = usize::try_from(config.http.max_connections_per_address)
            .unwrap_or(api::CONNECTIONS_PER_ADDRESS);
        let server = tokio::spawn(api::serve(listener, router, per_address, closed));
        tracing::info!(node = config.node.name, %address, "ready");
        Ok(Self {
            address,
            node,
            reservations,
            tasks,
            closing,
            server,
            drain_delay: config.node.drain_delay,
        })
    }

    /// The nonce reservations of this process, if the configuration has an external account.
    pub(crate) fn reservations(&self) -> Option<Arc<dyn NonceReservations>> {
        self.reservations.as_ref().map(ReservationService::port)
    }

    /// Serves until a signal arrives, then stops gracefully.
    pub(crate) async fn serve(mut self, signals: &mut Signals) -> Result<(), Failure> {
        tokio::select! {
            biased;
            ended = &mut self.server => {
                return Err(Failure::Refused(format!("the API server ended: {ended:?}")));
            }
            () = self.tasks.ended() => {
                let why = self.tasks.panicked().unwrap_or_else(|| {
                    "another process with the same node.name has replaced this one".to_owned()
                });
                return Err(Failure::Refused(format!("the node ended: {why}")));
            }
            () = signals.wait_for_stop() => {}
        }
        tracing::info!("stopping gracefully (a second signal stops immediately)");
        tokio::select! {
            biased;
            () = self.drain_and_stop() => Ok(()),
            () = signals.wait_for_stop() => {
                Err(Failure::Refused("stopped immediately, without releasing the lanes".into()))
            }
        }
    }

    /// Releases reservations and lanes, and stops.
    pub(crate) async fn drain_and_stop(self) {
        // Reservations first: with scheme "lane" they are written by the node's lanes.
        if let Some(reservations) = self.reservations {
            reservations.close().await;
        }
        // The node is no longer ready and has released its lanes. It answers reads until the load
        // balancer has noticed.
        self.node.drain().await;
        tokio::time::sleep(self.drain_delay).await;
        self.closing.send_replace(true);
        if let Err(error) = self.server.await {
            tracing::error!(%error, "the API server failed while it stopped");
        }
        self.node.stop().await;
        tracing::info!("stopped");
    }
}
