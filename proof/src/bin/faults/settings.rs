//! The configuration of a scenario's nodes: short times, so that what takes minutes in production takes
//! seconds here.

use proof::cluster::Node;
use rig::evm::{CHAIN_ID, account};

/// What scenarios set differently.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// How many accounts are sent from.
    pub(crate) lanes: u32,
    /// How many endpoints each node has.
    pub(crate) endpoints: usize,
    /// How many of them get a transaction at once.
    pub(crate) send_to: u64,
    pub(crate) confirmations: u64,
    pub(crate) state_timeout: &'static str,
    pub(crate) mempool_depth: &'static str,
    pub(crate) resubmit: &'static str,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            lanes: 1,
            endpoints: 1,
            send_to: 1,
            confirmations: 2,
            state_timeout: "2s",
            mempool_depth: "\"auto\"",
            resubmit: "interval = \"5s\"",
        }
    }
}

/// Everything that waits for the end of a lease waits for the shortest that is allowed.
const LEASE: &str = "[lease]\nduration = \"2s\"\nrenewInterval = \"600ms\"\n\
                     clockSkewAllowance = \"300ms\"\n";

impl Tuning {
    /// The file of a node with these endpoints.
    pub(crate) fn file(&self, node: &Node, rpc: &[String]) -> String {
        let Self {
            send_to,
            confirmations,
            state_timeout,
            mempool_depth,
            resubmit,
            ..
        } = self;
        let signers: String = (0..self.lanes)
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
             [[chain]]\nid = {CHAIN_ID}\nrpc = {rpc:?}\nsendTo = {send_to}\n\
             blockTime = \"1s\"\nconfirmations = {confirmations}\n\
             [nonce]\nstateTimeout = \"{state_timeout}\"\n\
             [lane]\nmempoolDepth = {mempool_depth}\ngapFillAfter = \"4s\"\n\
             [resubmit]\n{resubmit}\n\
             [confirmations]\nstaleReceiptTimeout = \"4s\"\n\
             {LEASE}{signers}",
            name = node.name,
            listen = node.listen(),
            store = node.store,
        )
    }
}
