//! Sends and questions that get no answer, or are turned away.

use proof::audit::Expected;
use proof::{Outcome, demand, eventually};
use rig::proxy::Then;
use rig::rpc_proxy::{Calls, Fault, RpcProxy, Rule};
use serde_json::json;

use super::{Run, Shown};
use crate::settings::Tuning;
use crate::world::{SOON, World};

/// How many requests each wave of a storm turns away.
const TURNED_AWAY: u64 = 15;

/// 30 % of the answers to sends never come, all the time: the node has the bytes, and nobody says so.
pub(super) async fn lost_answers(run: &Run) -> Outcome<Shown> {
    let tuning = Tuning {
        lanes: 2,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.make, tuning).await?;
    let world = world.serve().await?;
    let lose = Fault::LoseAnswer(Then::Cut);
    world
        .proxy(0)
        .add(Rule::new(Calls::sends(), lose).chance(0.3));
    let load = world.load("lost", 6, run.rest(50));
    world.promised_more(run.size(240)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    let (lost, sends) = (
        world.proxy(0).faults(),
        world.proxy(0).calls_of("eth_sendRawTransaction"),
    );
    demand(lost >= 5, format!("only {lost} answers were lost"))?;
    Ok(Shown {
        counted,
        facts: json!({ "lostRequests": lost, "sends": sends }),
    })
}

/// Waves of 429 (with and without `Retry-After`), 503, 502 and 500 on whatever is asked, and a moment in
/// which nothing at all gets through.
pub(super) async fn storms(run: &Run) -> Outcome<Shown> {
    let tuning = Tuning {
        lanes: 2,
        ..Tuning::default()
    };
    let world = World::single(&run.name(), run.make, tuning).await?;
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
            .add(Rule::new(Calls::all(), fault).chance(chance));
        let struck = until_struck(world.proxy(0), TURNED_AWAY, code).await;
        world.proxy(0).remove(rule);
        struck?;
    }
    world.promised_more(run.size(60)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    Ok(Shown {
        counted,
        facts: json!({ "turnedAway": world.proxy(0).faults() }),
    })
}

async fn until_struck(proxy: &RpcProxy, count: u64, code: u16) -> Outcome<()> {
    let goal = proxy.faults() + count;
    let what = format!("{count} requests are turned away with {code}");
    eventually(&what, SOON, || async {
        Ok((proxy.faults() >= goal).then_some(()))
    })
    .await
}
