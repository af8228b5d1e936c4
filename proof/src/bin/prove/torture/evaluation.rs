//! The evaluation: counts, pauses, slow phases, and whether all conditions hold.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proof::audit::{AuditReport, FindingKind};
use proof::load::{Reply, ReplyOutcome};
use proof::stats::{Spread, ms};
use proof::{NoAnswer, Outcome, Report, ensure};
use serde_json::{Map, Value, json};

use crate::torture::exits::NodeExit;
use crate::torture::feed::Read;
use crate::torture::pauses::{Pause, by_kind, pauses};
use crate::torture::scheduler::{FaultRecord, History, enough};
use crate::torture::world::LEASE;

/// The longest pause of a lane beyond the times in which nothing can be accepted: a lane may lose several failing
/// keepers in a row, each after its lease.
const PAUSE_MAX: Duration = Duration::from_secs(30);

const PAUSES_REPORTED: usize = 8;

/// The phase without faults.
const CALM: &str = "calm";

pub(crate) struct Seen {
    /// Per lane.
    pub(crate) replies: Vec<Vec<Reply>>,
    pub(crate) history: History,
    pub(crate) feed: Read,
    pub(crate) audited: AuditReport,
    /// First and last payment.
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// Time from the last payment until nothing was open, or what was still open.
    pub(crate) quiet: Outcome<Duration>,
    pub(crate) faults_min: usize,
    /// Unexpected and expected exits of nodes.
    pub(crate) exits: Vec<NodeExit>,
    /// Panics in the logs.
    pub(crate) panics: Vec<String>,
}

struct Accepted<'a> {
    tx_id: &'a str,
    sent_at: Instant,
    answered_at: Instant,
}

impl Seen {
    pub(crate) fn judge(&self, report: &mut Report) -> Outcome<String> {
        let faults = self.history.all();
        self.report_faults(report, &faults);
        self.report_answers(report);
        let (any_lane, lanes) = self.pauses(&faults);
        self.report_pauses(report, &any_lane, &lanes);
        let slow = self.slow(report, &faults);
        self.report_audit(report);
        let own = lanes.iter().map(|pause| pause.own).max();
        let own = own.unwrap_or_default();
        let figure = self.figure(&any_lane, &lanes, &slow);
        self.ensure_all(own)
            .map_err(|error| format!("{error}; {figure}"))?;
        Ok(figure)
    }

    fn ensure_all(&self, own: Duration) -> Outcome<()> {
        self.audited.clone().require_no_findings()?;
        if let Err(error) = &self.quiet {
            return Err(format!("not quiet: {error}").into());
        }
        let bugs: Vec<&NodeExit> = self.exits.iter().filter(|end| !end.is_expected).collect();
        ensure(
            bugs.is_empty(),
            format!("nodes ended by themselves: {bugs:?}"),
        )?;
        let panics = &self.panics;
        ensure(panics.is_empty(), format!("nodes panicked: {panics:?}"))?;
        let wrong = &self.feed.wrong;
        ensure(wrong.is_empty(), format!("the event feed: {wrong:?}"))?;
        enough(&self.history, self.faults_min)?;
        ensure(
            own <= PAUSE_MAX,
            format!("a lane accepted nothing for {own:?} though it could"),
        )
    }

    fn figure(&self, any_lane: &[Pause], lanes: &[Pause], slow: &str) -> String {
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
            "{} faults of {} kinds in {} s: {} requests accepted, {} exactly once, lost {}, duplicated {}, stuck {}, \
             other findings {}; longest pause {}, of one lane {}; {quiet}; {slow}",
            self.history.count(),
            self.history.by_kind().len(),
            self.ended.duration_since(self.began).as_secs(),
            counted.promised,
            counted.paid,
            count(FindingKind::Lost),
            count(FindingKind::Doubled),
            count(FindingKind::Stuck),
            count(FindingKind::Broken),
            longest(any_lane),
            longest(lanes),
        )
    }

    fn report_faults(&self, report: &mut Report, faults: &[FaultRecord]) {
        let kinds: Map<String, Value> = self
            .history
            .by_kind()
            .iter()
            .map(|(kind, count)| (kind.name().to_owned(), json!(count)))
            .collect();
        report.fact("faults", self.history.count());
        report.fact("faultsByKind", Value::Object(kinds));
        let missed = faults.iter().filter_map(|record| {
            let why = record.did.as_ref().err()?;
            Some(format!("{}: {why}", record.fault.text()))
        });
        report.fact("missed", json!(missed.collect::<Vec<_>>()));
        let exits = self.exits.iter().map(NodeExit::to_json);
        report.fact("nodesEndedByThemselves", json!(exits.collect::<Vec<_>>()));
        report.fact("panics", json!(self.panics));
        let line = |record: &FaultRecord| {
            let did = record.did.as_ref().map(|done| &done.text);
            json!({
                "atMs": ms(record.from.duration_since(self.began)),
                "tookMs": record.until.map(|until| ms(until.duration_since(record.from))),
                "fault": record.fault.text(),
                "did": did.unwrap_or_else(|why| why),
            })
        };
        report.note("history", faults.iter().map(line).collect::<Vec<_>>());
    }

    fn report_answers(&self, report: &mut Report) {
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for reply in self.replies.iter().flatten() {
            let kind = match &reply.outcome {
                ReplyOutcome::Accepted { .. } => "accepted".to_owned(),
                ReplyOutcome::Refused(status, problem) => {
                    let kind = problem["type"].as_str().unwrap_or("without type");
                    let kind = kind.rsplit(['/', ':']).next().unwrap_or(kind);
                    format!("{status} {kind}")
                }
                ReplyOutcome::Nothing(NoAnswer::NotReached) => "not reached".to_owned(),
                ReplyOutcome::Nothing(NoAnswer::Broken) => "broken off".to_owned(),
                ReplyOutcome::Nothing(NoAnswer::TooLate) => "too late".to_owned(),
            };
            *kinds.entry(kind).or_default() += 1;
        }
        report.fact("answers", json!(kinds));
    }

    /// Of all lanes together and of single lanes, the longest first.
    fn pauses(&self, faults: &[FaultRecord]) -> (Vec<Pause>, Vec<Pause>) {
        let span = (self.began, self.ended);
        let of = |replies: &mut dyn Iterator<Item = &Reply>| {
            let accepted = replies.filter(|reply| reply.outcome.is_accepted());
            let times = accepted.map(|reply| reply.answered_at).collect();
            pauses(times, span, faults, LEASE.over_after())
        };
        let any_lane = of(&mut self.replies.iter().flatten());
        let each = self
            .replies
            .iter()
            .flat_map(|replies| of(&mut replies.iter()));
        let mut lanes: Vec<Pause> = each.collect();
        lanes.sort_by_key(|pause| std::cmp::Reverse(pause.length()));
        (any_lane, lanes)
    }

    fn report_pauses(&self, report: &mut Report, any_lane: &[Pause], lanes: &[Pause]) {
        let reported = |pauses: &[Pause]| -> Vec<Value> {
            let first = pauses.iter().take(PAUSES_REPORTED);
            first.map(|pause| pause.to_json(self.began)).collect()
        };
        report.fact("pauses", reported(any_lane));
        report.fact("pausesOfLanes", reported(lanes));
        let mut by_own: Vec<Pause> = lanes.to_vec();
        by_own.sort_by_key(|pause| std::cmp::Reverse(pause.own));
        report.fact("pausesOfLanesThatCouldAccept", reported(&by_own));
        let of_kinds: Map<String, Value> = by_kind(lanes)
            .iter()
            .map(|(kind, longest)| (kind.name().to_owned(), json!(ms(*longest))))
            .collect();
        report.fact("longestPauseOfALaneMs", Value::Object(of_kinds));
    }

    fn accepted(&self) -> impl Iterator<Item = Accepted<'_>> {
        self.replies.iter().flatten().filter_map(|reply| {
            let ReplyOutcome::Accepted { tx_id, .. } = &reply.outcome else {
                return None;
            };
            Some(Accepted {
                tx_id,
                sent_at: reply.first_sent_at,
                answered_at: reply.answered_at,
            })
        })
    }

    /// Times until the accept, and from there until the feed reported it as final, by active faults.
    fn slow(&self, report: &mut Report, faults: &[FaultRecord]) -> String {
        let (mut accepts, mut confirms) = (Phases::default(), Phases::default());
        for accepted in self.accepted() {
            accepts.add(accepted.sent_at, accepted.answered_at, faults);
            if let Some(confirmed) = self.feed.confirmed.get(accepted.tx_id) {
                confirms.add(accepted.answered_at, *confirmed, faults);
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

    fn report_audit(&self, report: &mut Report) {
        let counted = self.audited.counted;
        report.fact("accepted", counted.promised);
        report.fact("exactlyOnce", counted.paid);
        report.fact("stored", counted.stored);
        report.fact("noOps", counted.no_ops);
        report.fact("lost", self.audited.count(FindingKind::Lost));
        report.fact("doubled", self.audited.count(FindingKind::Doubled));
        report.fact("stuck", self.audited.count(FindingKind::Stuck));
        let reported = self.audited.samples().into_iter();
        let reported = reported.map(|found| format!("{:?}: {}", found.wrong, found.text));
        report.fact("findings", reported.collect::<Vec<_>>());
        report.fact("events", json!(self.feed.counts));
        report.fact("eventFeed", json!(self.feed.wrong));
        let quiet = self.quiet.as_ref().map(|time| ms(*time));
        report.fact("quietMs", json!(quiet.ok()));
    }
}

/// Durations, by active faults.
#[derive(Default)]
struct Phases {
    all: Vec<Duration>,
    by_name: BTreeMap<&'static str, Vec<Duration>>,
}

impl Phases {
    fn add(&mut self, from: Instant, until: Instant, faults: &[FaultRecord]) {
        let length = until.saturating_duration_since(from);
        self.all.push(length);
        let meets = |record: &&FaultRecord| {
            let end = record.until.map_or(until, |end| end + LEASE.over_after());
            record.did.is_ok() && record.from < until && end > from
        };
        let mut names: Vec<&str> = faults
            .iter()
            .filter(meets)
            .map(|record| record.fault.kind.name())
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
