//! How long nobody was accepted, and what was wrong meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proof::stats::ms;
use serde_json::{Value, json};

use crate::director::Struck;
use crate::kind::Kind;

/// A time without an accepted payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
    /// What happened in it or shortly before.
    pub(crate) faults: Vec<String>,
    pub(crate) kinds: Vec<Kind>,
    /// How much of it is left without the times in which nobody can be accepted.
    pub(crate) own: Duration,
}

impl Pause {
    pub(crate) fn length(&self) -> Duration {
        self.until.duration_since(self.from)
    }

    pub(crate) fn to_json(&self, began: Instant) -> Value {
        json!({
            "atSecond": self.from.duration_since(began).as_secs(),
            "ms": ms(self.length()),
            "ownMs": ms(self.own),
            "faults": self.faults,
        })
    }
}

/// The pauses between these moments, the longest first. Faults count for so long after their end.
pub(crate) fn pauses(
    mut accepted: Vec<Instant>,
    (began, ended): (Instant, Instant),
    struck: &[Struck],
    aftermath: Duration,
) -> Vec<Pause> {
    accepted.extend([began, ended]);
    accepted.sort_unstable();
    let pairs = accepted.windows(2).filter(|pair| pair[1] > pair[0]);
    let mut pauses: Vec<Pause> = pairs
        .map(|pair| pause(pair[0], pair[1], struck, aftermath))
        .collect();
    pauses.sort_by_key(|pause| std::cmp::Reverse(pause.length()));
    pauses
}

fn pause(from: Instant, until: Instant, struck: &[Struck], aftermath: Duration) -> Pause {
    let meets = |struck: &&Struck| {
        let end = struck.until.map_or(until, |end| end + aftermath);
        struck.did.is_ok() && struck.from < until && end > from
    };
    let met: Vec<&Struck> = struck.iter().filter(meets).collect();
    Pause {
        from,
        until,
        faults: met.iter().map(|struck| struck.strike.text()).collect(),
        kinds: met.iter().map(|struck| struck.strike.kind).collect(),
        own: own(from, until, &met),
    }
}

/// What is left of a pause without the times in which nothing could be accepted.
fn own(from: Instant, until: Instant, met: &[&Struck]) -> Duration {
    let stopped = met.iter().filter(|s| s.strike.kind.stops_everything());
    let mut spans: Vec<(Instant, Instant)> = stopped
        .map(|s| {
            (
                s.from.max(from),
                s.works_again().unwrap_or(until).min(until),
            )
        })
        .filter(|(from, until)| until > from)
        .collect();
    spans.sort_unstable();
    let (mut left, mut at) = (until.duration_since(from), from);
    for (from, until) in spans {
        let from = from.max(at);
        if until > from {
            left = left.saturating_sub(until.duration_since(from));
            at = until;
        }
    }
    left
}

/// The longest pause in which each kind had a part.
pub(crate) fn by_kind(pauses: &[Pause]) -> BTreeMap<Kind, Duration> {
    let mut longest: BTreeMap<Kind, Duration> = BTreeMap::new();
    for pause in pauses {
        for kind in &pause.kinds {
            let known = longest.entry(*kind).or_default();
            *known = pause.length().max(*known);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Strike;
    use crate::strikes::Done;

    fn struck(kind: Kind, from: Instant, seconds: u64) -> Struck {
        Struck {
            strike: Strike {
                number: 0,
                at: Duration::ZERO,
                kind,
                nodes: Vec::new(),
                lasts: Duration::ZERO,
                seed: 0,
            },
            from,
            until: Some(from + Duration::from_secs(seconds)),
            did: Ok(Done::default()),
        }
    }

    #[test]
    fn a_pause_knows_its_faults_and_what_is_its_own() {
        let zero = Instant::now();
        let at = |seconds: u64| zero + Duration::from_secs(seconds);
        let struck = [
            struck(Kind::DatabaseCrash, at(11), 4),
            struck(Kind::Promotion, at(13), 3),
            struck(Kind::Freeze, at(50), 5),
        ];
        let accepted = vec![at(1), at(10), at(20), at(30), at(59)];
        let found = pauses(accepted, (zero, at(60)), &struck, Duration::from_secs(2));
        assert_eq!(found[0].faults, ["freeze"]);
        assert_eq!(found[0].own, Duration::from_secs(29));
        let stopped = found.iter().find(|pause| pause.from == at(10)).unwrap();
        assert_eq!(stopped.faults, ["databaseCrash", "promotion"]);
        assert_eq!(stopped.own, Duration::from_secs(5)); // of 10, from 11 to 16 nothing was possible
        let longest = by_kind(&found);
        assert_eq!(longest[&Kind::Freeze], Duration::from_secs(29));
    }
}
