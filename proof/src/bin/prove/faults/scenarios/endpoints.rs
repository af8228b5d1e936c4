//! Failing and wrong endpoints.

use proof::audit::Expected;
use proof::network::Network;
use proof::{Outcome, ensure};
use rig::rpc_proxy::{OutageKind, RpcProxy, View};
use serde_json::json;

use super::{Run, ScenarioResult};
use crate::faults::settings::Tuning;
use crate::faults::world::World;

const LAG_BLOCKS: u64 = 20;

/// The chain id of the wrong endpoint.
const OTHER_CHAIN: u64 = 1;

/// The preferred endpoint is down, the next one lags far behind; later the first one returns and the healthy one
/// goes down.
pub(super) async fn dead_and_lagging(run: &Run) -> Outcome<ScenarioResult> {
    let tuning = Tuning {
        endpoints: 3,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.node_kind, tuning).await?;
    world.net.mine(LAG_BLOCKS + 5).await?; // the lagging endpoint needs blocks to hide
    world.proxy(0).take_down(OutageKind::Refuses);
    world.proxy(1).show(View::Behind(LAG_BLOCKS));
    let world = world.serve().await?;
    let load = world.load("three", 4, run.rest(60));
    world.promised_more(run.size(100)).await?;
    world.until_events("TxConfirmed", 1).await?;
    world.proxy(0).heal();
    world.proxy(2).take_down(OutageKind::Resets);
    world.promised_more(run.size(100)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    let reorged = world.events("TxReorged").await?.len();
    ensure(
        reorged == 0,
        format!("a lagging endpoint reorged {reorged} txs out"),
    )?;
    let requests: Vec<u64> = world.proxies[0].iter().map(RpcProxy::requests).collect();
    Ok(ScenarioResult {
        counted,
        facts: json!({ "requestsPerEndpoint": requests }),
    })
}

/// The preferred endpoint serves another chain, where the same accounts have funds too.
pub(super) async fn other_chain(run: &Run) -> Outcome<ScenarioResult> {
    let tuning = Tuning {
        endpoints: 2,
        send_to: 2,
        ..Tuning::default()
    };
    let mut world = World::single(&run.name(), run.node_kind, tuning).await?;
    let elsewhere = world.other_chain_first(run).await?;
    let world = world.serve().await?;
    let load = world.load("other", 4, run.rest(60));
    world.promised_more(run.size(120)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    let strayed = world.proxy(0).calls_of("eth_sendRawTransaction");
    let nonce = elsewhere.chain.nonce(&world.lanes[0]).await?;
    ensure(
        strayed == 0 && nonce == world.first_nonces[0],
        format!("{strayed} sends went to the other chain, whose nonce is {nonce}"),
    )?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "callsToTheOtherChain": world.proxy(0).requests() }),
    })
}

impl World {
    /// Inserts an endpoint of another chain in front of all.
    async fn other_chain_first(&mut self, run: &Run) -> Outcome<Network> {
        let elsewhere = self.another_net(run.node_kind).await?;
        let proxy = RpcProxy::in_front_of(elsewhere.url(), 9);
        proxy.claim_chain_id(OTHER_CHAIN);
        self.replace_endpoint(0, proxy)?;
        Ok(elsewhere)
    }
}
