//! A generation's state in Redis, and the scripts on it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::{Script, ScriptInvocation};
use domain::{Holder, LaneKey, Nonce, Timestamp};
use uuid::Uuid;

use crate::redis::{Away, Link, Redis};

static PUSH: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../redis/scripts/push.lua")));
static RESERVE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../redis/scripts/reserve.lua")));
static DRAIN: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../redis/scripts/drain.lua")));
static WRITTEN: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../redis/scripts/written.lua")));

/// Scripts count in doubles, which are exact up to here.
pub(super) const SCRIPT_MAX: u64 = 1 << 52;

/// So far below the chain's nonce nothing is ever lent again.
const FAR_BELOW: u64 = 1_024;

/// How many loans are read in one call.
const LOANS_MAX: usize = 500;

/// What Redis says of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said<T> {
    Ok(T),
    /// It has nothing (more) to hand out; nothing to give back, because it is in use.
    Empty,
    /// Some of its state is lost, so all of it is.
    Lost,
    /// The server became another one.
    Elsewhere,
}

/// A nonce that Redis issued and reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Issued {
    pub(super) nonce: Nonce,
    pub(super) stint: i64,
    pub(super) left: u64,
}

/// A loan as Redis has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReservationTerms {
    pub(super) nonce: Nonce,
    pub(super) holder: Holder,
    pub(super) stint: i64,
    pub(super) expires_at: Timestamp,
}

impl ReservationTerms {
    fn text(&self) -> String {
        format!("{} {} {}", self.holder.0, self.stint, self.expires_at.0)
    }

    fn parse(nonce: &str, text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        Some(Self {
            nonce: Nonce(nonce.parse().ok()?),
            holder: Holder(words.next()?.parse().ok()?),
            stint: words.next()?.parse().ok()?,
            expires_at: Timestamp(words.next()?.parse().ok()?),
        })
    }
}

/// The keys of one generation.
pub(super) struct State {
    redis: Arc<Redis>,
    keys: [String; 4],
}

impl State {
    pub(super) fn of(redis: &Arc<Redis>, lane: LaneKey, token: Uuid) -> Self {
        let key = |purpose: &str| redis.key(lane, &format!("{token}:{purpose}"));
        Self {
            redis: Arc::clone(redis),
            keys: [key("state"), key("free"), key("stints"), key("lent")],
        }
    }

    /// Gives Redis nonces to hand out; each counts once per stint, however often it is given. Answers with those that
    /// it had before and has no more: what the database still keeps of them, under the same stint, was drained.
    pub(super) async fn push(
        &self,
        link: &Link,
        is_new: bool,
        at_least: Nonce,
        nonces: &[(Nonce, i64)],
    ) -> Result<Said<Vec<(Nonce, i64)>>, Away> {
        let mut script = self.on(&PUSH);
        script.arg(link.replication_id()).arg(u8::from(is_new));
        script.arg(at_least.0.saturating_sub(FAR_BELOW));
        for (nonce, stint) in nonces {
            script.arg(nonce.0).arg(*stint);
        }
        let said: Vec<i64> = self.redis.run(link, &script).await?;
        Ok(match said.as_slice() {
            [1, gone @ ..] => Said::Ok(pairs(gone)),
            [-1] => Said::Elsewhere,
            _ => Said::Lost,
        })
    }

    /// Issues and reserves the smallest nonce.
    pub(super) async fn reserve(
        &self,
        link: &Link,
        at_least: Nonce,
        holder: Holder,
        expires_at: Timestamp,
    ) -> Result<Said<Issued>, Away> {
        let mut script = self.on(&RESERVE);
        script.arg(link.replication_id()).arg(at_least.0);
        script.arg(holder.0.to_string()).arg(expires_at.0);
        let said: Vec<i64> = self.redis.run(link, &script).await?;
        let number = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(match said.as_slice() {
            [1, nonce, stint, left] => Said::Ok(Issued {
                nonce: Nonce(number(*nonce)),
                stint: *stint,
                left: number(*left),
            }),
            [2] => Said::Empty,
            [-1] => Said::Elsewhere,
            _ => Said::Lost,
        })
    }

    /// Takes out what is not handed out, if nobody has borrowed for so long; with zero, whoever has. Each with its
    /// stint.
    pub(super) async fn drain(
        &self,
        link: &Link,
        idle: Duration,
    ) -> Result<Said<Vec<(Nonce, i64)>>, Away> {
        let mut script = self.on(&DRAIN);
        let idle = u64::try_from(idle.as_millis()).unwrap_or(SCRIPT_MAX);
        script.arg(link.replication_id()).arg(idle);
        let said: Vec<i64> = self.redis.run(link, &script).await?;
        Ok(match said.as_slice() {
            [1, unused @ ..] => Said::Ok(pairs(unused)),
            [2] => Said::Empty,
            [-1] => Said::Elsewhere,
            _ => Said::Lost,
        })
    }

    /// Some of the loans that are not written down yet.
    pub(super) async fn loans(&self, link: &Link) -> Result<Vec<ReservationTerms>, Away> {
        let mut scan = ::redis::cmd("HSCAN");
        scan.arg(&self.keys[3]).arg(0).arg("COUNT").arg(LOANS_MAX);
        let (_, fields): (u64, Vec<(String, String)>) = self.redis.command(link, &scan).await?;
        let loans = fields
            .iter()
            .filter_map(|(nonce, text)| ReservationTerms::parse(nonce, text));
        Ok(loans.collect())
    }

    fn on<'a>(&self, script: &'a Script) -> ScriptInvocation<'a> {
        let mut on = script.prepare_invoke();
        for key in &self.keys {
            on.key(key);
        }
        on
    }
}

/// Nonces as a script lists them, each with its stint.
fn pairs(numbers: &[i64]) -> Vec<(Nonce, i64)> {
    let (pairs, _) = numbers.as_chunks::<2>();
    let pairs = pairs
        .iter()
        .filter_map(|[nonce, stint]| Some((Nonce(u64::try_from(*nonce).ok()?), *stint)));
    pairs.collect()
}

/// Forgets loans that are written down: all of a batch in one call, whatever the number of lanes in it.
pub(super) async fn forget_written(
    redis: &Arc<Redis>,
    link: &Link,
    loans: &BTreeMap<(LaneKey, Uuid), Vec<ReservationTerms>>,
) -> Result<(), Away> {
    let mut script = WRITTEN.prepare_invoke();
    for ((place, (lane, token)), loans) in (1_u64..).zip(loans.keys()).zip(loans.values()) {
        let [state, _, _, lent] = State::of(redis, *lane, *token).keys;
        script.key(state).key(lent);
        for loan in loans {
            script.arg(place).arg(loan.nonce.0).arg(loan.text());
        }
    }
    let _gone: i64 = redis.run(link, &script).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_reads_as_it_was_written() {
        let loan = ReservationTerms {
            nonce: Nonce(7),
            holder: Holder(Uuid::from_u128(9)),
            stint: 3,
            expires_at: Timestamp(1_800_000_000_000),
        };
        assert_eq!(ReservationTerms::parse("7", &loan.text()), Some(loan));
        assert_eq!(ReservationTerms::parse("7", "what is this"), None);
    }
}
