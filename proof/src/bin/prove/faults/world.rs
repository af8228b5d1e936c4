//! The world of a scenario: a chain, fault-injecting proxies, and nodes behind them.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use proof::audit::{Audit, AuditCounts, Expected};
use proof::balancer::Balancer;
use proof::cluster::{Node, logs_of, migrate};
use proof::ledger::{Ledger, Promise};
use proof::load::{Load, Plan};
use proof::network::{Network, NodeKind, Terms, signer};
use proof::{Api, Outcome, Scratch, ensure, eventually};
use rig::evm::CHAIN_ID;
use rig::rpc_proxy::RpcProxy;
use serde_json::Value;

use crate::faults::settings::Tuning;

/// A healthy node is done within seconds; longer means that it waits forever.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Open work ends within this time when everything is healthy.
const QUIET_WITHIN: Duration = Duration::from_secs(90);

/// The parts of a scenario. They end with the value.
pub(crate) struct World {
    pub(crate) net: Network,
    pub(crate) nodes: Vec<Node>,
    /// Per node, in the order of its endpoints.
    pub(crate) proxies: Vec<Vec<RpcProxy>>,
    pub(crate) ledger: Arc<Ledger>,
    /// The sending accounts.
    pub(crate) lanes: Vec<String>,
    /// Their first nonces.
    pub(crate) first_nonces: Vec<u64>,
    tuning: Tuning,
    scratch: Scratch,
}

impl World {
    /// One node with a private store.
    pub(crate) async fn single(name: &str, node_kind: NodeKind, tuning: Tuning) -> Outcome<Self> {
        Self::start(name, node_kind, tuning, &[]).await
    }

    /// One node per store, or one with an embedded store.
    pub(crate) async fn start(
        name: &str,
        node_kind: NodeKind,
        tuning: Tuning,
        stores: &[String],
    ) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let net = Network::start(node_kind, Terms::default()).await?;
        let lanes: Vec<String> = (0..tuning.lanes).map(signer).collect();
        let mut first_nonces = Vec::new();
        for lane in &lanes {
            first_nonces.push(net.chain.nonce(lane).await?);
        }
        let logs = logs_of(&format!("04-3-faults/{name}"))?;
        let embedded = [format!("sqlite:{}", scratch.folder("store")?.display())];
        let stores = if stores.is_empty() { &embedded } else { stores };
        let (mut nodes, mut proxies) = (Vec::new(), Vec::new());
        for (number, store) in stores.iter().enumerate() {
            let letter = char::from(b'a' + u8::try_from(number)?).to_string();
            let node = Node::new(letter, store.clone(), &scratch, &logs)?;
            let of_node: Vec<RpcProxy> = (0..tuning.endpoints)
                .map(|seed| RpcProxy::in_front_of(net.url(), seed as u64 + 1))
                .collect();
            nodes.push(node);
            proxies.push(of_node);
        }
        let world = Self {
            net,
            nodes,
            proxies,
            ledger: Arc::default(),
            lanes,
            first_nonces,
            tuning,
            scratch,
        };
        world.configure()?;
        Ok(world)
    }

    /// Migrates the store and starts the nodes; faults that are already active apply at once.
    pub(crate) async fn serve(mut self) -> Outcome<Self> {
        migrate(self.nodes[0].config()).await?;
        for node in &mut self.nodes {
            node.start(&self.scratch)?;
        }
        for node in &self.nodes {
            node.ready().await?;
        }
        Ok(self)
    }

    /// Another chain of the same kind, with the same accounts.
    pub(crate) async fn another_net(&self, node_kind: NodeKind) -> Outcome<Network> {
        Network::start(node_kind, Terms::default()).await
    }

    /// Replaces an endpoint of the first node before it is started.
    pub(crate) fn replace_endpoint(&mut self, number: usize, proxy: RpcProxy) -> Outcome<()> {
        self.proxies[0][number] = proxy;
        self.configure()
    }

    fn configure(&self) -> Outcome<()> {
        for (node, proxies) in self.nodes.iter().zip(&self.proxies) {
            let rpc: Vec<String> = proxies.iter().map(RpcProxy::url).collect();
            self.tuning.config(rpc).write(node)?;
        }
        Ok(())
    }

    /// An endpoint of the first node.
    pub(crate) fn proxy(&self, number: usize) -> &RpcProxy {
        &self.proxies[0][number]
    }

    /// Any node: all show the same.
    pub(crate) fn api(&self) -> &Api {
        &self.nodes[0].api
    }

    /// A load of payments, with a pause after each.
    pub(crate) fn load(&self, name: &str, clients: usize, rest: Duration) -> Load {
        let plan = Plan {
            pause: rest,
            timeout: Duration::from_secs(2),
            ..Plan::new(name, &self.lanes, clients)
        };
        let apis = self.nodes.iter().map(|node| node.api.clone()).collect();
        Load::start(plan, &Balancer::without_checks(apis), &self.ledger)
    }

    /// Waits for this many further promises.
    pub(crate) async fn promised_more(&self, count: usize) -> Outcome<()> {
        let goal = self.ledger.promised_count() + count;
        let what = format!("{goal} payments are accepted");
        eventually(&what, SOON, || async {
            Ok((self.ledger.promised_count() >= goal).then_some(()))
        })
        .await
    }

    /// Pays sequentially from the first lane, and returns the responses.
    pub(crate) async fn pay(&self, name: &str, count: usize) -> Outcome<Vec<Value>> {
        let mut txs = Vec::new();
        for number in 0..count {
            let request_id = format!("{name}-{number}");
            let body = self.ledger.transfer_body(&self.lanes[0], &request_id);
            let (status, tx) = self.api().create(body, "").await?;
            ensure(status.is_success(), format!("{request_id}: {status} {tx}"))?;
            self.ledger
                .record_promise(&request_id, Promise::read(&tx))?;
            txs.push(tx);
        }
        Ok(txs)
    }

    /// The current tx.
    pub(crate) async fn tx(&self, id: &Value) -> Outcome<Value> {
        let id = id.as_str().unwrap_or_default();
        let (status, tx) = self.api().get(&format!("/api/v1/tx/{id}")).await?;
        ensure(status.is_success(), format!("{id}: {status} {tx}"))?;
        Ok(tx)
    }

    /// The current hashes of txs: a tx that is signed later has none in its first response.
    pub(crate) async fn hashes(&self, txs: &[Value]) -> Outcome<Vec<B256>> {
        let mut hashes = Vec::new();
        for tx in txs {
            hashes.push(hash_of(&self.tx(&tx["txId"]).await?)?);
        }
        Ok(hashes)
    }

    pub(crate) async fn quiet(&self) -> Outcome<()> {
        self.auditor(SOON).wait_until_idle().await
    }

    /// Waits until nothing is open, then runs the audit.
    pub(crate) async fn audit(&self, expected: &Expected) -> Outcome<AuditCounts> {
        let audited = self.auditor(QUIET_WITHIN).run_with(expected).await;
        match audited {
            Ok(counted) => Ok(counted),
            Err(error) => Err(format!("{error}; the lane: {}", self.lane(0).await?).into()),
        }
    }

    fn auditor(&self, within: Duration) -> Audit<'_> {
        Audit {
            api: self.api(),
            chain: &self.net.chain,
            lanes: &self.lanes,
            ledger: &self.ledger,
            within,
        }
    }

    /// The first lane as a node shows it.
    pub(crate) async fn lane(&self, node: usize) -> Outcome<Value> {
        let path = format!("/api/v1/lanes/{CHAIN_ID}/{}", self.lanes[0]);
        let (status, lane) = self.nodes[node].api.get(&path).await?;
        ensure(status.is_success(), format!("{path}: {status} {lane}"))?;
        Ok(lane)
    }

    /// All events of a type.
    pub(crate) async fn events(&self, kind: &str) -> Outcome<Vec<Value>> {
        let mut events = Vec::new();
        let mut after = String::new();
        loop {
            let path = format!("/api/v1/events?limit=1000&type={kind}{after}");
            let (status, page) = self.api().get(&path).await?;
            ensure(status.is_success(), format!("{path}: {status} {page}"))?;
            events.extend(page["events"].as_array().cloned().unwrap_or_default());
            let next = page["next"].as_str().unwrap_or_default();
            let then = format!("&after={next}");
            if next.is_empty() || then == after {
                return Ok(events);
            }
            after = then;
        }
    }

    /// Waits for this many events of a type.
    pub(crate) async fn until_events(&self, kind: &str, count: usize) -> Outcome<()> {
        let what = format!("{count} events {kind}");
        eventually(&what, SOON, || async {
            Ok((self.events(kind).await?.len() >= count).then_some(()))
        })
        .await
    }
}

pub(crate) fn hash_of(tx: &Value) -> Outcome<B256> {
    let hash = tx["txHash"].as_str().and_then(|text| text.parse().ok());
    hash.ok_or_else(|| format!("it has no hash yet: {tx}").into())
}

pub(crate) fn nonce_of(tx: &Value) -> Outcome<u64> {
    let nonce = tx["nonce"].as_u64();
    nonce.ok_or_else(|| format!("it has no nonce yet: {tx}").into())
}
