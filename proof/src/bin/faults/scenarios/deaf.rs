//! A keeper that hears none of its endpoints, while another node would; and the first time that it gives its lane back
//! is lost on its way.

use std::time::{Duration, Instant};

use proof::audit::Expected;
use proof::stats::ms;
use proof::{Outcome, eventually};
use rig::rpc_proxy::{Calls, Fault, Rule};
use serde_json::json;

use super::frozen::{keeper_of, two_nodes};
use super::{Run, Shown};
use crate::world::SOON;

/// What giving a lane back has in its text, and no other statement.
const RELEASE: &str = "SET expires_at = 0";

pub(super) async fn keeper(run: &Run) -> Outcome<Shown> {
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
    let wire = &nodes.wires[keeper];
    wire.lose_request(RELEASE);
    let (cut, began) = (proxy.add(Rule::new(Calls::all(), gone)), Instant::now());
    let other = eventually("another node keeps the lane", SOON, || async {
        let (now, _) = keeper_of(world, keeper).await?;
        Ok((now != keeper).then_some(now))
    });
    let other = other.await?;
    let changed = began.elapsed();
    proof::demand(wire.lost() == 1, "nothing was lost that gives a lane back")?;
    // What the deaf one had accepted is sent by the other, and new ones are taken at both.
    world.promised_more(run.size(60)).await?;
    world.until_events("TxConfirmed", run.size(60)).await?;
    let (still, now_token) = keeper_of(world, other).await?;
    proof::demand(
        still == other,
        format!("the lane went back to a node that hears nothing (token {now_token})"),
    )?;
    proxy.remove(cut);
    world.promised_more(run.size(30)).await?;
    load.stop().await?;
    let counted = world.audit(&Expected::default()).await?;
    Ok(Shown {
        counted,
        facts: json!({ "changedHandsAfterMs": ms(changed), "tokens": now_token - token }),
    })
}
