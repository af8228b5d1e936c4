//! A keeper that freezes between its claim and its send, while the next keeper continues.

use std::sync::Arc;
use std::time::Duration;

use proof::audit::Expected;
use proof::cluster::{Signal, database_proxies, postgres, run_blocking};
use proof::load::Load;
use proof::{Outcome, ensure, eventually};
use rig::postgres::{Database, Postgres, majors};
use rig::proxy::TcpProxy;
use rig::rpc_proxy::{CallFilter, Fault, RpcProxy, Rule, RuleId};
use serde_json::{Value, json};

use super::{Run, ScenarioResult};
use crate::faults::settings::Tuning;
use crate::faults::world::{SOON, World};

/// Longer than a lease: held bytes arrive after the takeover.
const HELD_FOR: Duration = Duration::from_secs(6);

const SEND: &str = "eth_sendRawTransaction";

/// What happens to the keeper's claimed sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreezeMethod {
    /// Sent, but delayed for longer than the lease.
    OnTheirWay,
    /// Not sent: the keeper is about to retry.
    Unsent,
}

pub(super) async fn keeper(run: &Run) -> Outcome<ScenarioResult> {
    let nodes = two_nodes(run).await?;
    let world = &nodes.world;
    let load = world.load("frozen", 6, Duration::from_millis(60));
    world.promised_more(run.size(60)).await?;
    let mut freezes = Vec::new();
    for way in [FreezeMethod::OnTheirWay, FreezeMethod::Unsent] {
        freezes.push(freeze(world, &load, way).await?);
        world.promised_more(run.size(60)).await?;
    }
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "freezes": freezes }),
    })
}

/// Two nodes on one database, each with its own proxies to database and chain.
pub(super) struct TwoNodes {
    pub(super) world: World,
    pub(super) database_proxies: Vec<TcpProxy>,
    _database: Database,
    _server: Arc<Postgres>,
}

pub(super) async fn two_nodes(run: &Run) -> Outcome<TwoNodes> {
    let major = majors().last().copied().ok_or("no PostgreSQL")?;
    let server = postgres(major).await?;
    let of_database = Arc::clone(&server);
    let database = run_blocking(move || of_database.database("faults")).await?;
    let (database_proxies, stores) = database_proxies(&server, &database, 2);
    let tuning = Tuning::default();
    let world = World::start(&run.name(), run.node_kind, tuning, &stores).await?;
    Ok(TwoNodes {
        world: world.serve().await?,
        database_proxies,
        _database: database,
        _server: server,
    })
}

/// Freezes the keeper with claims that are not at the node, until another keeper has continued.
async fn freeze(world: &World, load: &Load, way: FreezeMethod) -> Outcome<Value> {
    let (keeper, token) = keeper_of(world, 0).await?;
    let (node, proxy) = (&world.nodes[keeper], &world.proxies[keeper][0]);
    let held = hold(proxy, way).await?;
    node.signal(Signal::Stop).await?;
    proxy.remove(held);
    let answers = load.len();
    let taken = eventually("the next keeper accepts", SOON, || async {
        Ok(load.find(answers, |reply| reply.outcome.has_nonce_under(token + 1)))
    })
    .await;
    let continued = world.promised_more(20).await;
    let sends = proxy.calls_of(SEND);
    // It must be resumed in any case.
    node.signal(Signal::Continue).await?;
    taken?;
    continued?;
    node.ready().await?;
    world.promised_more(20).await?;
    let sends = proxy.calls_of(SEND) - sends;
    let (now_keeper, now_token) = keeper_of(world, keeper).await?;
    ensure(now_token > token, format!("the token is still {now_token}"))?;
    // It may have acquired the lane again regularly, and then it sends again.
    ensure(
        sends == 0 || now_keeper == keeper,
        format!("{sends} sends under a token that was over ({way:?})"),
    )?;
    Ok(json!({ "way": format!("{way:?}"), "token": now_token, "sendsOfTheDeposed": sends }))
}

/// Holds its claimed sends, and waits until there are some.
async fn hold(proxy: &RpcProxy, way: FreezeMethod) -> Outcome<RuleId> {
    let fault = match way {
        FreezeMethod::OnTheirWay => Fault::Delay(HELD_FOR),
        FreezeMethod::Unsent => Fault::Status {
            code: 503,
            retry_after: None,
        },
    };
    let before = proxy.faults();
    let rule = proxy.add(Rule::new(CallFilter::sends(), fault));
    eventually("claims are held", SOON, || async {
        Ok((proxy.faults() >= before + 2).then_some(()))
    })
    .await?;
    Ok(rule)
}

/// The keeper of the lane and its token.
pub(super) async fn keeper_of(world: &World, node: usize) -> Outcome<(usize, u64)> {
    eventually("the lane has a keeper", SOON, || async {
        let lane = world.lane(node).await?;
        let name = lane["keeper"]["node"].as_str().unwrap_or_default();
        let node = world.nodes.iter().position(|node| node.name == name);
        Ok(node.zip(lane["keeper"]["token"].as_u64()))
    })
    .await
}
