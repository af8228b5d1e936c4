//! Which node keeps which lane, as the nodes themselves tell, and what has changed since last time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;

use crate::client::{Client, LaneView, NodeArgs};
use crate::commands::lane;
use crate::output::{Columns, Tone, paint, safe};

/// A node that takes longer than this is passed over: it may have been stopped in its tracks.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Lines that are printed at once.
const LINES_MAX: usize = 20;

/// The keeper and token of a lane; `None` when nobody keeps it.
type Keeper = Option<(String, u64)>;

pub(super) struct Keepers {
    /// Every node can be asked about all lanes.
    urls: Vec<String>,
    seen: BTreeMap<(u64, String), Keeper>,
}

impl Keepers {
    pub(super) fn new(urls: Vec<String>) -> Self {
        Self {
            urls,
            seen: BTreeMap::new(),
        }
    }

    /// All lanes and their keepers at this moment.
    pub(super) fn table(&mut self, lanes: &[LaneView], rows_max: usize) -> String {
        self.compare(lanes);
        let mut table = Columns::new(&["lane", "keeper", "token#"]);
        for lane in lanes.iter().take(rows_max) {
            let (keeper, token) = match keeper_of(lane) {
                Some((node, token)) => (node, token.to_string()),
                None => ("nobody until its first request".to_owned(), "-".to_owned()),
            };
            table.row(vec![
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

    /// One line for each lane whose keeper changed.
    pub(super) async fn changes(&mut self) -> Vec<String> {
        let lanes = self.ask().await;
        let mut lines = self.compare(&lanes);
        let more = lines.len().saturating_sub(LINES_MAX);
        lines.truncate(LINES_MAX);
        if more > 0 {
            lines.push(format!("… and {more} lanes more"));
        }
        lines
    }

    fn compare(&mut self, lanes: &[LaneView]) -> Vec<String> {
        let mut lines = Vec::new();
        for lane in lanes {
            let now = keeper_of(lane);
            let key = (lane.chain_id, lane.signer.clone());
            let before = self.seen.insert(key, now.clone()).flatten();
            if before != now {
                let time = time::OffsetDateTime::now_utc().time();
                let clock = format!(
                    "{:02}:{:02}:{:02}",
                    time.hour(),
                    time.minute(),
                    time.second()
                );
                let lane = safe(&lane.signer);
                let told = told(before.as_ref(), now.as_ref());
                lines.push(format!("{} {lane} {told}", paint(Tone::Quiet, &clock)));
            }
        }
        lines
    }

    /// The lanes as the first node tells them that answers; none when nobody does.
    pub(super) async fn ask(&self) -> Vec<LaneView> {
        for url in &self.urls {
            let client = Client::new(&NodeArgs {
                url: url.clone(),
                key: std::env::var("LANEKEEPER_KEY").ok(),
                json: true,
            });
            let Ok(client) = client else { continue };
            let Ok(Ok(lanes)) = timeout(ANSWER_WITHIN, lane::views(&client)).await else {
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

fn told(before: Option<&(String, u64)>, now: Option<&(String, u64)>) -> String {
    match (before, now) {
        (_, None) => "is kept by nobody: the lease ran out or was given back".to_owned(),
        (Some((old, _)), Some((node, token))) if old != node => {
            format!("went from {} to {} (token {token})", safe(old), safe(node))
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
    fn a_change_is_told_once() {
        let mut keepers = Keepers::new(Vec::new());
        let kept = |node: &str, token: u64| {
            lane(json!({ "node": node, "token": token, "expiresAt": "2026-01-01T00:00:00.000Z" }))
        };
        let mut told = |lane: LaneView| -> Option<String> {
            let line = keepers.compare(&[lane]).pop()?;
            line.split_once("0xa ").map(|(_, told)| told.to_owned())
        };
        assert_eq!(told(lane(json!(null))), None);
        assert_eq!(
            told(kept("a", 1)).as_deref(),
            Some("is kept by a (token 1)")
        );
        assert_eq!(told(kept("a", 1)), None);
        let moved = told(kept("b", 2));
        assert_eq!(moved.as_deref(), Some("went from a to b (token 2)"));
        assert!(told(lane(json!(null))).is_some_and(|line| line.contains("nobody")));
    }
}
