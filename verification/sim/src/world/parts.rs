//! What can be left out of a world: each thing that goes wrong in it, and each habit of those who use it.
//! A failing world is made smaller by leaving out one after another, as long as it still fails.

use std::fmt;

/// Something that happens in worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Nodes die at any await.
    Crashes,
    /// Nodes stand still.
    Freezes,
    /// Nodes lose their line to the store.
    Cuts,
    /// Nodes are drained and started again.
    Drains,
    /// Nodes lose their lines to each other.
    Isolation,
    /// The database's clock is set.
    ClockJumps,
    /// The store's standby takes over with everything.
    Failovers,
    /// It takes over and lacks the last commits.
    Loss,
    /// Lines to the store are bad.
    StoreLine,
    /// Lines between nodes are bad.
    PeerLine,
    /// Lines to the chain are bad.
    ChainLine,
    /// Blocks are taken back.
    Forks,
    /// Pools forget.
    Drops,
    /// Blocks become dear.
    Fees,
    /// Accounts run dry.
    Funds,
    /// Nodes of the chain do not answer.
    Endpoints,
    /// Nodes of the chain are behind.
    Lag,
    /// Pools are strict.
    Strict,
    /// Somebody else uses an account.
    Foreign,
    /// Nodes of the chain answer wrongly.
    Stale,
    /// The signer puts envelopes off.
    UnsignedEnvelope,
    /// Requests that revert, or that somebody refuses.
    BadRequests,
    /// Requests that are sent twice, to all nodes, or with another payload.
    Repeats,

    /// Many requests in one call, some of them twice.
    Batches,
    /// Readers of the feed page along.
    Readers,
    /// Others look at txs and lanes, and wait for txs.
    Lookers,
    /// All nodes are drained one after another, as a deploy does.
    Restarts,
    /// Nodes join in the middle.
    Newcomers,
    /// Nodes leave for good.
    Departures,
    /// Somebody accepts what halted lanes have lost.
    Operator,
    /// Clocks of nodes drift, jump and stand still.
    NodeClocks,
    /// One lane that never works is asked again and again.
    Poison,
    /// Others borrow nonces of an account and send by themselves.
    Loans,
}

/// Every part with its word. The order is the one in which a failing world is made smaller: what explains
/// the most when it is gone comes first.
pub const PARTS: [(Part, &str); 33] = [
    (Part::Loss, "loss"),
    (Part::Failovers, "failovers"),
    (Part::ClockJumps, "clock-jumps"),
    (Part::Foreign, "foreign"),
    (Part::Forks, "forks"),
    (Part::Stale, "stale"),
    (Part::Crashes, "crashes"),
    (Part::Freezes, "freezes"),
    (Part::Cuts, "cuts"),
    (Part::Drains, "drains"),
    (Part::Isolation, "isolation"),
    (Part::Drops, "drops"),
    (Part::Fees, "fees"),
    (Part::Funds, "funds"),
    (Part::Endpoints, "endpoints"),
    (Part::Lag, "lag"),
    (Part::Strict, "strict"),
    (Part::UnsignedEnvelope, "unsigned"),
    (Part::BadRequests, "bad-requests"),
    (Part::Repeats, "repeats"),
    (Part::StoreLine, "store-line"),
    (Part::PeerLine, "peer-line"),
    (Part::ChainLine, "chain-line"),
    (Part::Batches, "batches"),
    (Part::Readers, "readers"),
    (Part::Lookers, "lookers"),
    (Part::Restarts, "restarts"),
    (Part::Newcomers, "newcomers"),
    (Part::Departures, "departures"),
    (Part::Operator, "operator"),
    (Part::NodeClocks, "node-clocks"),
    (Part::Poison, "poison"),
    (Part::Loans, "loans"),
];

impl Part {
    /// Its word on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let found = PARTS.iter().find(|(part, _)| *part == self);
        found.map_or("unnamed", |(_, word)| word)
    }

    /// The part of a word.
    ///
    /// # Errors
    /// When no part has it; the text names all that there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = PARTS.iter().find(|(_, word)| *word == text);
        found.map(|(part, _)| *part).ok_or_else(|| {
            let words: Vec<&str> = PARTS.iter().map(|(_, word)| *word).collect();
            format!(
                "{text:?} is no part of a world; these are: {}",
                words.join(", ")
            )
        })
    }
}

/// A set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts(u64);

impl Parts {
    /// Whether it has this one.
    #[must_use]
    pub fn has(self, part: Part) -> bool {
        self.0 & bit(part) != 0
    }

    /// With this one too.
    #[must_use]
    pub fn with(self, part: Part) -> Self {
        Self(self.0 | bit(part))
    }

    /// Without this one.
    #[must_use]
    pub fn minus(self, part: Part) -> Self {
        Self(self.0 & !bit(part))
    }

    /// All that it has.
    pub fn iter(self) -> impl Iterator<Item = Part> {
        let all = PARTS.iter().map(|(part, _)| *part);
        all.filter(move |part| self.has(*part))
    }
}

impl FromIterator<Part> for Parts {
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> Self {
        parts.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.iter().map(Part::as_str).collect();
        f.write_str(&words.join(","))
    }
}

fn bit(part: Part) -> u64 {
    1 << (part as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_word_and_a_place_of_its_own() {
        let all: Parts = PARTS.iter().map(|(part, _)| *part).collect();
        assert_eq!(all.iter().count(), PARTS.len());
        for (part, word) in PARTS {
            assert_eq!((part.as_str(), Part::parse(word)), (word, Ok(part)));
            assert!(!all.minus(part).has(part));
        }
        assert!(Part::parse("weather").is_err_and(|text| text.contains("foreign")));
        let few = Parts::default().with(Part::Foreign).with(Part::Forks);
        assert_eq!(few.to_string(), "foreign,forks");
    }
}
