//! One `lanekeeper serve` in front of any chain: for what depends on the chain and not on the cluster.

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
use crate::{Chain, Outcome, Scratch, demand, eventually};

/// How the node is told to work.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The proof, for the folder of its log.
    pub proof: &'static str,
    /// What is shown, for the name of its log.
    pub name: String,
    /// Its database; an embedded store of its own when this is `None`.
    pub store: Option<String>,
    /// What it is told of the chain, and the rest of its file.
    pub config: Config,
}

/// A running node. Everything of it ends with the value.
pub struct Solo {
    /// The node.
    pub node: Node,
    /// The accounts it sends from.
    pub lanes: Vec<String>,
    /// What was asked of it and promised.
    pub ledger: Ledger,
    _home: Scratch,
}

impl Solo {
    /// Makes the tables, starts it and waits until it is ready.
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

    /// Asks for a payment of 1 wei with gas given, and gives the id of its tx. Fields of the payload are
    /// added.
    pub async fn pay(&self, lane: usize, id: &str, fields: &[(&str, &str)]) -> Outcome<String> {
        let mut body = self.ledger.ask(&self.lanes[lane], id);
        body["payload"]["gas"] = "21000".into();
        for (name, value) in fields {
            body["payload"][*name] = (*value).into();
        }
        let (status, tx) = self.node.api.create(body, "").await?;
        demand(
            status == StatusCode::ACCEPTED,
            format!("{id}: {status} {tx}"),
        )?;
        let promise = Promise::read(&tx);
        let tx_id = promise.tx_id.clone();
        self.ledger.promised(id, promise)?;
        Ok(tx_id)
    }

    /// What compares its store with a chain, once nothing is open within this time.
    pub fn audit<'a>(&'a self, chain: &'a Chain, within: Duration) -> Audit<'a> {
        Audit {
            api: &self.node.api,
            chain,
            lanes: &self.lanes,
            ledger: &self.ledger,
            within,
        }
    }

    /// A tx as it is told.
    pub async fn tx(&self, tx_id: &str) -> Outcome<Value> {
        self.read(&format!("/api/v1/tx/{tx_id}")).await
    }

    /// A lane as it is told.
    pub async fn lane(&self, lane: usize) -> Outcome<Value> {
        self.read(&format!("/api/v1/lanes/{CHAIN_ID}/{}", self.lanes[lane]))
            .await
    }

    /// The history of a tx.
    pub async fn history(&self, tx_id: &str) -> Outcome<Vec<Value>> {
        let page = self.read(&format!("/api/v1/tx/{tx_id}/events")).await?;
        Ok(page["events"].as_array().cloned().unwrap_or_default())
    }

    async fn read(&self, path: &str) -> Outcome<Value> {
        let (status, body) = self.node.api.get(path).await?;
        demand(status.is_success(), format!("{path}: {status} {body}"))?;
        Ok(body)
    }

    /// The tx, once it is as wanted.
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
            Err(error) => Err(format!("{error}; {}", self.story(tx_id).await?).into()),
        }
    }

    /// What a tx is and how it came to that, for a message.
    pub async fn story(&self, tx_id: &str) -> Outcome<String> {
        let tx = self.tx(tx_id).await?;
        let told = |event: &Value| format!("{} {}", event["type"], event["data"]);
        let history: Vec<String> = self.history(tx_id).await?.iter().map(told).collect();
        Ok(format!("it is {tx}, its story: {}", history.join("; ")))
    }
}

/// The address of an account.
pub fn address(lane: usize) -> Outcome<Address> {
    Ok(account(u32::try_from(lane)?).0)
}
