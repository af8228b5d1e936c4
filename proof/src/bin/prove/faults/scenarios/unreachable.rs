//! A keeper without a reachable endpoint, while another node has one; the first release of its lane is lost.

use std::time::{Duration, Instant};

use proof::audit::Expected;
use proof::stats::ms;
use proof::{Outcome, eventually};
use rig::rpc_proxy::{CallFilter, Fault, Rule};
use serde_json::json;

use super::frozen::{keeper_of, two_nodes};
use super::{Run, ScenarioResult};
use crate::faults::world::SOON;

/// Text that only the release of a lane contains.
const RELEASE: &str = "SET expires_at = 0";

pub(super) async fn keeper(run: &Run) -> Outcome<ScenarioResult> {
    let nodes = two_nodes(run).await?;
    let world = &nodes.world;
    let load = world.load("deaf", 6, Duration::from_millis(60));
    world.promised_more(run.size(60)).await?;
    let (keeper, token) = keeper_of(world, 0).await?;
    let proxy = &world.proxies[keeper][0];
    let gone = Fault::Status {
        code: 503,
        retry_after: None,
    };
    let wire = &nodes.database_proxies[keeper];
    wire.lose_request(RELEASE);
    let (cut, began) = (
        proxy.add(Rule::new(CallFilter::all(), gone)),
        Instant::now(),
    );
    let other = eventually("another node keeps the lane", SOON, || async {
        let (now, _) = keeper_of(world, keeper).await?;
        Ok((now != keeper).then_some(now))
    });
    let other = other.await?;
    let changed = began.elapsed();
    proof::ensure(wire.lost() == 1, "nothing was lost that gives a lane back")?;
    // The other node sends the txs that this one had accepted, and both nodes accept new ones.
    world.promised_more(run.size(60)).await?;
    world.until_events("TxConfirmed", run.size(60)).await?;
    let (still, now_token) = keeper_of(world, other).await?;
    proof::ensure(
        still == other,
        format!("the lane returned to a node without a reachable endpoint (token {now_token})"),
    )?;
    proxy.remove(cut);
    world.promised_more(run.size(30)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    Ok(ScenarioResult {
        counted,
        facts: json!({ "changedHandsAfterMs": ms(changed), "tokens": now_token - token }),
    })
}
