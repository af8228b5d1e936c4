//! The cost of a fault according to the journals, and whether the normal state is restored.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proof::{Outcome, ensure};
use serde_json::{Value, json};

use crate::nonce_faults::injection::Injection;
use crate::nonce_faults::journal::{Journals, MicrosTime};
use crate::nonce_faults::plan::Case;
use crate::nonce_faults::times;
use crate::nonce_faults::world::{World, now};

/// The durations of the baseline and of later measurements.
const BEFORE: Duration = Duration::from_secs(2);
const PRESENT: Duration = Duration::from_millis(500);
/// Normal is at least this share of the baseline's rate and of its Redis calls per nonce.
const NORMAL_SHARE: f64 = 0.5;

/// The baseline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    per_second: f64,
    redis_per_nonce: f64,
}

/// The cost of a case.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    /// The longest time without any allocation.
    pub(crate) pause: Duration,
    pub(crate) refused: usize,
    pub(crate) refused_by: BTreeMap<String, usize>,
    /// Nonces that waited for a timeout before they could be used.
    pub(crate) delayed: usize,
    /// Time from the end of the fault to the normal state.
    pub(crate) normal_after: Duration,
    /// Time from the end of the load until the last gap was closed.
    pub(crate) closed_after: Duration,
}

impl Pace {
    /// Measures from now on.
    pub(crate) async fn measure(world: &mut World) -> Outcome<Self> {
        let pace = Self::over(world, BEFORE).await?;
        ensure(pace.per_second > 1.0, "hardly any nonce is allocated")?;
        Ok(pace)
    }

    async fn over(world: &mut World, time: Duration) -> Outcome<Self> {
        let (began, redis_calls_made) = (now()?, redis_calls(world)?);
        let started = Instant::now();
        tokio::time::sleep(time).await;
        let seconds = started.elapsed().as_secs_f64();
        let allocated: usize = world.journals()?.allocated_since(began).values().sum();
        let redis_calls_made = redis_calls(world)?.saturating_sub(redis_calls_made);
        let (allocated, redis_calls_made) = (
            as_f64(allocated)?,
            as_f64(usize::try_from(redis_calls_made)?)?,
        );
        Ok(Self {
            per_second: allocated / seconds,
            redis_per_nonce: redis_calls_made / allocated.max(1.0),
        })
    }

    /// Waits for the normal state with all holders; returns the time since the end of the fault.
    pub(crate) async fn returns(
        &self,
        world: &mut World,
        injected: Injection,
    ) -> Outcome<Duration> {
        loop {
            let moment = now()?;
            let present = Self::over(world, PRESENT).await?;
            let is_back = |present: f64, before: f64| present >= before * NORMAL_SHARE;
            let all =
                world.journals()?.allocated_since(injected.ended).len() == world.holders.len();
            if all
                && is_back(present.per_second, self.per_second)
                && is_back(present.redis_per_nonce, self.redis_per_nonce)
            {
                return Ok(Duration::from_micros(moment.saturating_sub(injected.ended)));
            }
            let waited = Duration::from_micros(now()?.saturating_sub(injected.ended));
            ensure(
                waited < times::NORMAL_WITHIN,
                format!("after {waited:?} not as before: {present:?} instead of {self:?}"),
            )?;
        }
    }
}

/// Redis commands that allocate, lock or release; `None` without Redis.
fn redis_calls(world: &World) -> Outcome<u64> {
    let Some(redis) = &world.redis else {
        return Ok(0);
    };
    let about = tokio::task::block_in_place(|| redis.try_run_command(&["INFO", "commandstats"]))?;
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

/// Whether Redis was bypassed and used again automatically, where the fault removes it.
pub(crate) fn returned_by_itself(case: Case, journals: &Journals) -> Outcome<bool> {
    if !case.fault.takes_redis_away() {
        return Ok(false);
    }
    let back = |changes: &Vec<(MicrosTime, bool)>| {
        matches!(changes.as_slice(), [.., (_, false), (_, true)])
    };
    let all = journals.redis.values().all(back) && !journals.redis.is_empty();
    ensure(
        all,
        format!("Redis is not used again: {:?}", journals.redis),
    )?;
    Ok(true)
}

impl Cost {
    /// From the journals.
    pub(crate) fn of(
        journals: &Journals,
        injected: Injection,
        drained_at: MicrosTime,
        (normal_after, closed_after): (Duration, Duration),
    ) -> Self {
        let during = |at: MicrosTime| at >= injected.began && at < drained_at;
        let mut refused_by: BTreeMap<String, usize> = BTreeMap::new();
        let refused = journals.refused.iter().filter(|(at, _)| during(*at));
        for (_, why) in refused {
            *refused_by.entry(why.clone()).or_default() += 1;
        }
        Self {
            pause: longest_pause(journals, injected.began, drained_at),
            refused: refused_by.values().sum(),
            refused_by,
            delayed: delayed(journals, injected, drained_at),
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

fn longest_pause(journals: &Journals, from: MicrosTime, to: MicrosTime) -> Duration {
    let mut moments: Vec<MicrosTime> = journals
        .reservations()
        .map(|reservation| reservation.allocated_at)
        .collect();
    moments.retain(|at| *at < to);
    moments.sort_unstable();
    let gaps = moments.windows(2).filter(|pair| pair[1] >= from);
    let longest = gaps.map(|pair| pair[1] - pair[0]).max();
    Duration::from_micros(longest.unwrap_or_default())
}

/// Nonces that waited for a timeout, except those that their holder abandoned on purpose: a higher nonce was
/// allocated that long before the last holder got this one.
fn delayed(journals: &Journals, injected: Injection, drained_at: MicrosTime) -> usize {
    let timeout = u64::try_from(times::RESERVATION.as_micros()).unwrap_or(u64::MAX);
    let mut spans: BTreeMap<u64, Span> = BTreeMap::new();
    for reservation in journals.reservations() {
        let span = spans.entry(reservation.nonce).or_insert(Span {
            first: reservation.allocated_at,
            last: reservation.allocated_at,
            is_forgotten: false,
        });
        span.first = span.first.min(reservation.allocated_at);
        span.last = span.last.max(reservation.allocated_at);
        span.is_forgotten |= reservation.is_abandoned;
    }
    let mut count = 0;
    // When any higher nonce was first allocated; nonces that only fill gaps do not count.
    let mut above = drained_at;
    for span in spans.values().rev() {
        let waited = span.last.saturating_sub(above.max(injected.began));
        if waited > timeout && above < drained_at && !span.is_forgotten {
            count += 1;
        }
        above = above.min(span.first);
    }
    count
}

/// First and last allocation of a nonce.
struct Span {
    first: MicrosTime,
    last: MicrosTime,
    is_forgotten: bool,
}
