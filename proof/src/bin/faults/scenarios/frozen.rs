//! A keeper that stands still between its claim and its send, while the next keeper goes on.

use std::sync::Arc;
use std::time::Duration;

use proof::audit::Expected;
use proof::cluster::{Signal, aside, postgres, wires};
use proof::load::Load;
use proof::{Outcome, demand, eventually};
use rig::postgres::{Database, Postgres, majors};
use rig::proxy::TcpProxy;
use rig::rpc_proxy::{Calls, Fault, RpcProxy, Rule, RuleId};
use serde_json::{Value, json};

use super::{Run, Shown};
use crate::settings::Tuning;
use crate::world::{SOON, World};

/// Longer than a lease: held bytes arrive when another keeps the lane.
const HELD_FOR: Duration = Duration::from_secs(6);

const SEND: &str = "eth_sendRawTransaction";

/// What the keeper's claims meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// They left the process and are on their way for longer than its lease.
    OnTheirWay,
    /// They never left: it is about to try again.
    Unsent,
}

pub(super) async fn keeper(run: &Run) -> Outcome<Shown> {
    let nodes = two_nodes(run).await?;
    let world = &nodes.world;
    let load = world.load("frozen", 6, Duration::from_millis(60));
    world.promised_more(run.size(60)).await?;
    let mut freezes = Vec::new();
    for way in [Way::OnTheirWay, Way::Unsent] {
        freezes.push(freeze(world, &load, way).await?);
        world.promised_more(run.size(60)).await?;
    }
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    Ok(Shown {
        counted,
        facts: json!({ "freezes": freezes }),
    })
}

/// Two nodes on one database, each with its own way to it and to the chain.
pub(super) struct TwoNodes {
    pub(super) world: World,
    pub(super) wires: Vec<TcpProxy>,
    _database: Database,
    _server: Arc<Postgres>,
}

pub(super) async fn two_nodes(run: &Run) -> Outcome<TwoNodes> {
    let major = majors().last().copied().ok_or("no PostgreSQL")?;
    let server = postgres(major).await?;
    let of_database = Arc::clone(&server);
    let database = aside(move || of_database.database("faults")).await?;
    let (wires, stores) = wires(&server, &database, 2);
    let tuning = Tuning::default();
    let world = World::start(&run.name(), run.make, tuning, &stores).await?;
    Ok(TwoNodes {
        world: world.serve().await?,
        wires,
        _database: database,
        _server: server,
    })
}

/// Freezes the keeper with claims that are not at the node, until another has gone on.
async fn freeze(world: &World, load: &Load, way: Way) -> Outcome<Value> {
    let (keeper, token) = keeper_of(world, 0).await?;
    let (node, proxy) = (&world.nodes[keeper], &world.proxies[keeper][0]);
    let held = hold(proxy, way).await?;
    node.signal(Signal::Stop).await?;
    proxy.remove(held);
    let answers = load.len();
    let taken = eventually("the next keeper accepts", SOON, || async {
        Ok(load.find(answers, |reply| reply.said.has_nonce_under(token + 1)))
    })
    .await;
    let went_on = world.promised_more(20).await;
    let sends = proxy.calls_of(SEND);
    // Whatever happened, it must not stay frozen.
    node.signal(Signal::Continue).await?;
    taken?;
    went_on?;
    node.ready().await?;
    world.promised_more(20).await?;
    let sends = proxy.calls_of(SEND) - sends;
    let (now_keeper, now_token) = keeper_of(world, keeper).await?;
    demand(now_token > token, format!("the token is still {now_token}"))?;
    // It may have got the lane back in order, and then it sends again.
    demand(
        sends == 0 || now_keeper == keeper,
        format!("{sends} sends under a token that was over ({way:?})"),
    )?;
    Ok(json!({ "way": format!("{way:?}"), "token": now_token, "sendsOfTheDeposed": sends }))
}

/// Keeps what it claims from the node, and waits until there is some.
async fn hold(proxy: &RpcProxy, way: Way) -> Outcome<RuleId> {
    let fault = match way {
        Way::OnTheirWay => Fault::Delay(HELD_FOR),
        Way::Unsent => Fault::Status {
            code: 503,
            retry_after: None,
        },
    };
    let before = proxy.faults();
    let rule = proxy.add(Rule::new(Calls::sends(), fault));
    eventually("claims are held", SOON, || async {
        Ok((proxy.faults() >= before + 2).then_some(()))
    })
    .await?;
    Ok(rule)
}

/// Who keeps the lane, and under which token.
pub(super) async fn keeper_of(world: &World, asked: usize) -> Outcome<(usize, u64)> {
    eventually("somebody keeps the lane", SOON, || async {
        let lane = world.lane(asked).await?;
        let name = lane["keeper"]["node"].as_str().unwrap_or_default();
        let node = world.nodes.iter().position(|node| node.name == name);
        Ok(node.zip(lane["keeper"]["token"].as_u64()))
    })
    .await
}
