//! How each fault is done, and how it is healed where it does not heal by itself.

use std::sync::Arc;

use proof::cluster::{Signal, aside};
use proof::{Outcome, eventually};
use rig::redis::Redis;

use crate::journal::At;
use crate::plan::{Case, Fault};
use crate::times;
use crate::world::{DESKS, World, now};

/// How often Redis is flushed, and how many are lent in between.
const FLUSHES: usize = 3;
const BETWEEN_FLUSHES: usize = 20;
/// So many are lent that the promoted replica never hears of.
const LAG: usize = 40;

/// When it was done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Struck {
    pub(crate) began: At,
    /// When nothing was broken any more, as far as we are concerned; what has to recover by itself begins here.
    pub(crate) ended: At,
}

/// Breaks it, and mends what would not mend by itself.
pub(crate) async fn strike(world: &mut World, case: Case) -> Outcome<Struck> {
    let began = now()?;
    match case.fault {
        Fault::RedisKilled => {
            redis(world)?.kill();
            redis_is_left_out(world, began).await?;
            in_place(|| redis(world).map(Redis::start_again))?;
        }
        Fault::RedisFrozen => {
            redis(world)?.freeze();
            redis_is_left_out(world, began).await?;
            redis(world)?.thaw();
        }
        Fault::RedisFlushed => {
            for _ in 0..FLUSHES {
                let before = now()?;
                in_place(|| redis(world).map(Redis::flush))?;
                world.lent_more(before, BETWEEN_FLUSHES).await?;
            }
        }
        Fault::RedisEmptied => {
            let server = redis(world)?;
            server.kill();
            in_place(|| server.start_again());
        }
        Fault::RedisFailedOver => fail_over(world).await?,
        Fault::PostgresKilled => {
            let server = Arc::clone(&world.postgres);
            aside(move || server.kill()).await?;
            tokio::time::sleep(times::BROKEN).await;
            let server = Arc::clone(&world.postgres);
            aside(move || server.start_again()).await?;
        }
        Fault::HolderKilled => kill_holder(world).await?,
        Fault::HolderFrozen => {
            world.borrowers[0].signal(Signal::Stop).await?;
            tokio::time::sleep(times::ASLEEP).await;
            world.borrowers[0].signal(Signal::Continue).await?;
        }
        Fault::KeeperKilled => {
            let keeper = keeper_of(world).await?;
            world.nodes[keeper].kill_nine().await?;
            return Ok(Struck {
                began,
                ended: now()?,
            });
        }
        Fault::KeeperFrozen => {
            let keeper = keeper_of(world).await?;
            world.nodes[keeper].signal(Signal::Stop).await?;
            return Ok(Struck {
                began,
                ended: now()?,
            });
        }
    }
    Ok(Struck {
        began,
        ended: now()?,
    })
}

/// Brings back what the others had to do without.
pub(crate) async fn mend(world: &mut World, case: Case) -> Outcome<()> {
    match case.fault {
        Fault::KeeperKilled => {
            for node in &mut world.nodes {
                if !node.is_started() {
                    node.start(&world.scratch)?;
                    node.ready().await?;
                }
            }
        }
        Fault::KeeperFrozen => {
            for node in &world.nodes {
                node.signal(Signal::Continue).await?; // those that run do not mind
            }
        }
        Fault::RedisKilled
        | Fault::RedisFrozen
        | Fault::RedisFlushed
        | Fault::RedisEmptied
        | Fault::RedisFailedOver
        | Fault::PostgresKilled
        | Fault::HolderKilled
        | Fault::HolderFrozen => {}
    }
    Ok(())
}

fn redis(world: &World) -> Outcome<&Redis> {
    world
        .redis
        .as_ref()
        .ok_or_else(|| "this scheme has no Redis".into())
}

/// What blocks for a moment. (The load is in other processes.)
fn in_place<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Until every process has left Redis out, and for as long as it is to be broken at least.
async fn redis_is_left_out(world: &mut World, since: At) -> Outcome<()> {
    let broken_until = tokio::time::Instant::now() + times::BROKEN;
    let count = world.borrowers.len();
    world
        .until("Redis is left out", times::NORMAL_WITHIN, |journals| {
            let left = journals.redis.values().filter(|changes| {
                changes
                    .last()
                    .is_some_and(|(at, is_well)| *at >= since && !is_well)
            });
            left.count() == count
        })
        .await?;
    tokio::time::sleep_until(broken_until).await;
    Ok(())
}

async fn fail_over(world: &mut World) -> Outcome<()> {
    let mut replica = in_place(|| redis(world).map(Redis::replica))?;
    in_place(|| replica.promote());
    let before = now()?;
    world.lent_more(before, LAG).await?;
    let mut old = world.redis.take().ok_or("this scheme has no Redis")?;
    in_place(|| replica.take_over(&mut old));
    world.redis = Some(replica);
    Ok(())
}

/// Kills one that has borrowed at every desk and said nothing yet, and starts it again.
async fn kill_holder(world: &mut World) -> Outcome<()> {
    let began = now()?;
    world.borrowers[0].order("linger").await?;
    world
        .until("every desk lingers", times::NORMAL_WITHIN, |journals| {
            let silent = journals
                .loans()
                .filter(|loan| loan.worker == 0 && loan.lent_at >= began && loan.is_silent());
            silent.count() >= DESKS
        })
        .await?;
    world.borrowers[0].kill_nine().await?;
    world.borrowers[0].start()
}

/// Who keeps the lane, once somebody does.
async fn keeper_of(world: &World) -> Outcome<usize> {
    let what = "somebody keeps the lane";
    eventually(what, times::NORMAL_WITHIN, || world.keeper()).await
}
