//! The kinds of EVM nodes.

use rig::evm::Kind;

use crate::Outcome;

/// The implementation of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeKind {
    /// A third-party node.
    Independent(Kind),
    /// Lanekeeper's dev chain.
    Devchain,
}

impl NodeKind {
    /// Foundry's, the fastest third-party node.
    pub const ANVIL: Self = Self::Independent(Kind::Anvil);
    pub const HARDHAT: Self = Self::Independent(Kind::Hardhat);
    pub const GANACHE: Self = Self::Independent(Kind::Ganache);

    pub const ALL: [Self; 4] = [Self::ANVIL, Self::HARDHAT, Self::GANACHE, Self::Devchain];

    pub fn name(self) -> &'static str {
        match self {
            Self::Independent(kind) => kind.name(),
            Self::Devchain => "devchain",
        }
    }

    /// Whether the `pending` nonce counts the pool.
    pub fn counts_pending(self) -> bool {
        match self {
            Self::Independent(kind) => kind.counts_pending(),
            Self::Devchain => true,
        }
    }

    /// The first nonce of an account on a new chain.
    pub fn first_nonce(self) -> u64 {
        u64::from(self == Self::GANACHE)
    }
}

/// The kinds in a list such as `anvil,devchain`.
pub fn parse_node_kinds(list: &str) -> Outcome<Vec<NodeKind>> {
    let of = |name: &str| {
        let found = NodeKind::ALL
            .into_iter()
            .find(|node_kind| node_kind.name() == name);
        found.ok_or_else(|| format!("unknown node kind {name:?}").into())
    };
    list.split(',').map(of).collect()
}
