//! The part of the chain that we follow: headers linked by their parents, and what a fork does.
//!
//! Confirmations are read off this chain, never off a subtraction of heights: a height does not show
//! which block stands there. Absence is never evidence: only another header at a height that
//! we hold, reached by parent links, reorgs a block out.

use std::collections::VecDeque;

use alloy_primitives::B256;

use crate::FeeQuote;

/// A block header, as far as we need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Height.
    pub number: u64,
    /// Hash.
    pub hash: B256,
    /// Hash of the block it stands on.
    pub parent_hash: B256,
    /// Seconds since the Unix epoch.
    pub timestamp: u64,
}

impl Header {
    /// Whether this block stands directly on `parent`: by hash, and one height above it.
    #[must_use]
    pub fn is_child_of(&self, parent: &Self) -> bool {
        self.parent_hash == parent.hash && parent.number.checked_add(1) == Some(self.number)
    }
}

/// Whether each header (oldest first) stands on the one before. Every proof by parent links goes through this check.
#[must_use]
pub fn is_linked(branch: &[Header]) -> bool {
    branch.windows(2).all(|pair| pair[1].is_child_of(&pair[0]))
}

/// Where a block stands in our view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPosition {
    /// On the chain.
    On {
        /// How many headers stand on it.
        above: u64,
    },
    /// Another block stands at its height.
    Replaced,
    /// Its height is outside of the view: nothing is known.
    Outside,
}

/// The newest headers of the chain, parent-linked without a hole, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChain {
    headers: VecDeque<Header>,
    keep: usize,
}

/// What a branch did to the view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewChange {
    /// Headers that fell out, oldest first.
    pub dropped: Vec<Header>,
    /// Headers that came in, oldest first.
    pub added: Vec<Header>,
}

/// Why a branch was not adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The branch is empty or its headers do not link to each other.
    Broken,
    /// Its first header does not stand on any header of the view: older headers are needed.
    MissingParent(B256),
}

impl HeaderChain {
    /// An empty view that keeps the newest `keep` headers.
    #[must_use]
    pub fn new(keep: usize) -> Self {
        Self {
            headers: VecDeque::new(),
            keep: keep.max(1),
        }
    }

    /// The newest header.
    #[must_use]
    pub fn tip(&self) -> Option<&Header> {
        self.headers.back()
    }

    /// The oldest header.
    #[must_use]
    pub fn base(&self) -> Option<&Header> {
        self.headers.front()
    }

    /// Whether this very block is on the chain.
    #[must_use]
    pub fn contains(&self, hash: B256) -> bool {
        self.find(hash).is_some()
    }

    /// The header of this block, if it is on the chain.
    #[must_use]
    pub fn find(&self, hash: B256) -> Option<&Header> {
        self.headers.iter().rev().find(|header| header.hash == hash)
    }

    /// The header at a height.
    #[must_use]
    pub fn at(&self, number: u64) -> Option<&Header> {
        let base = self.base()?.number;
        let index = usize::try_from(number.checked_sub(base)?).ok()?;
        self.headers.get(index)
    }

    /// The headers, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Header> {
        self.headers.iter()
    }

    /// Adopts a branch (oldest first, each standing on the one before) that stands on a header of
    /// the view, or starts an empty view. What stood above that header falls out.
    pub fn adopt(&mut self, branch: &[Header]) -> Result<ViewChange, LinkError> {
        let first = branch.first().ok_or(LinkError::Broken)?;
        if !is_linked(branch) {
            return Err(LinkError::Broken);
        }
        let stands_on = (self.headers.iter()).rposition(|held| first.is_child_of(held));
        let kept = match stands_on {
            Some(ancestor) => ancestor.saturating_add(1),
            None if self.headers.is_empty() => 0,
            None => return Err(LinkError::MissingParent(first.parent_hash)),
        };
        // A branch that starts with what we hold already is not a fork: skip the common part.
        let pairs = self.headers.range(kept..).zip(branch);
        let common = pairs
            .take_while(|(held, new)| held.hash == new.hash)
            .count();
        if common == branch.len() {
            return Ok(ViewChange::default());
        }
        let adopted = ViewChange {
            dropped: self.headers.split_off(kept.saturating_add(common)).into(),
            added: branch[common..].to_vec(),
        };
        self.headers.extend(&adopted.added);
        let excess = self.headers.len().saturating_sub(self.keep);
        self.headers.drain(..excess);
        Ok(adopted)
    }

    /// Where a block stands.
    #[must_use]
    pub fn position_of(&self, number: u64, hash: B256) -> BlockPosition {
        match (self.at(number), self.tip()) {
            (Some(held), Some(tip)) if held.hash == hash => BlockPosition::On {
                above: tip.number.saturating_sub(number),
            },
            (Some(_), _) => BlockPosition::Replaced,
            (None, _) => BlockPosition::Outside,
        }
    }
}

/// What a lane sees of its chain: a frozen view, the same for everything in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainView {
    /// The followed headers.
    pub headers: HeaderChain,
    /// The price of gas at this head.
    pub fee: FeeQuote,
    /// The height up to which the chain itself calls its blocks safe or final, where that is followed.
    pub final_up_to: Option<u64>,
    /// How often a fork went deeper than the view, so that it was built anew.
    pub deep_forks: u64,
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "an overflow fails the test")]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A block tree, and the naive model: walk from the head to the root and note every block.
    #[derive(Clone, Debug)]
    struct Tree {
        blocks: Vec<Header>,
    }

    impl Tree {
        fn new() -> Self {
            let root = Header {
                number: 0,
                hash: B256::with_last_byte(1),
                parent_hash: B256::ZERO,
                timestamp: 0,
            };
            Self { blocks: vec![root] }
        }

        fn grow(&mut self, parent: usize) -> Header {
            let on = self.blocks[parent % self.blocks.len()];
            let hash = B256::left_padding_from(&(self.blocks.len() as u64 + 1).to_be_bytes());
            let header = Header {
                number: on.number + 1,
                hash,
                parent_hash: on.hash,
                timestamp: 0,
            };
            self.blocks.push(header);
            header
        }

        fn find(&self, hash: B256) -> Option<Header> {
            self.blocks.iter().copied().find(|block| block.hash == hash)
        }

        fn canonical(&self, head: Header) -> BTreeMap<u64, B256> {
            let mut chain = BTreeMap::new();
            let mut at = Some(head);
            while let Some(block) = at {
                chain.insert(block.number, block.hash);
                at = self.find(block.parent_hash);
            }
            chain
        }
    }

    /// Follows a head the way the follower does: fetch parents until the branch links.
    fn follow(chain: &mut HeaderChain, tree: &Tree, head: Header) -> ViewChange {
        let mut branch = vec![head];
        loop {
            match chain.adopt(&branch) {
                Ok(adopted) => return adopted,
                Err(LinkError::MissingParent(parent)) => match tree.find(parent) {
                    Some(block) => branch.insert(0, block),
                    None => *chain = HeaderChain::new(chain.keep),
                },
                Err(LinkError::Broken) => panic!("the tree gives linked branches"),
            }
        }
    }

    proptest! {
        #[test]
        fn equals_the_naive_model_under_random_forks(
            moves in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..80),
            keep in 3..40_usize,
        ) {
            let mut tree = Tree::new();
            let mut chain = HeaderChain::new(keep);
            follow(&mut chain, &tree, tree.blocks[0]);
            let mut reported: BTreeMap<u64, B256> = tree.canonical(tree.blocks[0]);
            for (pick, extend_tip) in moves {
                let tip = chain.tip().copied().expect("never empty");
                let parent = if extend_tip {
                    tree.blocks.iter().position(|block| block.hash == tip.hash).expect("in tree")
                } else {
                    // A fork that reaches below what we keep is another case: the view is rebuilt.
                    let base = chain.base().expect("never empty").number;
                    let near: Vec<usize> = (0..tree.blocks.len())
                        .filter(|i| chain.contains(tree.blocks[*i].hash) && tree.blocks[*i].number >= base)
                        .collect();
                    near[pick.index(near.len())]
                };
                let head = tree.grow(parent);
                let adopted = follow(&mut chain, &tree, head);
                for header in &adopted.dropped {
                    prop_assert_eq!(reported.remove(&header.number), Some(header.hash));
                }
                for header in &adopted.added {
                    prop_assert_eq!(reported.insert(header.number, header.hash), None);
                }
                let naive = tree.canonical(head);
                prop_assert_eq!(&reported, &naive, "increments fold to the naive chain");
                for block in &tree.blocks {
                    let expected = match naive.get(&block.number) {
                        _ if chain.at(block.number).is_none() => BlockPosition::Outside,
                        Some(hash) if *hash == block.hash =>
                            BlockPosition::On { above: head.number - block.number },
                        _ => BlockPosition::Replaced,
                    };
                    prop_assert_eq!(chain.position_of(block.number, block.hash), expected);
                }
            }
        }
    }

    #[test]
    fn head_of_a_lagging_node_changes_nothing() {
        let mut tree = Tree::new();
        let mut chain = HeaderChain::new(10);
        follow(&mut chain, &tree, tree.blocks[0]);
        for parent in 0..5 {
            let head = tree.grow(parent);
            follow(&mut chain, &tree, head);
        }
        let before = chain.clone();
        let adopted = follow(&mut chain, &tree, tree.blocks[2]);
        assert_eq!(adopted, ViewChange::default());
        assert_eq!(chain, before);
    }

    #[test]
    fn linked_headers_need_parent_hashes_and_consecutive_heights() {
        let mut tree = Tree::new();
        let branch = [tree.grow(0), tree.grow(1), tree.grow(2)];
        assert!(is_linked(&branch));
        assert!(is_linked(&branch[..1]) && is_linked(&[]));
        let skipped = [branch[0], branch[2]];
        assert!(!is_linked(&skipped), "a header is missing");
        let mut wrong_height = branch;
        wrong_height[2].number += 1;
        assert!(
            !is_linked(&wrong_height),
            "the hash links, the height does not"
        );
        let mut wrong_parent = branch;
        wrong_parent[1].parent_hash = B256::ZERO;
        assert!(!is_linked(&wrong_parent));
    }

    #[test]
    fn broken_branch_is_refused() {
        let mut tree = Tree::new();
        let mut chain = HeaderChain::new(10);
        let (a, _b) = (tree.grow(0), tree.grow(1));
        let c = tree.grow(2);
        assert_eq!(chain.adopt(&[a, c]), Err(LinkError::Broken));
        assert_eq!(chain.adopt(&[]), Err(LinkError::Broken));
    }
}
