//! A keeper that loses its lane without noticing: its renewals are held, while everything else passes. So it keeps
//! writing after a takeover, and the fence must refuse it.

use std::time::{Duration, Instant};

use rig::postgres::{Database, Postgres};
use rig::proxy::TcpProxy;

use super::Cluster;
use crate::load::Load;
use crate::{Outcome, eventually};

/// Text that only renewals contain.
const RENEWAL: &str = "renewed AS (";

/// A keeper under load writes again well before this.
const REFUSED_WITHIN: Duration = Duration::from_secs(20);

/// How many takeovers are tried until the gate itself has refused a batch.
const TRIES_MAX: usize = 5;

/// A database proxy for each node, and its URL.
pub fn database_proxies(
    server: &Postgres,
    database: &Database,
    nodes: usize,
) -> (Vec<TcpProxy>, Vec<String>) {
    let database_proxies: Vec<TcpProxy> = (0..nodes)
        .map(|_| TcpProxy::in_front_of(server.port()))
        .collect();
    let stores = database_proxies
        .iter()
        .map(|wire| database.url_through(wire.port()));
    let stores = stores.collect();
    (database_proxies, stores)
}

/// The result of fencing a keeper.
#[derive(Clone, Copy, Debug)]
pub struct FencedKeeper {
    /// Batches that the gate refused.
    pub by_gate: u64,
    /// Time until the next keeper accepted.
    pub after: Duration,
}

impl Cluster {
    /// Holds the renewals of a lane's keeper until another node accepts for the lane and the gate has refused a
    /// batch of the previous keeper. The load is on this lane, at index `of_load` of its plan.
    ///
    /// A batch may arrive during the takeover: then the gate finds the row locked and refuses nothing, and the
    /// later outcome query is refused instead. In that case the takeover is repeated.
    pub async fn fence_keeper(
        &self,
        database_proxies: &[TcpProxy],
        load: &Load,
        of_load: usize,
        lane: usize,
    ) -> Outcome<FencedKeeper> {
        for _ in 0..TRIES_MAX {
            let fenced_keeper = self
                .fence_keeper_once(database_proxies, load, of_load, lane)
                .await?;
            if fenced_keeper.by_gate > 0 {
                return Ok(fenced_keeper);
            }
        }
        Err(
            format!("{TRIES_MAX} keepers lost their lane, and the gate refused none of them")
                .into(),
        )
    }

    async fn fence_keeper_once(
        &self,
        database_proxies: &[TcpProxy],
        load: &Load,
        of_load: usize,
        lane: usize,
    ) -> Outcome<FencedKeeper> {
        let keeper = self.wait_keeper(0, lane).await?;
        let wire = &database_proxies[keeper.node];
        let before = self.refused(keeper.node).await?;
        let (from, began) = (load.len(), Instant::now());
        wire.hold(RENEWAL);
        let refused = async {
            let next = keeper.token + 1;
            let taken = self
                .wait_accepted_with_token(load, from, of_load, next)
                .await?;
            let what = format!("node {} is refused", keeper.node);
            let now = eventually(&what, REFUSED_WITHIN, || async {
                let now = self.refused(keeper.node).await?;
                Ok((now != before).then_some(now))
            });
            Outcome::Ok(FencedKeeper {
                by_gate: now.await?.by_gate - before.by_gate,
                after: taken.answered_at.duration_since(began),
            })
        };
        let refused = refused.await;
        // The proxy must be healed in any case.
        wire.heal();
        refused
    }

    /// How often this node was refused because it no longer owned the lane.
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

/// Refusals of a node so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusals {
    by_gate: u64,
    /// Outcome queries of a batch whose row was locked.
    when_asked: u64,
}
