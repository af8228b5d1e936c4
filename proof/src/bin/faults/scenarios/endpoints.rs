//! Endpoints of which not all are what they should be.

use proof::audit::Expected;
use proof::network::Network;
use proof::{Outcome, demand};
use rig::rpc_proxy::{Death, RpcProxy, View};
use serde_json::json;

use super::{Run, Shown};
use crate::settings::Tuning;
use crate::world::World;

/// How far one of them is behind.
const BEHIND: u64 = 20;

/// The chain that one of them serves.
const OTHER_CHAIN: u64 = 1;

/// The preferred endpoint is dead, the next one far behind; later the dead one is back and the good one
/// dies.
pub(super) async fn dead_and_lagging(run: &Run) -> Outcome<Shown> {
    let tuning = Tuning {
        endpoints: 3,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.make, tuning).await?;
    world.net.mine(BEHIND + 5).await?; // there must be blocks to be behind
    world.proxy(0).die(Death::Refuses);
    world.proxy(1).show(View::Behind(BEHIND));
    let world = world.serve().await?;
    let load = world.load("three", 4, run.rest(60));
    world.promised_more(run.size(100)).await?;
    world.until_events("TxConfirmed", 1).await?;
    world.proxy(0).heal();
    world.proxy(2).die(Death::Resets);
    world.promised_more(run.size(100)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    let reorged = world.events("TxReorged").await?.len();
    demand(
        reorged == 0,
        format!("a lagging endpoint took {reorged} txs back"),
    )?;
    let requests: Vec<u64> = world.proxies[0].iter().map(RpcProxy::requests).collect();
    Ok(Shown {
        counted,
        facts: json!({ "requestsPerEndpoint": requests }),
    })
}

/// The preferred endpoint serves another chain, where the same accounts have money too.
pub(super) async fn other_chain(run: &Run) -> Outcome<Shown> {
    let tuning = Tuning {
        endpoints: 2,
        send_to: 2,
        ..Tuning::default()
    };
    let mut world = World::single(&run.name(), run.make, tuning).await?;
    let elsewhere = world.other_chain_first(run).await?;
    let world = world.serve().await?;
    let load = world.load("other", 4, run.rest(60));
    world.promised_more(run.size(120)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    let strayed = world.proxy(0).calls_of("eth_sendRawTransaction");
    let nonce = elsewhere.chain.nonce(&world.lanes[0]).await?;
    demand(
        strayed == 0 && nonce == world.first_nonces[0],
        format!("{strayed} sends went to the other chain, whose nonce is {nonce}"),
    )?;
    Ok(Shown {
        counted,
        facts: json!({ "callsToTheOtherChain": world.proxy(0).requests() }),
    })
}

impl World {
    /// Puts an endpoint of another chain in front of all.
    async fn other_chain_first(&mut self, run: &Run) -> Outcome<Network> {
        let elsewhere = self.another_net(run.make).await?;
        let proxy = RpcProxy::in_front_of(elsewhere.url(), 9);
        proxy.claim_chain_id(OTHER_CHAIN);
        self.replace_endpoint(0, proxy)?;
        Ok(elsewhere)
    }
}
