//! Injection of each fault, and its repair where needed.

use std::sync::Arc;

use proof::cluster::{Signal, run_blocking};
use proof::{Outcome, eventually};
use rig::redis::Redis;

use crate::nonce_faults::journal::MicrosTime;
use crate::nonce_faults::plan::{Case, Fault};
use crate::nonce_faults::times;
use crate::nonce_faults::world::{WORKERS, World, now};

/// Flushes of Redis, and allocations in between.
const FLUSHES: usize = 3;
const BETWEEN_FLUSHES: usize = 20;
/// Allocations that the promoted replica does not have.
const LAG: usize = 40;

/// The time of the fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injection {
    pub(crate) began: MicrosTime,
    /// When the fault ended; automatic recovery starts here.
    pub(crate) ended: MicrosTime,
}

/// Injects the fault, and repairs what does not recover by itself.
pub(crate) async fn inject_fault(world: &mut World, case: Case) -> Outcome<Injection> {
    let began = now()?;
    match case.fault {
        Fault::RedisKilled => {
            redis(world)?.kill();
            can_run_without_redis(world, began).await?;
            in_place(|| redis(world).map(Redis::start_again))?;
        }
        Fault::RedisFrozen => {
            redis(world)?.freeze();
            can_run_without_redis(world, began).await?;
            redis(world)?.thaw();
        }
        Fault::RedisFlushed => {
            for _ in 0..FLUSHES {
                let before = now()?;
                in_place(|| redis(world).map(Redis::flush))?;
                world
                    .wait_for_more_allocations(before, BETWEEN_FLUSHES)
                    .await?;
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
            run_blocking(move || server.kill()).await?;
            tokio::time::sleep(times::BROKEN).await;
            let server = Arc::clone(&world.postgres);
            run_blocking(move || server.start_again()).await?;
        }
        Fault::HolderKilled => kill_holder(world).await?,
        Fault::HolderFrozen => {
            world.holders[0].signal(Signal::Stop).await?;
            tokio::time::sleep(times::ASLEEP).await;
            world.holders[0].signal(Signal::Continue).await?;
        }
        Fault::KeeperKilled => {
            let keeper = keeper_of(world).await?;
            world.nodes[keeper].kill_nine().await?;
            return Ok(Injection {
                began,
                ended: now()?,
            });
        }
        Fault::KeeperFrozen => {
            let keeper = keeper_of(world).await?;
            world.nodes[keeper].signal(Signal::Stop).await?;
            return Ok(Injection {
                began,
                ended: now()?,
            });
        }
    }
    Ok(Injection {
        began,
        ended: now()?,
    })
}

/// Restores what the fault removed permanently.
pub(crate) async fn repair(world: &mut World, case: Case) -> Outcome<()> {
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
                node.signal(Signal::Continue).await?; // no effect on running ones
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

/// Runs a short blocking call. (The load is in other processes.)
fn in_place<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Waits until every process runs without Redis, and at least for the fault's duration.
async fn can_run_without_redis(world: &mut World, since: MicrosTime) -> Outcome<()> {
    let broken_until = tokio::time::Instant::now() + times::BROKEN;
    let count = world.holders.len();
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
    world.wait_for_more_allocations(before, LAG).await?;
    let mut old = world.redis.take().ok_or("this scheme has no Redis")?;
    in_place(|| replica.take_over(&mut old));
    world.redis = Some(replica);
    Ok(())
}

/// Kills a holder whose workers all hold an unannounced nonce, and restarts it.
async fn kill_holder(world: &mut World) -> Outcome<()> {
    let began = now()?;
    world.holders[0].order("linger").await?;
    world
        .until("every desk lingers", times::NORMAL_WITHIN, |journals| {
            let silent = journals.reservations().filter(|reservation| {
                reservation.worker == 0
                    && reservation.allocated_at >= began
                    && reservation.is_silent()
            });
            silent.count() >= WORKERS
        })
        .await?;
    world.holders[0].kill_nine().await?;
    world.holders[0].start()
}

/// Waits until the lane has a keeper.
async fn keeper_of(world: &World) -> Outcome<usize> {
    let what = "the lane has a keeper";
    eventually(what, times::NORMAL_WITHIN, || world.keeper()).await
}
