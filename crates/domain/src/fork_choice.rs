//! Fork choice: which head the follower moves its view to, and how far a branch is walked back. Pure rules.

use alloy_primitives::B256;

use crate::Header;
use crate::headers::HeaderChain;
use crate::lane::Finality;

/// How many polls in a row must show a branch that is shorter than the view before it is followed.
pub const SHORTER_POLLS: u32 = 3;
/// How far the chain's own final block may be behind its head; Ethereum's is 64 to 96 blocks.
const TAGGED_MAX: u64 = 192;
/// Headers that are kept beyond what finality and watching need.
const SPARE_HEADERS: u64 = 16;

/// What to do with the head that an endpoint shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadChoice {
    /// It is on the view already.
    InView,
    /// The view moves to it.
    Follow,
    /// Its branch is shorter than the view: what an endpoint shows that is behind on a branch of its own.
    Wait,
}

/// Decides between the heads of successive polls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForkChoice {
    /// How many polls in a row showed a branch that is shorter than the view.
    shorter_polls: u32,
}

impl ForkChoice {
    /// Decides on the head of one poll.
    pub fn choose(&mut self, view: &HeaderChain, head: &Header) -> HeadChoice {
        if view.contains(head.hash) {
            self.shorter_polls = 0;
            return HeadChoice::InView;
        }
        let is_shorter = view.tip().is_some_and(|tip| head.number < tip.number);
        if !is_shorter {
            self.shorter_polls = 0;
            return HeadChoice::Follow;
        }
        self.shorter_polls = self.shorter_polls.saturating_add(1);
        if self.shorter_polls >= SHORTER_POLLS {
            HeadChoice::Follow
        } else {
            HeadChoice::Wait
        }
    }
}

/// What to do with a branch that does not link to the view yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchStep {
    /// Put this header in front of it.
    FetchParent(B256),
    /// The fork is deeper than the view: the view is built anew.
    DeepFork,
}

/// Decides on a branch whose oldest header stands on `parent`, which the view does not have.
#[must_use]
pub fn extend_branch(branch: &[Header], parent: B256, keep: u64) -> BranchStep {
    // A chain that began anew has no parent below its first block.
    let is_genesis = branch.first().is_some_and(|oldest| oldest.number == 0);
    let length = u64::try_from(branch.len()).unwrap_or(u64::MAX);
    if is_genesis || length > keep {
        BranchStep::DeepFork
    } else {
        BranchStep::FetchParent(parent)
    }
}

/// Whether a head is so far above the view that the view is built anew instead of extended.
#[must_use]
pub fn is_out_of_reach(view: &HeaderChain, head: &Header, keep: u64) -> bool {
    view.tip()
        .is_none_or(|tip| head.number > tip.number.saturating_add(keep))
}

/// How many headers a view keeps: those that are not final, and those below that are watched for forks.
#[must_use]
pub fn kept_headers(finality: Finality, watch_depth: u64) -> u64 {
    let unfinal = match finality {
        Finality::Depth(depth) => depth,
        Finality::Tag(_) => TAGGED_MAX,
    };
    unfinal
        .saturating_add(watch_depth)
        .saturating_add(SPARE_HEADERS)
}

/// The height up to which the chain calls its blocks final, after it has named this block. A block on another branch
/// than the view's counts for nothing.
#[must_use]
pub fn raise_final_height(
    final_up_to: Option<u64>,
    view: &HeaderChain,
    named: &Header,
) -> Option<u64> {
    let base = view.base().map_or(0, |base| base.number);
    if named.number < base || view.contains(named.hash) {
        final_up_to.max(Some(named.number))
    } else {
        final_up_to
    }
}

/// The same height after headers were dropped from the view: the chain had named blocks that are not followed now.
#[must_use]
pub fn lower_final_height(final_up_to: Option<u64>, dropped: &[Header]) -> Option<u64> {
    match dropped.first() {
        Some(lowest) => final_up_to.map(|up_to| up_to.min(lowest.number.saturating_sub(1))),
        None => final_up_to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::FinalityTag;

    fn header(number: u64, branch: u8) -> Header {
        let hash = |number: u64, branch: u8| {
            let mut hash = B256::left_padding_from(&number.to_be_bytes());
            hash[0] = branch;
            hash
        };
        Header {
            number,
            hash: hash(number, branch),
            parent_hash: hash(number.saturating_sub(1), branch),
            timestamp: number,
        }
    }

    fn view(numbers: std::ops::RangeInclusive<u64>) -> HeaderChain {
        let branch: Vec<Header> = numbers.map(|number| header(number, 0)).collect();
        let mut view = HeaderChain::new(100);
        view.adopt(&branch).expect("linked");
        view
    }

    #[test]
    fn head_at_or_above_the_tip_is_followed_at_once() {
        let mut choice = ForkChoice::default();
        let view = view(1..=10);
        assert_eq!(choice.choose(&view, &header(11, 0)), HeadChoice::Follow);
        assert_eq!(choice.choose(&view, &header(10, 1)), HeadChoice::Follow);
        let empty = HeaderChain::new(10);
        assert_eq!(choice.choose(&empty, &header(5, 0)), HeadChoice::Follow);
    }

    #[test]
    fn endpoint_that_is_behind_on_the_view_changes_nothing() {
        let mut choice = ForkChoice::default();
        for _ in 0..10 {
            assert_eq!(
                choice.choose(&view(1..=10), &header(7, 0)),
                HeadChoice::InView
            );
        }
    }

    #[test]
    fn shorter_branch_is_followed_after_three_polls_in_a_row() {
        let mut choice = ForkChoice::default();
        let view = view(1..=10);
        let shorter = header(9, 1);
        assert_eq!(choice.choose(&view, &shorter), HeadChoice::Wait);
        assert_eq!(choice.choose(&view, &shorter), HeadChoice::Wait);
        assert_eq!(
            choice.choose(&view, &header(10, 0)),
            HeadChoice::InView,
            "the view's own tip starts the count again"
        );
        assert_eq!(choice.choose(&view, &shorter), HeadChoice::Wait);
        assert_eq!(choice.choose(&view, &shorter), HeadChoice::Wait);
        assert_eq!(choice.choose(&view, &shorter), HeadChoice::Follow);
    }

    #[test]
    fn branch_is_walked_back_until_it_is_longer_than_the_view() {
        let branch: Vec<Header> = (8..=10).map(|number| header(number, 1)).collect();
        let parent = branch[0].parent_hash;
        assert_eq!(
            extend_branch(&branch, parent, 3),
            BranchStep::FetchParent(parent)
        );
        assert_eq!(extend_branch(&branch, parent, 2), BranchStep::DeepFork);
        let genesis = [header(0, 1)];
        assert_eq!(
            extend_branch(&genesis, B256::ZERO, 100),
            BranchStep::DeepFork,
            "there is nothing below the first block"
        );
    }

    #[test]
    fn far_head_rebuilds_the_view() {
        assert!(is_out_of_reach(&HeaderChain::new(5), &header(1, 0), 5));
        assert!(!is_out_of_reach(&view(1..=10), &header(15, 0), 5));
        assert!(is_out_of_reach(&view(1..=10), &header(16, 0), 5));
    }

    #[test]
    fn view_covers_finality_and_watched_depth() {
        assert_eq!(kept_headers(Finality::Depth(12), 30), 58);
        assert_eq!(kept_headers(Finality::Tag(FinalityTag::Safe), 30), 238);
    }

    #[test]
    fn final_height_rises_only_by_blocks_of_the_view_and_falls_with_forks() {
        let view = view(5..=10);
        let raise = |before, named: Header| raise_final_height(before, &view, &named);
        assert_eq!(raise(None, header(7, 0)), Some(7));
        assert_eq!(raise(Some(8), header(7, 0)), Some(8), "never down");
        assert_eq!(raise(Some(6), header(9, 1)), Some(6), "another branch");
        assert_eq!(raise(None, header(3, 1)), Some(3), "below the view");
        let dropped = [header(8, 0), header(9, 0)];
        assert_eq!(lower_final_height(Some(9), &dropped), Some(7));
        assert_eq!(lower_final_height(Some(5), &dropped), Some(5));
        assert_eq!(lower_final_height(Some(9), &[]), Some(9));
    }
}
