//! Polls the keepers of all lanes and reports changes.

use std::collections::BTreeMap;
use std::time::Duration;

use cli::client::{Client, LaneView, NodeArgs};
use cli::commands::lane;
use cli::output::{Columns, Tone, paint, safe};
use tokio::time::timeout;

/// A node that takes longer is skipped: its process may be suspended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The most lines per poll.
const LINES_MAX: usize = 20;

/// The keeper and token of a lane; `None` without a keeper.
type Keeper = Option<(String, u64)>;

pub(super) struct KeeperWatch {
    urls: Vec<String>,
    known: BTreeMap<(u64, String), Keeper>,
}

impl KeeperWatch {
    pub(super) fn new(urls: Vec<String>) -> Self {
        Self {
            urls,
            known: BTreeMap::new(),
        }
    }

    /// A table of the lanes and their keepers.
    pub(super) fn table(&mut self, lanes: &[LaneView], rows_max: usize) -> String {
        self.compare(lanes);
        let mut table = Columns::new(&["lane", "keeper", "token#"]);
        for lane in lanes.iter().take(rows_max) {
            let (keeper, token) = match keeper_of(lane) {
                Some((node, token)) => (node, token.to_string()),
                None => ("none until its first request".to_owned(), "-".to_owned()),
            };
            table.add_row(vec![
                (Tone::Plain, lane.signer.clone()),
                (Tone::Strong, keeper),
                (Tone::Plain, token),
            ]);
        }
        match lanes.len().saturating_sub(rows_max) {
            0 => table.to_string(),
            more => format!("{table}\n… and {more} more"),
        }
    }

    /// Returns one line for each lane whose keeper has changed.
    pub(super) async fn poll_changes(&mut self) -> Vec<String> {
        let lanes = self.fetch_lanes().await;
        let mut lines = self.compare(&lanes);
        let more = lines.len().saturating_sub(LINES_MAX);
        lines.truncate(LINES_MAX);
        if more > 0 {
            lines.push(format!("… and {more} more lanes"));
        }
        lines
    }

    fn compare(&mut self, lanes: &[LaneView]) -> Vec<String> {
        let mut lines = Vec::new();
        for lane in lanes {
            let now = keeper_of(lane);
            let key = (lane.chain_id, lane.signer.clone());
            let before = self.known.insert(key, now.clone()).flatten();
            if before != now {
                let time = time::OffsetDateTime::now_utc().time();
                let clock = format!(
                    "{:02}:{:02}:{:02}",
                    time.hour(),
                    time.minute(),
                    time.second()
                );
                let lane = safe(&lane.signer);
                let change = describe_change(before.as_ref(), now.as_ref());
                lines.push(format!("{} {lane} {change}", paint(Tone::Quiet, &clock)));
            }
        }
        lines
    }

    /// Fetches all lanes from the first node that answers; none if no node answers.
    pub(super) async fn fetch_lanes(&self) -> Vec<LaneView> {
        for url in &self.urls {
            let client = Client::new(&NodeArgs {
                url: url.clone(),
                key: std::env::var("LANEKEEPER_KEY").ok(),
                json: true,
            });
            let Ok(client) = client else { continue };
            let Ok(Ok(lanes)) = timeout(ANSWER_TIMEOUT, lane::fetch_lane_views(&client)).await
            else {
                continue;
            };
            return lanes;
        }
        Vec::new()
    }
}

fn keeper_of(lane: &LaneView) -> Keeper {
    let keeper = lane.keeper.as_ref()?;
    Some((keeper.node.clone(), keeper.token))
}

fn describe_change(before: Option<&(String, u64)>, now: Option<&(String, u64)>) -> String {
    match (before, now) {
        (_, None) => "has no keeper: the lease expired or was released".to_owned(),
        (Some((old, _)), Some((node, token))) if old != node => {
            format!("moved from {} to {} (token {token})", safe(old), safe(node))
        }
        (_, Some((node, token))) => format!("is kept by {} (token {token})", safe(node)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lane(keeper: serde_json::Value) -> LaneView {
        serde_json::from_value(json!({
            "chainId": 1, "signer": "0xa", "keeper": keeper, "nextNonce": 0, "chainNonce": null,
            "inFlight": 0, "queued": 0, "gaps": [], "paused": false, "waitingFor": null,
        }))
        .unwrap()
    }

    #[test]
    fn keeper_change_is_reported_once() {
        let mut keepers = KeeperWatch::new(Vec::new());
        let kept = |node: &str, token: u64| {
            lane(json!({ "node": node, "token": token, "expiresAt": "2026-01-01T00:00:00.000Z" }))
        };
        let mut change = |lane: LaneView| -> Option<String> {
            let line = keepers.compare(&[lane]).pop()?;
            line.split_once("0xa ").map(|(_, change)| change.to_owned())
        };
        assert_eq!(change(lane(json!(null))), None);
        assert_eq!(
            change(kept("a", 1)).as_deref(),
            Some("is kept by a (token 1)")
        );
        assert_eq!(change(kept("a", 1)), None);
        let moved = change(kept("b", 2));
        assert_eq!(moved.as_deref(), Some("moved from a to b (token 2)"));
        assert!(change(lane(json!(null))).is_some_and(|line| line.contains("no keeper")));
    }
}
