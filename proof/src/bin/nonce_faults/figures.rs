//! What a fault cost, by what the borrowers wrote down; and whether everything is as it was before.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proof::{Outcome, demand};
use serde_json::{Value, json};

use crate::journal::{At, Journals};
use crate::plan::Case;
use crate::strike::Struck;
use crate::times;
use crate::world::{World, now};

/// How long the usual pace is measured, and how long the present one.
const BEFORE: Duration = Duration::from_secs(2);
const PRESENT: Duration = Duration::from_millis(500);
/// Normal is at least this share of the pace before, and of what Redis was asked per nonce.
const NORMAL_SHARE: f64 = 0.5;

/// How it was before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    per_second: f64,
    redis_per_nonce: f64,
}

/// What a case cost.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    /// The longest time in which nobody at all got a nonce.
    pub(crate) pause: Duration,
    /// How many allocations were refused.
    pub(crate) refused: usize,
    pub(crate) refused_by: BTreeMap<String, usize>,
    /// How many nonces waited for a time-out before they could be used.
    pub(crate) delayed: usize,
    /// How long it took until everything was as before, from when nothing was broken any more.
    pub(crate) normal_after: Duration,
    /// How long after the load the last hole was closed.
    pub(crate) closed_after: Duration,
}

impl Pace {
    /// Of a while from now on.
    pub(crate) async fn measure(world: &mut World) -> Outcome<Self> {
        let pace = Self::over(world, BEFORE).await?;
        demand(pace.per_second > 1.0, "hardly anything is lent")?;
        Ok(pace)
    }

    async fn over(world: &mut World, time: Duration) -> Outcome<Self> {
        let (began, asked) = (now()?, redis_calls(world)?);
        let started = Instant::now();
        tokio::time::sleep(time).await;
        let seconds = started.elapsed().as_secs_f64();
        let lent: usize = world.journals()?.lent_since(began).values().sum();
        let asked = redis_calls(world)?.saturating_sub(asked);
        let (lent, asked) = (as_f64(lent)?, as_f64(usize::try_from(asked)?)?);
        Ok(Self {
            per_second: lent / seconds,
            redis_per_nonce: asked / lent.max(1.0),
        })
    }

    /// Waits until it is so again, and everybody takes part; how long that took since the fault was over.
    pub(crate) async fn returns(&self, world: &mut World, struck: Struck) -> Outcome<Duration> {
        loop {
            let moment = now()?;
            let present = Self::over(world, PRESENT).await?;
            let is_back = |present: f64, before: f64| present >= before * NORMAL_SHARE;
            let all = world.journals()?.lent_since(struck.ended).len() == world.borrowers.len();
            if all
                && is_back(present.per_second, self.per_second)
                && is_back(present.redis_per_nonce, self.redis_per_nonce)
            {
                return Ok(Duration::from_micros(moment.saturating_sub(struck.ended)));
            }
            let waited = Duration::from_micros(now()?.saturating_sub(struck.ended));
            demand(
                waited < times::NORMAL_WITHIN,
                format!("after {waited:?} not as before: {present:?} instead of {self:?}"),
            )?;
        }
    }
}

/// How many commands Redis was given that lend, lock or release; nothing when it is not there at all.
fn redis_calls(world: &World) -> Outcome<u64> {
    let Some(redis) = &world.redis else {
        return Ok(0);
    };
    let about = tokio::task::block_in_place(|| redis.try_ask(&["INFO", "commandstats"]))?;
    let calls = about.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let counts = matches!(name, "evalsha" | "eval" | "set");
        counts.then(|| rest.split(',').next()?.parse::<u64>().ok())?
    });
    Ok(calls.sum())
}

fn as_f64(count: usize) -> Outcome<f64> {
    Ok(f64::from(u32::try_from(count)?))
}

/// Whether Redis was left out and came back by itself, where the fault takes it away.
pub(crate) fn returned_by_itself(case: Case, journals: &Journals) -> Outcome<bool> {
    if !case.fault.takes_redis_away() {
        return Ok(false);
    }
    let back =
        |changes: &Vec<(At, bool)>| matches!(changes.as_slice(), [.., (_, false), (_, true)]);
    let all = journals.redis.values().all(back) && !journals.redis.is_empty();
    demand(
        all,
        format!("Redis did not come back: {:?}", journals.redis),
    )?;
    Ok(true)
}

impl Cost {
    /// By what was written down.
    pub(crate) fn of(
        journals: &Journals,
        struck: Struck,
        drained_at: At,
        (normal_after, closed_after): (Duration, Duration),
    ) -> Self {
        let during = |at: At| at >= struck.began && at < drained_at;
        let mut refused_by: BTreeMap<String, usize> = BTreeMap::new();
        let refused = journals.refused.iter().filter(|(at, _)| during(*at));
        for (_, why) in refused {
            *refused_by.entry(why.clone()).or_default() += 1;
        }
        Self {
            pause: longest_pause(journals, struck.began, drained_at),
            refused: refused_by.values().sum(),
            refused_by,
            delayed: delayed(journals, struck, drained_at),
            normal_after,
            closed_after,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let seconds = |time: Duration| (time.as_secs_f64() * 1_000.0).round() / 1_000.0;
        json!({
            "longestPauseS": seconds(self.pause),
            "refused": self.refused,
            "refusedBy": self.refused_by,
            "delayedUntilTimeout": self.delayed,
            "normalAfterS": seconds(self.normal_after),
            "holesClosedAfterS": seconds(self.closed_after),
        })
    }
}

fn longest_pause(journals: &Journals, from: At, to: At) -> Duration {
    let mut moments: Vec<At> = journals.loans().map(|loan| loan.lent_at).collect();
    moments.retain(|at| *at < to);
    moments.sort_unstable();
    let gaps = moments.windows(2).filter(|pair| pair[1] >= from);
    let longest = gaps.map(|pair| pair[1] - pair[0]).max();
    Duration::from_micros(longest.unwrap_or_default())
}

/// How many nonces had to wait for a time-out, and not because their holder forgot them on purpose: some higher
/// nonce was lent that long before the one got its last holder.
fn delayed(journals: &Journals, struck: Struck, drained_at: At) -> usize {
    let timeout = u64::try_from(times::RESERVATION.as_micros()).unwrap_or(u64::MAX);
    let mut spans: BTreeMap<u64, Span> = BTreeMap::new();
    for loan in journals.loans() {
        let span = spans.entry(loan.nonce).or_insert(Span {
            first: loan.lent_at,
            last: loan.lent_at,
            is_forgotten: false,
        });
        span.first = span.first.min(loan.lent_at);
        span.last = span.last.max(loan.lent_at);
        span.is_forgotten |= loan.is_abandoned;
    }
    let mut count = 0;
    // The moment at which any nonce above was first lent: what is only used to fill holes does not count.
    let mut above = drained_at;
    for span in spans.values().rev() {
        let waited = span.last.saturating_sub(above.max(struck.began));
        if waited > timeout && above < drained_at && !span.is_forgotten {
            count += 1;
        }
        above = above.min(span.first);
    }
    count
}

/// When a nonce was lent first and last.
struct Span {
    first: At,
    last: At,
    is_forgotten: bool,
}
