//! Who made a node.

use rig::evm::Kind;

use crate::Outcome;

/// Who made the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Make {
    /// A node that others wrote.
    Independent(Kind),
    /// Our own.
    Devchain,
}

impl Make {
    /// Foundry's, the fastest of the independent ones.
    pub const ANVIL: Self = Self::Independent(Kind::Anvil);
    /// Hardhat's.
    pub const HARDHAT: Self = Self::Independent(Kind::Hardhat);
    /// Truffle's.
    pub const GANACHE: Self = Self::Independent(Kind::Ganache);

    /// All of them.
    pub const ALL: [Self; 4] = [Self::ANVIL, Self::HARDHAT, Self::GANACHE, Self::Devchain];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Independent(kind) => kind.name(),
            Self::Devchain => "devchain",
        }
    }

    /// Whether its `pending` nonce tells what its pool holds.
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

/// The makes of a list such as `anvil,devchain`.
pub fn makes(list: &str) -> Outcome<Vec<Make>> {
    let of = |name: &str| {
        let found = Make::ALL.into_iter().find(|make| make.name() == name);
        found.ok_or_else(|| format!("there is no make {name:?}").into())
    };
    list.split(',').map(of).collect()
}
