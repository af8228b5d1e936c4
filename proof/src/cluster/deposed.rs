//! A keeper that loses its lane without noticing: its renewals do not arrive, while everything else does. So
//! it goes on writing until another has taken the lane, and then it must be the fence that refuses it.

use std::time::{Duration, Instant};

use rig::postgres::{Database, Postgres};
use rig::proxy::TcpProxy;

use super::Cluster;
use crate::load::Load;
use crate::{Outcome, eventually};

/// What every renewal has in its text, and no other statement.
const RENEWAL: &str = "renewed AS (";

/// How long a keeper under load may take to write once more.
const REFUSED_WITHIN: Duration = Duration::from_secs(20);

/// How many keepers are deposed until the gate itself has refused one.
const TRIES_MAX: usize = 5;

/// A wire of its own to the database for each of so many nodes, and where it leads to.
pub fn wires(server: &Postgres, database: &Database, nodes: usize) -> (Vec<TcpProxy>, Vec<String>) {
    let wires: Vec<TcpProxy> = (0..nodes)
        .map(|_| TcpProxy::in_front_of(server.port()))
        .collect();
    let stores = wires.iter().map(|wire| database.url_through(wire.port()));
    let stores = stores.collect();
    (wires, stores)
}

/// How a keeper was deposed.
#[derive(Clone, Copy, Debug)]
pub struct Deposed {
    /// How many of its batches the gate refused.
    pub by_gate: u64,
    /// How long it took until the next keeper accepted.
    pub after: Duration,
}

impl Cluster {
    /// Holds the renewals of a lane's keeper until another accepts for the lane and the gate has refused a
    /// batch of the former one. The load is on this lane, which is the `of_load`th of its plan.
    ///
    /// A batch may come while the next keeper just takes the lane: then the gate finds the row held, lets
    /// nothing in, and it is the question what became of it that is refused. So it is done once more.
    pub async fn depose(
        &self,
        wires: &[TcpProxy],
        load: &Load,
        of_load: usize,
        lane: usize,
    ) -> Outcome<Deposed> {
        for _ in 0..TRIES_MAX {
            let deposed = self.depose_once(wires, load, of_load, lane).await?;
            if deposed.by_gate > 0 {
                return Ok(deposed);
            }
        }
        Err(format!("{TRIES_MAX} keepers were deposed, and the gate refused none of them").into())
    }

    async fn depose_once(
        &self,
        wires: &[TcpProxy],
        load: &Load,
        of_load: usize,
        lane: usize,
    ) -> Outcome<Deposed> {
        let keeper = self.some_keeper(0, lane).await?;
        let wire = &wires[keeper.node];
        let before = self.refused(keeper.node).await?;
        let (from, began) = (load.len(), Instant::now());
        wire.hold(RENEWAL);
        let refused = async {
            let next = keeper.token + 1;
            let taken = self.accepted_under(load, from, of_load, next).await?;
            let what = format!("node {} is refused", keeper.node);
            let now = eventually(&what, REFUSED_WITHIN, || async {
                let now = self.refused(keeper.node).await?;
                Ok((now != before).then_some(now))
            });
            Outcome::Ok(Deposed {
                by_gate: now.await?.by_gate - before.by_gate,
                after: taken.answered.duration_since(began),
            })
        };
        let refused = refused.await;
        // Whatever happened, it must not stay cut off.
        wire.heal();
        refused
    }

    /// How often this node was refused because the lane was another's by then.
    async fn refused(&self, node: usize) -> Outcome<Refusals> {
        let count = async |op: &str| {
            let name = "lanekeeper_lease_fenced_total";
            let label = format!("op=\"{op}\"");
            let count = self.nodes[node].metric(name, &label).await?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a counter is a small whole number"
            )]
            let count = count as u64;
            Outcome::Ok(count)
        };
        Ok(Refusals {
            by_gate: count("gate").await?,
            when_asked: count("resolve").await?,
        })
    }
}

/// Refusals of a node up to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusals {
    by_gate: u64,
    /// It asked what had become of a batch whose row was held.
    when_asked: u64,
}
