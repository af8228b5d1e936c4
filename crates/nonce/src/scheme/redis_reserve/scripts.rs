//! A generation's state in Redis, and the scripts on it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::{Script, ScriptInvocation};
use domain::{Holder, LaneKey, Nonce, Timestamp};
use uuid::Uuid;

use crate::redis::{Redis, RedisConnection, RedisUnavailable, SCRIPT_INTEGER_MAX};

static PUSH: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../redis/scripts/push.lua")));
static RESERVE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../redis/scripts/reserve.lua")));
static DRAIN: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../redis/scripts/drain.lua")));
static FORGET_RECORDED: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../redis/scripts/forget_recorded.lua")));

/// So far below the chain's nonce nothing is ever reserved again.
const FAR_BELOW: u64 = 1_024;

/// Reservations that are read per call.
const UNRECORDED_PAGE_MAX: usize = 500;

/// A script's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScriptAnswer<T> {
    Ok(T),
    /// Nothing to issue; for a drain: the generation is in use.
    Empty,
    /// A part of the generation's state is lost, so all of it is.
    StateLost,
    /// The connection leads to another server or data set by now.
    ServerChanged,
}

/// A nonce that Redis allocated and reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IssuedNonce {
    pub(super) nonce: Nonce,
    pub(super) allocation_id: i64,
    pub(super) left: u64,
}

/// A reservation in Redis that may not be recorded in the ledger yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnrecordedReservation {
    pub(super) nonce: Nonce,
    pub(super) holder: Holder,
    pub(super) allocation_id: i64,
    pub(super) expires_at: Timestamp,
}

impl UnrecordedReservation {
    fn encode(&self) -> String {
        format!(
            "{} {} {}",
            self.holder.0, self.allocation_id, self.expires_at.0
        )
    }

    fn parse(nonce: &str, text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        Some(Self {
            nonce: Nonce(nonce.parse().ok()?),
            holder: Holder(words.next()?.parse().ok()?),
            allocation_id: words.next()?.parse().ok()?,
            expires_at: Timestamp(words.next()?.parse().ok()?),
        })
    }
}

/// The Redis keys of one generation.
pub(super) struct GenerationKeys {
    redis: Arc<Redis>,
    keys: [String; 4],
}

impl GenerationKeys {
    pub(super) fn of(redis: &Arc<Redis>, lane: LaneKey, token: Uuid) -> Self {
        let key = |purpose: &str| redis.key(lane, &format!("{token}:{purpose}"));
        Self {
            redis: Arc::clone(redis),
            keys: [
                key("state"),
                key("free"),
                key("allocations"),
                key("reserved"),
            ],
        }
    }

    /// Pushes nonces to Redis; each counts once per allocation id, however often it is pushed. Returns those that Redis
    /// had before and no longer has: the ones that the ledger still has in this block, under the same id, were drained.
    pub(super) async fn push(
        &self,
        connection: &RedisConnection,
        is_new: bool,
        at_least: Nonce,
        nonces: &[(Nonce, i64)],
    ) -> Result<ScriptAnswer<Vec<(Nonce, i64)>>, RedisUnavailable> {
        let mut script = self.on(&PUSH);
        script
            .arg(connection.replication_id())
            .arg(u8::from(is_new));
        script.arg(at_least.0.saturating_sub(FAR_BELOW));
        for (nonce, allocation_id) in nonces {
            script.arg(nonce.0).arg(*allocation_id);
        }
        let answer: Vec<i64> = self.redis.run(connection, &script).await?;
        Ok(match answer.as_slice() {
            [1, gone @ ..] => ScriptAnswer::Ok(pairs(gone)),
            [-1] => ScriptAnswer::ServerChanged,
            _ => ScriptAnswer::StateLost,
        })
    }

    /// Allocates and reserves the smallest nonce.
    pub(super) async fn reserve(
        &self,
        connection: &RedisConnection,
        at_least: Nonce,
        holder: Holder,
        expires_at: Timestamp,
    ) -> Result<ScriptAnswer<IssuedNonce>, RedisUnavailable> {
        let mut script = self.on(&RESERVE);
        script.arg(connection.replication_id()).arg(at_least.0);
        script.arg(holder.0.to_string()).arg(expires_at.0);
        let answer: Vec<i64> = self.redis.run(connection, &script).await?;
        let number = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(match answer.as_slice() {
            [1, nonce, allocation_id, left] => ScriptAnswer::Ok(IssuedNonce {
                nonce: Nonce(number(*nonce)),
                allocation_id: *allocation_id,
                left: number(*left),
            }),
            [2] => ScriptAnswer::Empty,
            [-1] => ScriptAnswer::ServerChanged,
            _ => ScriptAnswer::StateLost,
        })
    }

    /// Removes the unissued nonces if the generation was idle for so long (zero: in any case), with their allocation
    /// ids.
    pub(super) async fn drain(
        &self,
        connection: &RedisConnection,
        idle: Duration,
    ) -> Result<ScriptAnswer<Vec<(Nonce, i64)>>, RedisUnavailable> {
        let mut script = self.on(&DRAIN);
        let idle = u64::try_from(idle.as_millis()).unwrap_or(SCRIPT_INTEGER_MAX);
        script.arg(connection.replication_id()).arg(idle);
        let answer: Vec<i64> = self.redis.run(connection, &script).await?;
        Ok(match answer.as_slice() {
            [1, unused @ ..] => ScriptAnswer::Ok(pairs(unused)),
            [2] => ScriptAnswer::Empty,
            [-1] => ScriptAnswer::ServerChanged,
            _ => ScriptAnswer::StateLost,
        })
    }

    /// One page of the reservations that are not recorded yet.
    pub(super) async fn list_unrecorded(
        &self,
        connection: &RedisConnection,
    ) -> Result<Vec<UnrecordedReservation>, RedisUnavailable> {
        let mut scan = ::redis::cmd("HSCAN");
        scan.arg(&self.keys[3])
            .arg(0)
            .arg("COUNT")
            .arg(UNRECORDED_PAGE_MAX);
        let (_, fields): (u64, Vec<(String, String)>) =
            self.redis.command(connection, &scan).await?;
        let reservations = fields
            .iter()
            .filter_map(|(nonce, text)| UnrecordedReservation::parse(nonce, text));
        Ok(reservations.collect())
    }

    fn on<'a>(&self, script: &'a Script) -> ScriptInvocation<'a> {
        let mut on = script.prepare_invoke();
        for key in &self.keys {
            on.key(key);
        }
        on
    }
}

/// Pairs of nonce and allocation id from a script's answer.
fn pairs(numbers: &[i64]) -> Vec<(Nonce, i64)> {
    let (pairs, _) = numbers.as_chunks::<2>();
    let pairs = pairs.iter().filter_map(|[nonce, allocation_id]| {
        Some((Nonce(u64::try_from(*nonce).ok()?), *allocation_id))
    });
    pairs.collect()
}

/// Removes recorded reservations: those of a whole batch in one call, for any number of lanes.
pub(super) async fn forget_recorded(
    redis: &Arc<Redis>,
    connection: &RedisConnection,
    reservations: &BTreeMap<(LaneKey, Uuid), Vec<UnrecordedReservation>>,
) -> Result<(), RedisUnavailable> {
    let mut script = FORGET_RECORDED.prepare_invoke();
    for ((place, (lane, token)), reservations) in (1_u64..)
        .zip(reservations.keys())
        .zip(reservations.values())
    {
        let [state, _, _, reservation] = GenerationKeys::of(redis, *lane, *token).keys;
        script.key(state).key(reservation);
        for reservation in reservations {
            script
                .arg(place)
                .arg(reservation.nonce.0)
                .arg(reservation.encode());
        }
    }
    let _gone: i64 = redis.run(connection, &script).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrecorded_reservation_round_trips() {
        let reservation = UnrecordedReservation {
            nonce: Nonce(7),
            holder: Holder(Uuid::from_u128(9)),
            allocation_id: 3,
            expires_at: Timestamp(1_800_000_000_000),
        };
        assert_eq!(
            UnrecordedReservation::parse("7", &reservation.encode()),
            Some(reservation)
        );
        assert_eq!(UnrecordedReservation::parse("7", "not a reservation"), None);
    }
}
