//! How a world is made beside its seed: which kind it is, and what is left out of it.

use std::fmt;

use super::parts::Parts;
use crate::rng::Rng;

/// How a run is made. The same seed with the same options gives the same world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Nothing goes wrong.
    pub calm: bool,
    /// Forks go deeper than what is final, so that finals are taken back.
    pub deep_forks: bool,
    /// Once the store's standby takes over and lacks the last commits.
    pub lossy: bool,
    /// And an operator accepts what busy lanes have lost. Not among mixed worlds: what was queued before, and
    /// sent by a commit that was lost, is sent again then.
    pub accept_loss: bool,
    /// Beside single requests, everything else that is done to a cluster: batches, readers, deploys, nodes
    /// that come and go.
    pub busy: bool,
    /// What differs from what the seed decided.
    pub changes: Changes,
    /// Every line is printed as it comes.
    pub echo: bool,
    /// No lines are written and no digest is made: several times as fast, for searches.
    pub silent: bool,
}

/// What differs from what a seed decided. `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Does not happen.
    pub without: Parts,
    /// Only the first so many requests.
    pub requests: Option<u64>,
    /// Only requests of the first so many lanes.
    pub lanes: Option<usize>,
    /// So many nodes.
    pub nodes: Option<usize>,
    /// Only so many strikes at nodes, and as many at the chain.
    pub strikes: Option<u64>,
}

/// Keeps the kind of a world apart from everything else that its seed decides.
const KIND_STREAM: u64 = 0x6b69_6e64;

impl Options {
    /// The kind that a seed has where worlds are mixed: most are stormy, and all are busy.
    #[must_use]
    pub fn mixed(seed: u64) -> Self {
        let draw = Rng::new(seed ^ KIND_STREAM).below(100);
        Self {
            calm: draw < 12,
            deep_forks: (12..27).contains(&draw),
            lossy: (27..40).contains(&draw),
            busy: true,
            ..Self::default()
        }
    }

    /// The same world with other changes.
    #[must_use]
    pub fn with(self, changes: Changes) -> Self {
        Self { changes, ..self }
    }

    /// The kind in words of the command line, without changes.
    #[must_use]
    pub fn kind(&self) -> String {
        let is_stormy = !(self.calm || self.deep_forks || self.lossy);
        let words = [
            (is_stormy, "--stormy"),
            (self.calm, "--calm"),
            (self.deep_forks, "--deep-forks"),
            (self.lossy, "--lossy"),
            (self.accept_loss, "--accept-loss"),
            (self.busy, "--busy"),
        ];
        let words = words.iter().filter(|(is_so, _)| *is_so);
        words.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Options {
    /// What to give to the command to make such a world again.
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
            strikes,
        } = self;
        if *without != Parts::default() {
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
        if let Some(strikes) = strikes {
            write!(f, " --strikes {strikes}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::parts::Part;
    use super::*;

    #[test]
    fn options_say_how_to_be_given_again() {
        let options = Options {
            lossy: true,
            busy: true,
            changes: Changes {
                without: Parts::default().with(Part::Forks),
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
    fn mixed_worlds_are_of_all_kinds() {
        let kinds: Vec<Options> = (0..1_000).map(Options::mixed).collect();
        let share = |is_so: fn(&Options) -> bool| kinds.iter().filter(|kind| is_so(kind)).count();
        assert!((80..160).contains(&share(|kind| kind.calm)));
        assert!((110..200).contains(&share(|kind| kind.deep_forks)));
        assert!((90..180).contains(&share(|kind| kind.lossy)));
        assert!(kinds.iter().all(|kind| kind.busy));
    }
}
