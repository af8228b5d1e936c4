//! Calls without a response or with an HTTP error.

use proof::audit::Expected;
use proof::{Outcome, ensure, eventually};
use rig::proxy::AfterLoss;
use rig::rpc_proxy::{CallFilter, Fault, RpcProxy, Rule};
use serde_json::json;

use super::{Run, ScenarioResult};
use crate::faults::settings::Tuning;
use crate::faults::world::{SOON, World};

/// Refused requests per wave.
const REFUSED_REQUESTS: u64 = 15;

/// 30 % of the responses to sends are lost, continuously: the node has the bytes.
pub(super) async fn lost_answers(run: &Run) -> Outcome<ScenarioResult> {
    let tuning = Tuning {
        lanes: 2,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.node_kind, tuning).await?;
    let world = world.serve().await?;
    let lose = Fault::LoseAnswer(AfterLoss::Cut);
    world
        .proxy(0)
        .add(Rule::new(CallFilter::sends(), lose).chance(0.3));
    let load = world.load("lost", 6, run.rest(50));
    world.promised_more(run.size(240)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    let (lost, sends) = (
        world.proxy(0).faults(),
        world.proxy(0).calls_of("eth_sendRawTransaction"),
    );
    ensure(lost >= 5, format!("only {lost} answers were lost"))?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "lostRequests": lost, "sends": sends }),
    })
}

/// Waves of 429 (with and without `Retry-After`), 503, 502 and 500 on every call, and a time in which nothing
/// passes.
pub(super) async fn storms(run: &Run) -> Outcome<ScenarioResult> {
    let tuning = Tuning {
        lanes: 2,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.node_kind, tuning).await?;
    let world = world.serve().await?;
    let load = world.load("storm", 4, run.rest(100));
    world.promised_more(run.size(60)).await?;
    let waves = [
        (429, None, 0.6),
        (429, Some(1), 0.6),
        (503, None, 0.6),
        (502, None, 0.6),
        (500, None, 1.0),
    ];
    for (code, retry_after, chance) in waves {
        let fault = Fault::Status { code, retry_after };
        let rule = world
            .proxy(0)
            .add(Rule::new(CallFilter::all(), fault).chance(chance));
        let struck = wait_until_applied(world.proxy(0), REFUSED_REQUESTS, code).await;
        world.proxy(0).remove(rule);
        struck?;
    }
    world.promised_more(run.size(60)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "turnedAway": world.proxy(0).faults() }),
    })
}

async fn wait_until_applied(proxy: &RpcProxy, count: u64, code: u16) -> Outcome<()> {
    let goal = proxy.faults() + count;
    let what = format!("{count} requests are turned away with {code}");
    eventually(&what, SOON, || async {
        Ok((proxy.faults() >= goal).then_some(()))
    })
    .await
}
