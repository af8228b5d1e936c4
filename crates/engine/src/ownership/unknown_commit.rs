//! What became of a commit whose outcome is unknown: only a regrant can prove it.

use domain::{GrantId, LaneKey, LeaseGrant};

use crate::core::Core;
use crate::ports::{RegrantOutcome, StoreError};
use crate::shard::Message;

/// Finds out whether a commit with an unknown outcome landed. A regrant waits for the old batch or kills it; only
/// then is the number of the last batch proof. A plain read is none: the commit may still land after it.
pub(crate) async fn resolve_unknown_commit(core: &Core, lane: LaneKey, lease_grant: LeaseGrant) {
    let mut tries = 0;
    let grant = core.ports.clock.grant_id();
    let mut lease_grants = vec![lease_grant];
    let outcome = loop {
        match regrant_any(core, &lease_grants, grant).await {
            Ok(outcome) => break outcome,
            Err(error) => {
                tracing::warn!(%lane, %error, "the outcome of a commit is still unknown; retrying");
                core.back_off(&mut tries).await;
                // The regrant itself may have landed although it failed here.
                lease_grants = vec![
                    LeaseGrant {
                        grant,
                        ..lease_grant
                    },
                    lease_grant,
                ];
            }
        }
    };
    core.send_to_shard(lane, Message::UnknownCommitResolved { lane, outcome })
        .await;
}

async fn regrant_any(
    core: &Core,
    lease_grants: &[LeaseGrant],
    grant: GrantId,
) -> Result<RegrantOutcome, StoreError> {
    for lease_grant in lease_grants {
        let outcome = core.ports.store.regrant(*lease_grant, grant).await?;
        if matches!(outcome, RegrantOutcome::Held { .. }) {
            return Ok(outcome);
        }
    }
    Ok(RegrantOutcome::Fenced)
}
