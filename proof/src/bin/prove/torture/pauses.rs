//! Times without an accepted payment, and the faults meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proof::stats::ms;
use serde_json::{Value, json};

use crate::torture::fault_kind::FaultKind;
use crate::torture::scheduler::FaultRecord;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
    /// Faults in it or shortly before.
    pub(crate) faults: Vec<String>,
    pub(crate) kinds: Vec<FaultKind>,
    /// The pause without the times in which nothing can be accepted.
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

/// The pauses between these times, the longest first. A fault counts for some time after its end.
pub(crate) fn pauses(
    mut accepted: Vec<Instant>,
    (began, ended): (Instant, Instant),
    faults: &[FaultRecord],
    aftermath: Duration,
) -> Vec<Pause> {
    accepted.extend([began, ended]);
    accepted.sort_unstable();
    let pairs = accepted.windows(2).filter(|pair| pair[1] > pair[0]);
    let mut pauses: Vec<Pause> = pairs
        .map(|pair| pause(pair[0], pair[1], faults, aftermath))
        .collect();
    pauses.sort_by_key(|pause| std::cmp::Reverse(pause.length()));
    pauses
}

fn pause(from: Instant, until: Instant, faults: &[FaultRecord], aftermath: Duration) -> Pause {
    let meets = |record: &&FaultRecord| {
        let end = record.until.map_or(until, |end| end + aftermath);
        record.did.is_ok() && record.from < until && end > from
    };
    let met: Vec<&FaultRecord> = faults.iter().filter(meets).collect();
    Pause {
        from,
        until,
        faults: met.iter().map(|record| record.fault.text()).collect(),
        kinds: met.iter().map(|record| record.fault.kind).collect(),
        own: own(from, until, &met),
    }
}

/// The pause without the times in which nothing can be accepted.
fn own(from: Instant, until: Instant, met: &[&FaultRecord]) -> Duration {
    let stopped = met.iter().filter(|s| s.fault.kind.stops_everything());
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

/// The longest pause per kind of fault.
pub(crate) fn by_kind(pauses: &[Pause]) -> BTreeMap<FaultKind, Duration> {
    let mut longest: BTreeMap<FaultKind, Duration> = BTreeMap::new();
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
    use crate::torture::injection::Done;
    use crate::torture::plan::PlannedFault;

    fn record(kind: FaultKind, from: Instant, seconds: u64) -> FaultRecord {
        FaultRecord {
            fault: PlannedFault {
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
    fn pause_has_its_faults_and_its_own_share() {
        let zero = Instant::now();
        let at = |seconds: u64| zero + Duration::from_secs(seconds);
        let faults = [
            record(FaultKind::DatabaseCrash, at(11), 4),
            record(FaultKind::Promotion, at(13), 3),
            record(FaultKind::Freeze, at(50), 5),
        ];
        let accepted = vec![at(1), at(10), at(20), at(30), at(59)];
        let found = pauses(accepted, (zero, at(60)), &faults, Duration::from_secs(2));
        assert_eq!(found[0].faults, ["freeze"]);
        assert_eq!(found[0].own, Duration::from_secs(29));
        let stopped = found.iter().find(|pause| pause.from == at(10)).unwrap();
        assert_eq!(stopped.faults, ["databaseCrash", "promotion"]);
        assert_eq!(stopped.own, Duration::from_secs(5)); // of 10 s, nothing was possible from 11 to 16
        let longest = by_kind(&found);
        assert_eq!(longest[&FaultKind::Freeze], Duration::from_secs(29));
    }
}
