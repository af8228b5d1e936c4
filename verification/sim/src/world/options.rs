//! The options of a world beside its seed: its kind, and the features that are disabled.

use std::fmt;

use super::features::FeatureSet;
use crate::rng::Rng;

/// The options of a run. The same seed with the same options makes the same world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// No faults.
    pub calm: bool,
    /// Reorgs go deeper than finality, so that final results are reorged out.
    pub deep_forks: bool,
    /// The store's standby is promoted once, and lacks the last commits.
    pub lossy: bool,
    /// And an operator accepts the losses of halted lanes.
    pub accept_loss: bool,
    /// Beside single requests all other workloads: batches, readers, deployments, nodes that join and
    /// leave.
    pub busy: bool,
    /// Accounts run short of money, and requests that they cannot pay for are refused.
    pub scarce: bool,
    /// Lanes end a tx that blocks them for too long.
    pub impatient: bool,
    /// Requests, endpoints and readers that could harm others: see [`super::hostile_plan`].
    pub hostile: bool,
    /// Overrides of the values that the seed decided.
    pub changes: Changes,
    /// Every line is printed as it is recorded.
    pub echo: bool,
    /// No lines are recorded and no digest is computed: several times as fast, for searches.
    pub silent: bool,
}

/// Overrides of the values that a seed decided. `None` keeps the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The disabled features.
    pub without: FeatureSet,
    /// Only the first N requests.
    pub requests: Option<u64>,
    /// Only requests of the first N lanes.
    pub lanes: Option<usize>,
    /// The number of nodes.
    pub nodes: Option<usize>,
    /// The number of faults of nodes, and of faults of the chain.
    pub faults: Option<u64>,
}

/// And whether its lanes end what blocks them.
const IMPATIENT_STREAM: u64 = 0x626c_6f63;
/// In how many worlds per thousand.
const IMPATIENT_PERMILLE: u64 = 200;
/// Separates the kind of a world from all other draws of its seed.
const KIND_STREAM: u64 = 0x6b69_6e64;
/// And whether an operator accepts what is lost.
const ACCEPT_STREAM: u64 = 0x6163_6365;
/// In how many lossy worlds per thousand.
const ACCEPT_PERMILLE: u64 = 600;
/// And whether its accounts run short of money.
const SCARCE_STREAM: u64 = 0x6d6f_6e65;
/// In how many worlds per thousand, of those with faults.
const SCARCE_PERMILLE: u64 = 300;
/// Separates whether a world is hostile from all other draws of its seed.
const HOSTILE_STREAM: u64 = 0x6861_726d;
/// How many worlds per thousand are.
const HOSTILE_PERMILLE: u64 = 400;

impl Options {
    /// The kind of a seed where worlds are mixed: most are stormy, and all are busy.
    #[must_use]
    pub fn mixed(seed: u64) -> Self {
        let draw = Rng::new(seed ^ KIND_STREAM).below(100);
        Self {
            calm: draw < 12,
            deep_forks: (12..27).contains(&draw),
            lossy: (27..40).contains(&draw),
            accept_loss: (27..40).contains(&draw)
                && Rng::new(seed ^ ACCEPT_STREAM).permille(ACCEPT_PERMILLE),
            busy: true,
            // Without faults there are poisoned lanes, whose accounts have nothing.
            scarce: draw >= 12 && Rng::new(seed ^ SCARCE_STREAM).permille(SCARCE_PERMILLE),
            impatient: Rng::new(seed ^ IMPATIENT_STREAM).permille(IMPATIENT_PERMILLE),
            hostile: Rng::new(seed ^ HOSTILE_STREAM).permille(HOSTILE_PERMILLE),
            ..Self::default()
        }
    }

    /// The same world with other changes.
    #[must_use]
    pub fn with(self, changes: Changes) -> Self {
        Self { changes, ..self }
    }

    /// The kind as command-line options, without changes.
    #[must_use]
    pub fn kind(&self) -> String {
        let is_stormy = !(self.calm || self.deep_forks || self.lossy);
        let flags = [
            (is_stormy, "--stormy"),
            (self.calm, "--calm"),
            (self.deep_forks, "--deep-forks"),
            (self.lossy, "--lossy"),
            (self.accept_loss, "--accept-loss"),
            (self.busy, "--busy"),
            (self.scarce, "--scarce"),
            (self.impatient, "--impatient"),
            (self.hostile, "--hostile"),
        ];
        let flags = flags.iter().filter(|(is_set, _)| *is_set);
        flags.map(|(_, flag)| *flag).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Options {
    /// The command-line options that make this world again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind())?;
        self.changes.fmt(f)
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            without,
            requests,
            lanes,
            nodes,
            faults,
        } = self;
        if *without != FeatureSet::default() {
            write!(f, " --without {without}")?;
        }
        if let Some(requests) = requests {
            write!(f, " --requests {requests}")?;
        }
        if let Some(lanes) = lanes {
            write!(f, " --lanes {lanes}")?;
        }
        if let Some(nodes) = nodes {
            write!(f, " --nodes {nodes}")?;
        }
        if let Some(faults) = faults {
            write!(f, " --faults {faults}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::features::Feature;
    use super::*;

    #[test]
    fn options_display_as_command_line() {
        let options = Options {
            lossy: true,
            busy: true,
            changes: Changes {
                without: FeatureSet::default().with(Feature::Forks),
                requests: Some(5),
                ..Changes::default()
            },
            ..Options::default()
        };
        assert_eq!(
            options.to_string(),
            "--lossy --busy --without forks --requests 5"
        );
        assert_eq!(Options::default().to_string(), "--stormy");
    }

    #[test]
    fn mixed_worlds_have_all_kinds() {
        let kinds: Vec<Options> = (0..1_000).map(Options::mixed).collect();
        let share = |is_set: fn(&Options) -> bool| kinds.iter().filter(|kind| is_set(kind)).count();
        assert!((80..160).contains(&share(|kind| kind.calm)));
        assert!((110..200).contains(&share(|kind| kind.deep_forks)));
        assert!((90..180).contains(&share(|kind| kind.lossy)));
        assert!((40..130).contains(&share(|kind| kind.accept_loss)));
        assert!(kinds.iter().all(|kind| kind.lossy || !kind.accept_loss));
        assert!(kinds.iter().all(|kind| kind.busy));
        assert!((200..330).contains(&share(|kind| kind.scarce)));
        assert!((330..470).contains(&share(|kind| kind.hostile)));
        assert!(!kinds.iter().any(|kind| kind.scarce && kind.calm));
        assert!((150..250).contains(&share(|kind| kind.impatient)));
    }
}
