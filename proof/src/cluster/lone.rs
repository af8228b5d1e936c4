//! One node on a chain that the proof chose: a cluster of one, for proofs about the chain.

use std::fmt::Write as _;

use rig::evm::account;

use super::{CHAIN_ID, Node, logs_of, migrate};
use crate::network::signer;
use crate::{Outcome, Scratch};

/// How the node is set up.
#[derive(Clone, Debug)]
pub struct LonePlan {
    /// The proof, for the folder of its logs.
    pub proof: &'static str,
    /// What the node and its log are called.
    pub name: String,
    /// The database.
    pub store: String,
    /// The endpoints of the chain.
    pub rpc: Vec<String>,
    /// How many accounts of the test mnemonic it sends from.
    pub lanes: u32,
    /// How many blocks must stand on a result.
    pub confirmations: u64,
    /// Further lines of the file, each under its own section.
    pub more: String,
}

/// A running node. Ends with the value.
pub struct Lone {
    /// The node.
    pub node: Node,
    /// The accounts that it sends from.
    pub lanes: Vec<String>,
    _home: Scratch,
}

impl Lone {
    /// Makes the tables, starts the node and waits until it is ready.
    pub async fn start(plan: &LonePlan) -> Outcome<Self> {
        let home = Scratch::new()?;
        let logs = logs_of(plan.proof)?;
        let mut node = Node::new(plan.name.clone(), plan.store.clone(), &home, &logs)?;
        std::fs::write(node.config(), file(plan, &node)?)?;
        migrate(node.config()).await?;
        node.start(&home)?;
        node.ready().await?;
        Ok(Self {
            node,
            lanes: (0..plan.lanes).map(signer).collect(),
            _home: home,
        })
    }

    /// Whether no lane has open work.
    pub async fn is_quiet(&self) -> Outcome<bool> {
        let (status, page) = self.node.api.get("/api/v1/lanes?limit=1000").await?;
        let lanes = page["lanes"].as_array();
        let is_quiet = lanes.is_some_and(|lanes| {
            let mut lanes = lanes.iter();
            lanes.all(|lane| lane["inFlight"] == 0 && lane["queued"] == 0)
        });
        Ok(status.is_success() && is_quiet)
    }
}

fn file(plan: &LonePlan, node: &Node) -> Outcome<String> {
    let rpc: Vec<String> = plan.rpc.iter().map(|url| format!("{url:?}")).collect();
    let mut file = format!(
        "[node]\nname = \"{name}\"\ndrainDelay = \"200ms\"\n\
         [http]\nlisten = \"{listen}\"\n\
         [store]\nurl = \"{store}\"\n\
         [[chain]]\nid = {CHAIN_ID}\nrpc = [{rpc}]\nconfirmations = {confirmations}\n",
        name = plan.name,
        listen = node.listen(),
        store = plan.store,
        rpc = rpc.join(", "),
        confirmations = plan.confirmations,
    );
    for index in 0..plan.lanes {
        let key = account(index).1;
        writeln!(file, "[[signer]]\nkind = \"key\"\nkey = \"{key}\"")?;
    }
    file.push_str(&plan.more);
    Ok(file)
}
