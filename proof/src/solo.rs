//! One `lanekeeper serve` on the embedded store, in front of any chain: for what depends on the chain and
//! not on the store.

use std::path::PathBuf;
use std::time::Duration;

use alloy_primitives::Address;
use reqwest::StatusCode;
use rig::evm::{CHAIN_ID, account};
use serde_json::Value;

use crate::cluster::Node;
use crate::ledger::{Ledger, Promise};
use crate::network::signer;
use crate::{Outcome, Scratch, binary, demand, eventually, run};

/// How the node is told to work.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The proof, for the folder of its log.
    pub proof: &'static str,
    /// What is shown, for the name of its log.
    pub name: String,
    /// Where the chain takes JSON-RPC.
    pub rpc: String,
    /// Where it announces heads.
    pub ws: Option<String>,
    /// How many accounts it sends from.
    pub lanes: u32,
    /// Confirmations that make a result final.
    pub required: u64,
    /// Further lines of the file, each under its own section.
    pub more: String,
}

/// A running node with a store of its own. Everything of it ends with the value.
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
    /// Starts it and waits until it is ready.
    pub async fn start(terms: &Terms) -> Outcome<Self> {
        let home = Scratch::new()?;
        let store = format!("sqlite:{}", home.folder("store")?.display());
        let mut node = Node::new(terms.name.clone(), store, &home, &logs(terms.proof)?)?;
        std::fs::write(node.config(), file(terms, &node))?;
        let config = node.config().to_string_lossy().into_owned();
        let migrated = run(&["migrate", "--config", &config], &[]).await?;
        let error = String::from_utf8_lossy(&migrated.stderr).into_owned();
        demand(migrated.status.success(), format!("migrate: {error}"))?;
        node.start(&home)?;
        node.ready().await?;
        Ok(Self {
            node,
            lanes: (0..terms.lanes).map(signer).collect(),
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

fn file(terms: &Terms, node: &Node) -> String {
    let ws = terms.ws.as_ref();
    let ws = ws.map_or_else(String::new, |url| format!("ws = \"{url}\"\n"));
    let signers: String = (0..terms.lanes)
        .map(|index| {
            format!(
                "[[signer]]\nkind = \"key\"\nkey = \"{}\"\n",
                account(index).1
            )
        })
        .collect();
    format!(
        "[node]\nname = \"{name}\"\ndrainDelay = \"100ms\"\n\
         [http]\nlisten = \"{listen}\"\n\
         [store]\nurl = \"{store}\"\n\
         [[chain]]\nid = {CHAIN_ID}\nrpc = [\"{rpc}\"]\n{ws}blockTime = \"200ms\"\n\
         confirmations = {required}\n\
         {signers}{more}",
        name = node.name,
        listen = node.listen(),
        store = node.store,
        rpc = terms.rpc,
        required = terms.required,
        more = terms.more,
    )
}

/// Where its log goes: it is to be read after the proof.
fn logs(proof: &str) -> Outcome<PathBuf> {
    let folder = binary().with_file_name("proof-logs").join(proof);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
