//! One `lanekeeper serve` in front of any chain, for proofs about the chain rather than the cluster.

use std::time::Duration;

use alloy_primitives::Address;
use reqwest::StatusCode;
use rig::evm::{CHAIN_ID, account};
use serde_json::Value;

use crate::audit::Audit;
use crate::cluster::{Node, logs_of, migrate};
use crate::config::Config;
use crate::ledger::{Ledger, Promise};
use crate::network::signer;
use crate::{Chain, Outcome, Scratch, ensure, eventually};

/// The settings of the node.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The proof's name, for the log directory.
    pub proof: &'static str,
    /// The case's name, for the log file.
    pub name: String,
    /// The database; `None`: a private embedded store.
    pub store: Option<String>,
    /// The configuration of chain and node.
    pub config: Config,
}

/// A running node. Everything ends with the value.
pub struct SingleNode {
    pub node: Node,
    /// The sending accounts.
    pub lanes: Vec<String>,
    /// The requests and promises.
    pub ledger: Ledger,
    _home: Scratch,
}

impl SingleNode {
    /// Migrates the store, starts the node and waits until it is ready.
    pub async fn start(terms: &Terms) -> Outcome<Self> {
        let home = Scratch::new()?;
        let store = match &terms.store {
            Some(url) => url.clone(),
            None => format!("sqlite:{}", home.folder("store")?.display()),
        };
        let mut node = Node::new(terms.name.clone(), store, &home, &logs_of(terms.proof)?)?;
        terms.config.write(&node)?;
        migrate(node.config()).await?;
        node.start(&home)?;
        node.ready().await?;
        Ok(Self {
            node,
            lanes: (0..terms.config.lanes).map(signer).collect(),
            ledger: Ledger::default(),
            _home: home,
        })
    }

    /// Requests a payment of 1 wei with gas and further payload fields, and returns the tx id.
    pub async fn pay(&self, lane: usize, id: &str, fields: &[(&str, &str)]) -> Outcome<String> {
        let mut body = self.ledger.transfer_body(&self.lanes[lane], id);
        body["payload"]["gas"] = "21000".into();
        for (name, value) in fields {
            body["payload"][*name] = (*value).into();
        }
        let (status, tx) = self.node.api.create(body, "").await?;
        ensure(
            status == StatusCode::ACCEPTED,
            format!("{id}: {status} {tx}"),
        )?;
        let promise = Promise::read(&tx);
        let tx_id = promise.tx_id.clone();
        self.ledger.record_promise(id, promise)?;
        Ok(tx_id)
    }

    /// The audit of its store and a chain; open work must end within `within`.
    pub fn audit<'a>(&'a self, chain: &'a Chain, within: Duration) -> Audit<'a> {
        Audit {
            api: &self.node.api,
            chain,
            lanes: &self.lanes,
            ledger: &self.ledger,
            within,
        }
    }

    /// The tx as the API shows it.
    pub async fn tx(&self, tx_id: &str) -> Outcome<Value> {
        self.read(&format!("/api/v1/tx/{tx_id}")).await
    }

    /// The lane as the API shows it.
    pub async fn lane(&self, lane: usize) -> Outcome<Value> {
        self.read(&format!("/api/v1/lanes/{CHAIN_ID}/{}", self.lanes[lane]))
            .await
    }

    /// The events of a tx.
    pub async fn tx_events(&self, tx_id: &str) -> Outcome<Vec<Value>> {
        let page = self.read(&format!("/api/v1/tx/{tx_id}/events")).await?;
        Ok(page["events"].as_array().cloned().unwrap_or_default())
    }

    async fn read(&self, path: &str) -> Outcome<Value> {
        let (status, body) = self.node.api.get(path).await?;
        ensure(status.is_success(), format!("{path}: {status} {body}"))?;
        Ok(body)
    }

    /// Waits until the tx matches.
    pub async fn until(
        &self,
        tx_id: &str,
        what: &str,
        within: Duration,
        is_so: impl Fn(&Value) -> bool,
    ) -> Outcome<Value> {
        let reached = eventually(what, within, || async {
            let tx = self.tx(tx_id).await?;
            Ok(is_so(&tx).then_some(tx))
        });
        match reached.await {
            Ok(tx) => Ok(tx),
            Err(error) => Err(format!("{error}; {}", self.describe_tx(tx_id).await?).into()),
        }
    }

    /// The tx and its events, for messages.
    pub async fn describe_tx(&self, tx_id: &str) -> Outcome<String> {
        let tx = self.tx(tx_id).await?;
        let reported = |event: &Value| format!("{} {}", event["type"], event["data"]);
        let history: Vec<String> = self.tx_events(tx_id).await?.iter().map(reported).collect();
        Ok(format!("tx: {tx}, events: {}", history.join("; ")))
    }
}

pub fn address(lane: usize) -> Outcome<Address> {
    Ok(account(u32::try_from(lane)?).0)
}
