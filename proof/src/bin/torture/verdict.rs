//! What it came to: counts, pauses, what was slow, and whether it holds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proof::audit::{Audited, Wrong};
use proof::load::{Reply, Said};
use proof::stats::{Spread, ms};
use proof::{NoAnswer, Outcome, Report, demand};
use serde_json::{Map, Value, json};

use crate::director::{History, Struck, enough};
use crate::ends::End;
use crate::feed::Read;
use crate::pauses::{Pause, by_kind, pauses};
use crate::world::LEASE;

/// The longest that a lane may stand still beyond the times in which nothing can be accepted: a lane may be
/// taken from one keeper that fails after the other, each after its lease.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How many pauses are told in full.
const PAUSES_TOLD: usize = 8;

/// Where nothing was wrong.
const CALM: &str = "calm";

/// Everything that was seen.
pub(crate) struct Seen {
    /// Of each lane.
    pub(crate) replies: Vec<Vec<Reply>>,
    pub(crate) history: History,
    pub(crate) feed: Read,
    pub(crate) audited: Audited,
    /// From the first payment to the last.
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// From the last payment until nothing was open, or what was still open.
    pub(crate) quiet: Outcome<Duration>,
    pub(crate) faults_min: usize,
    /// How nodes ended by themselves.
    pub(crate) ends: Vec<End>,
    /// What nodes logged of panics.
    pub(crate) panics: Vec<String>,
}

/// A payment that was accepted.
struct Accepted<'a> {
    tx_id: &'a str,
    asked: Instant,
    answered: Instant,
}

impl Seen {
    pub(crate) fn judge(&self, report: &mut Report) -> Outcome<String> {
        let struck = self.history.all();
        self.tell_faults(report, &struck);
        self.tell_answers(report);
        let (anybody, lanes) = self.pauses(&struck);
        self.tell_pauses(report, &anybody, &lanes);
        let slow = self.slow(report, &struck);
        self.tell_audit(report);
        let own = lanes.iter().map(|pause| pause.own).max();
        let own = own.unwrap_or_default();
        let figure = self.figure(&anybody, &lanes, &slow);
        self.demand_all(own)
            .map_err(|error| format!("{error}; {figure}"))?;
        Ok(figure)
    }

    fn demand_all(&self, own: Duration) -> Outcome<()> {
        self.audited.clone().sound()?;
        if let Err(error) = &self.quiet {
            return Err(format!("not quiet: {error}").into());
        }
        let bugs: Vec<&End> = self.ends.iter().filter(|end| !end.is_meant).collect();
        demand(
            bugs.is_empty(),
            format!("nodes ended by themselves: {bugs:?}"),
        )?;
        let panics = &self.panics;
        demand(panics.is_empty(), format!("nodes panicked: {panics:?}"))?;
        let wrong = &self.feed.wrong;
        demand(wrong.is_empty(), format!("the event feed: {wrong:?}"))?;
        enough(&self.history, self.faults_min)?;
        demand(
            own <= PAUSE_MAX,
            format!("a lane accepted nothing for {own:?} though it could"),
        )
    }

    fn figure(&self, anybody: &[Pause], lanes: &[Pause], slow: &str) -> String {
        let counted = self.audited.counted;
        let count = |wrong| self.audited.count(wrong);
        let longest = |pauses: &[Pause]| {
            let pause = pauses.first();
            pause.map_or_else(String::new, |pause| {
                format!("{} ms ({})", ms(pause.length()), pause.faults.join(" + "))
            })
        };
        let quiet = match &self.quiet {
            Ok(time) => format!("quiet {} ms after the last payment", ms(*time)),
            Err(_) => "never quiet".to_owned(),
        };
        format!(
            "{} faults of {} kinds in {} s: {} requests accepted, {} exactly once, lost {}, doubled {}, stuck {}, \
             other findings {}; longest pause {}, of one lane {}; {quiet}; {slow}",
            self.history.count(),
            self.history.by_kind().len(),
            self.ended.duration_since(self.began).as_secs(),
            counted.promised,
            counted.paid,
            count(Wrong::Lost),
            count(Wrong::Doubled),
            count(Wrong::Stuck),
            count(Wrong::Broken),
            longest(anybody),
            longest(lanes),
        )
    }

    fn tell_faults(&self, report: &mut Report, struck: &[Struck]) {
        let kinds: Map<String, Value> = self
            .history
            .by_kind()
            .iter()
            .map(|(kind, count)| (kind.name().to_owned(), json!(count)))
            .collect();
        report.fact("faults", self.history.count());
        report.fact("faultsByKind", Value::Object(kinds));
        let missed = struck.iter().filter_map(|struck| {
            let why = struck.did.as_ref().err()?;
            Some(format!("{}: {why}", struck.strike.text()))
        });
        report.fact("missed", json!(missed.collect::<Vec<_>>()));
        let ends = self.ends.iter().map(End::to_json);
        report.fact("nodesEndedByThemselves", json!(ends.collect::<Vec<_>>()));
        report.fact("panics", json!(self.panics));
        let line = |struck: &Struck| {
            let did = struck.did.as_ref().map(|done| &done.text);
            json!({
                "atMs": ms(struck.from.duration_since(self.began)),
                "tookMs": struck.until.map(|until| ms(until.duration_since(struck.from))),
                "fault": struck.strike.text(),
                "did": did.unwrap_or_else(|why| why),
            })
        };
        report.note("history", struck.iter().map(line).collect::<Vec<_>>());
    }

    fn tell_answers(&self, report: &mut Report) {
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for reply in self.replies.iter().flatten() {
            let kind = match &reply.said {
                Said::Accepted { .. } => "accepted".to_owned(),
                Said::Refused(status, problem) => {
                    let kind = problem["type"].as_str().unwrap_or("without type");
                    let kind = kind.rsplit(['/', ':']).next().unwrap_or(kind);
                    format!("{status} {kind}")
                }
                Said::Nothing(NoAnswer::NotReached) => "not reached".to_owned(),
                Said::Nothing(NoAnswer::Broken) => "broken off".to_owned(),
                Said::Nothing(NoAnswer::TooLate) => "too late".to_owned(),
            };
            *kinds.entry(kind).or_default() += 1;
        }
        report.fact("answers", json!(kinds));
    }

    /// Of all lanes together, and of single lanes; each the longest first.
    fn pauses(&self, struck: &[Struck]) -> (Vec<Pause>, Vec<Pause>) {
        let span = (self.began, self.ended);
        let of = |replies: &mut dyn Iterator<Item = &Reply>| {
            let accepted = replies.filter(|reply| reply.said.is_accepted());
            let times = accepted.map(|reply| reply.answered).collect();
            pauses(times, span, struck, LEASE.over_after())
        };
        let anybody = of(&mut self.replies.iter().flatten());
        let each = self
            .replies
            .iter()
            .flat_map(|replies| of(&mut replies.iter()));
        let mut lanes: Vec<Pause> = each.collect();
        lanes.sort_by_key(|pause| std::cmp::Reverse(pause.length()));
        (anybody, lanes)
    }

    fn tell_pauses(&self, report: &mut Report, anybody: &[Pause], lanes: &[Pause]) {
        let told = |pauses: &[Pause]| -> Vec<Value> {
            let first = pauses.iter().take(PAUSES_TOLD);
            first.map(|pause| pause.to_json(self.began)).collect()
        };
        report.fact("pauses", told(anybody));
        report.fact("pausesOfLanes", told(lanes));
        let mut by_own: Vec<Pause> = lanes.to_vec();
        by_own.sort_by_key(|pause| std::cmp::Reverse(pause.own));
        report.fact("pausesOfLanesThatCouldAccept", told(&by_own));
        let of_kinds: Map<String, Value> = by_kind(lanes)
            .iter()
            .map(|(kind, longest)| (kind.name().to_owned(), json!(ms(*longest))))
            .collect();
        report.fact("longestPauseOfALaneMs", Value::Object(of_kinds));
    }

    fn accepted(&self) -> impl Iterator<Item = Accepted<'_>> {
        self.replies.iter().flatten().filter_map(|reply| {
            let Said::Accepted { tx_id, .. } = &reply.said else {
                return None;
            };
            Some(Accepted {
                tx_id,
                asked: reply.first_asked,
                answered: reply.answered,
            })
        })
    }

    /// Times until the accept, and from there until the feed told it as final, by what happened meanwhile.
    fn slow(&self, report: &mut Report, struck: &[Struck]) -> String {
        let (mut accepts, mut confirms) = (Phases::default(), Phases::default());
        for accepted in self.accepted() {
            accepts.add(accepted.asked, accepted.answered, struck);
            if let Some(confirmed) = self.feed.confirmed.get(accepted.tx_id) {
                confirms.add(accepted.answered, *confirmed, struck);
            }
        }
        report.fact("acceptMsByPhase", accepts.to_json());
        report.fact("acceptToConfirmedMsByPhase", confirms.to_json());
        format!(
            "accept p50 {} p99 {} max {} ms, calm p99 {} ms; accept to confirmed p50 {} p99 {} max {} ms",
            accepts.percentile(50),
            accepts.percentile(99),
            accepts.percentile(100),
            accepts.calm(99),
            confirms.percentile(50),
            confirms.percentile(99),
            confirms.percentile(100),
        )
    }

    fn tell_audit(&self, report: &mut Report) {
        let counted = self.audited.counted;
        report.fact("accepted", counted.promised);
        report.fact("exactlyOnce", counted.paid);
        report.fact("stored", counted.stored);
        report.fact("noOps", counted.no_ops);
        report.fact("lost", self.audited.count(Wrong::Lost));
        report.fact("doubled", self.audited.count(Wrong::Doubled));
        report.fact("stuck", self.audited.count(Wrong::Stuck));
        let told = self.audited.samples().into_iter();
        let told = told.map(|found| format!("{:?}: {}", found.wrong, found.text));
        report.fact("findings", told.collect::<Vec<_>>());
        report.fact("events", json!(self.feed.counts));
        report.fact("eventFeed", json!(self.feed.wrong));
        let quiet = self.quiet.as_ref().map(|time| ms(*time));
        report.fact("quietMs", json!(quiet.ok()));
    }
}

/// Durations, by what happened in them.
#[derive(Default)]
struct Phases {
    all: Vec<Duration>,
    by_name: BTreeMap<&'static str, Vec<Duration>>,
}

impl Phases {
    fn add(&mut self, from: Instant, until: Instant, struck: &[Struck]) {
        let length = until.saturating_duration_since(from);
        self.all.push(length);
        let meets = |struck: &&Struck| {
            let end = struck.until.map_or(until, |end| end + LEASE.over_after());
            struck.did.is_ok() && struck.from < until && end > from
        };
        let mut names: Vec<&str> = struck
            .iter()
            .filter(meets)
            .map(|struck| struck.strike.kind.name())
            .collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            names.push(CALM);
        }
        for name in names {
            self.by_name.entry(name).or_default().push(length);
        }
    }

    fn percentile(&self, percent: usize) -> u64 {
        ms(Spread::of(self.all.clone()).percentile(percent))
    }

    fn calm(&self, percent: usize) -> u64 {
        let calm = self.by_name.get(CALM).cloned();
        ms(Spread::of(calm.unwrap_or_default()).percentile(percent))
    }

    fn to_json(&self) -> Value {
        let mut phases = Map::new();
        phases.insert("all".to_owned(), Spread::of(self.all.clone()).to_json());
        for (name, durations) in &self.by_name {
            let spread = Spread::of(durations.clone());
            phases.insert((*name).to_owned(), spread.to_json());
        }
        Value::Object(phases)
    }
}
