//! Following one tx, stage by stage, and saying how it ended.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::Value;

use crate::client::{Client, EventView, TxView, WAIT_MAX, view};
use crate::commands::print_json;
use crate::failure::Failure;
use crate::output::{Tone, event_line, paint, say};

/// How far a tx can come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Stage {
    Accepted,
    Submitted,
    Mined,
    Confirmed,
}

/// Follows a tx at a node, stage by stage.
pub(super) struct Follow<'c> {
    pub(super) client: &'c Client,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
}

impl Follow<'_> {
    /// Waits until the tx got so far or time is up, and tells every event as it comes.
    pub(super) async fn until(
        &self,
        tx_id: &str,
        last: Stage,
        tell: bool,
    ) -> Result<Value, Failure> {
        let mut told = 0;
        let mut stage = Stage::Accepted;
        loop {
            let tx = self.wait(tx_id, stage).await?;
            if tell {
                told = self.tell(tx_id, told).await?;
            }
            let seen: TxView = view(&tx)?;
            if seen.is_reconciled() || reached(&seen) >= last || Instant::now() >= self.deadline {
                return Ok(tx);
            }
            stage = match reached(&seen) {
                Stage::Accepted => Stage::Submitted,
                Stage::Submitted => Stage::Mined,
                Stage::Mined | Stage::Confirmed => Stage::Confirmed,
            };
        }
    }

    /// One wait at the node.
    async fn wait(&self, tx_id: &str, stage: Stage) -> Result<Value, Failure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let wait = left.min(WAIT_MAX).max(Duration::from_millis(1));
        let word = match stage {
            Stage::Accepted => "accepted",
            Stage::Submitted => "submitted",
            Stage::Mined => "mined",
            Stage::Confirmed => "confirmed",
        };
        let timeout = format!("{}ms", wait.as_millis().max(1));
        let query = [("wait", word.to_owned()), ("timeout", timeout)];
        self.client
            .get_waiting(&format!("/api/v1/tx/{tx_id}"), &query, wait)
            .await
    }

    /// Prints the events after the first `told`, and says how many there are now.
    async fn tell(&self, tx_id: &str, told: usize) -> Result<usize, Failure> {
        let page = self
            .client
            .get(&format!("/api/v1/tx/{tx_id}/events"), &[])
            .await?;
        let events: Vec<EventView> = view(page.get("events").unwrap_or(&Value::Null))?;
        for event in events.iter().skip(told) {
            let elapsed = format!("{:>7.2}s", self.started.elapsed().as_secs_f64());
            say!("{}  {}", paint(Tone::Quiet, &elapsed), event_line(event));
        }
        Ok(events.len())
    }
}

/// Says how it ended, and fails where the wish was not reached.
pub(super) fn finish(tx: &Value, wished: Stage, json: bool) -> Result<(), Failure> {
    if json {
        print_json(tx);
    }
    let tx: TxView = view(tx)?;
    let why = tx
        .reason
        .as_deref()
        .map_or_else(String::new, |why| format!(": {why}"));
    match tx.state.as_str() {
        "FAILED_FINAL" => Err(Failure::Refused(format!("the tx failed for good{why}"))),
        "STUCK" => Err(Failure::Refused(format!("the tx is stuck{why}"))),
        _ if reached(&tx) >= wished => Ok(()),
        state => {
            let waits = tx.waiting_for.as_deref().unwrap_or("nothing that is known");
            Err(Failure::Refused(format!(
                "time is up: the tx is {state} and waits for: {waits}{why}. It goes on without \
                 you; see `lanekeeper tx watch {}`",
                tx.tx_id
            )))
        }
    }
}

/// How far it has come.
fn reached(tx: &TxView) -> Stage {
    if tx.state == "CONFIRMED" {
        Stage::Confirmed
    } else if tx.receipt.is_some() {
        Stage::Mined
    } else if tx
        .attempts
        .iter()
        .any(|attempt| attempt.first_sent_at.is_some())
    {
        Stage::Submitted
    } else {
        Stage::Accepted
    }
}
