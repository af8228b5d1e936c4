//! The faults and workloads of a world, each of which can be disabled. A failing world is shrunk by
//! disabling one after another, as long as it still fails.

use std::fmt;

/// A fault or a workload of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// Nodes crash at any await.
    Crashes,
    /// Nodes are frozen.
    Freezes,
    /// Nodes lose their link to the store.
    Cuts,
    /// Nodes are drained and started again.
    Drains,
    /// Nodes lose their links to each other.
    Isolation,
    /// The database's clock is set.
    ClockJumps,
    /// The store's standby is promoted without data loss.
    Failovers,
    /// The store's standby is promoted and lacks the last commits.
    Loss,
    /// A backup is restored instead, and the restore declared.
    Restores,
    /// Links to the store are faulty.
    StoreLink,
    /// Links between nodes are faulty.
    PeerLink,
    /// Links to the chain are faulty.
    ChainLink,
    /// Blocks are reorged out.
    Forks,
    /// Mempools drop transactions.
    Drops,
    /// Block space becomes expensive.
    Fees,
    /// Accounts run out of funds.
    Funds,
    /// Endpoints do not answer.
    Endpoints,
    /// Endpoints lag behind.
    Lag,
    /// Endpoints reject call data that they accept at other times.
    Strict,
    /// Another owner of the key uses an account.
    Foreign,
    /// Endpoints give stale answers.
    Stale,
    /// The signer is unavailable for some envelopes.
    SignerUnavailable,
    /// Requests that revert, or that a signer or an endpoint refuses.
    BadRequests,
    /// Requests that are sent twice, to all nodes, or with another payload.
    Repeats,

    /// Many requests in one call, with duplicates.
    Batches,
    /// Consumers read the feed.
    Readers,
    /// Readers query txs and lanes, and wait for txs.
    Queries,
    /// All nodes are restarted one after another, as a rolling deployment does.
    Restarts,
    /// Nodes join during the run.
    Newcomers,
    /// Nodes leave permanently.
    Departures,
    /// An operator accepts the losses of halted lanes.
    Operator,
    /// Clocks of nodes drift, jump and freeze.
    NodeClocks,
    /// Requests for a lane that never works.
    Poison,
    /// Clients reserve nonces of an account and send their own transactions.
    Reservations,
    /// Endpoints answer queries and hang on sends.
    HungSends,
    /// Accounts have money for a few requests only.
    ScarceFunds,

    /// Requests that no chain executes: with too much or too little gas, a fee that is too low, too much data, and so on.
    PoisonedRequests,
    /// An endpoint never answers calls of one method, and answers all others.
    HungMethods,
    /// An endpoint reports wrong fees.
    FalseFees,
    /// Requests limit what they pay.
    FeeLimits,
    /// Known requests are sent again, one by one and in floods, also with another payload.
    RepeatFloods,
    /// Many requests of one lane revert, and their reasons are slow to fetch.
    RevertFloods,
    /// Many readers at once take all connections that customers have.
    ReaderFloods,
    /// Lanes are released often, and a release arrives long after its node gave up on the answer.
    LateReleases,
}

/// Every feature with its name. A failing world is shrunk in this order: the feature whose absence explains
/// the most comes first.
pub const FEATURES: [(Feature, &str); 44] = [
    (Feature::Loss, "loss"),
    (Feature::Restores, "restores"),
    (Feature::Failovers, "failovers"),
    (Feature::ClockJumps, "clock-jumps"),
    (Feature::Foreign, "foreign"),
    (Feature::Forks, "forks"),
    (Feature::Stale, "stale"),
    (Feature::Crashes, "crashes"),
    (Feature::Freezes, "freezes"),
    (Feature::Cuts, "cuts"),
    (Feature::Drains, "drains"),
    (Feature::Isolation, "isolation"),
    (Feature::Drops, "drops"),
    (Feature::Fees, "fees"),
    (Feature::Funds, "funds"),
    (Feature::Endpoints, "endpoints"),
    (Feature::Lag, "lag"),
    (Feature::Strict, "strict"),
    (Feature::SignerUnavailable, "signer-unavailable"),
    (Feature::BadRequests, "bad-requests"),
    (Feature::Repeats, "repeats"),
    (Feature::StoreLink, "store-link"),
    (Feature::PeerLink, "peer-link"),
    (Feature::ChainLink, "chain-link"),
    (Feature::Batches, "batches"),
    (Feature::Readers, "readers"),
    (Feature::Queries, "queries"),
    (Feature::Restarts, "restarts"),
    (Feature::Newcomers, "newcomers"),
    (Feature::Departures, "departures"),
    (Feature::Operator, "operator"),
    (Feature::NodeClocks, "node-clocks"),
    (Feature::Poison, "poison"),
    (Feature::Reservations, "reservations"),
    (Feature::HungSends, "hung-sends"),
    (Feature::ScarceFunds, "scarce-funds"),
    (Feature::PoisonedRequests, "poisoned-requests"),
    (Feature::HungMethods, "hung-methods"),
    (Feature::FalseFees, "false-fees"),
    (Feature::FeeLimits, "fee-limits"),
    (Feature::RepeatFloods, "repeat-floods"),
    (Feature::RevertFloods, "revert-floods"),
    (Feature::ReaderFloods, "reader-floods"),
    (Feature::LateReleases, "late-releases"),
];

impl Feature {
    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let found = FEATURES.iter().find(|(feature, _)| *feature == self);
        found.map_or("unnamed", |(_, name)| name)
    }

    /// The feature with a name.
    ///
    /// # Errors
    /// When there is no such feature; the text lists all of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = FEATURES.iter().find(|(_, name)| *name == text);
        found.map(|(feature, _)| *feature).ok_or_else(|| {
            let names: Vec<&str> = FEATURES.iter().map(|(_, name)| *name).collect();
            format!(
                "{text:?} is not a feature of a world; the features are: {}",
                names.join(", ")
            )
        })
    }
}

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet(u64);

impl FeatureSet {
    /// Whether it contains this feature.
    #[must_use]
    pub fn contains(self, feature: Feature) -> bool {
        self.0 & bit(feature) != 0
    }

    /// This set and one more feature.
    #[must_use]
    pub fn with(self, feature: Feature) -> Self {
        Self(self.0 | bit(feature))
    }

    /// This set without one feature.
    #[must_use]
    pub fn without(self, feature: Feature) -> Self {
        Self(self.0 & !bit(feature))
    }

    /// The features of the set.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        let all = FEATURES.iter().map(|(feature, _)| *feature);
        all.filter(move |feature| self.contains(*feature))
    }
}

impl FromIterator<Feature> for FeatureSet {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Self {
        features.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Display for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Feature::as_str).collect();
        f.write_str(&names.join(","))
    }
}

fn bit(feature: Feature) -> u64 {
    1 << (feature as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_a_unique_name_and_bit() {
        let all: FeatureSet = FEATURES.iter().map(|(feature, _)| *feature).collect();
        assert_eq!(all.iter().count(), FEATURES.len());
        for (feature, name) in FEATURES {
            assert_eq!(
                (feature.as_str(), Feature::parse(name)),
                (name, Ok(feature))
            );
            assert!(!all.without(feature).contains(feature));
        }
        assert!(Feature::parse("weather").is_err_and(|text| text.contains("foreign")));
        let few = FeatureSet::default()
            .with(Feature::Foreign)
            .with(Feature::Forks);
        assert_eq!(few.to_string(), "foreign,forks");
    }
}
