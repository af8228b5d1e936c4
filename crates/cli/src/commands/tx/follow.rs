//! Follows one tx stage by stage and reports how it ended.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::Value;

use crate::client::{Client, EventView, TxView, WAIT_MAX, decode};
use crate::failure::Failure;
use crate::output::{Tone, event_line, paint, print_json, print_line};

/// How far a tx has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Stage {
    Accepted,
    Submitted,
    Mined,
    Confirmed,
}

/// Waits for the stages of a tx at a node.
pub(super) struct TxFollower<'c> {
    client: &'c Client,
    started: Instant,
    deadline: Instant,
}

impl<'c> TxFollower<'c> {
    pub(super) fn new(client: &'c Client, timeout: Duration) -> Self {
        let started = Instant::now();
        Self {
            client,
            started,
            deadline: started + timeout,
        }
    }

    /// Waits until the tx reaches a stage or the deadline passes. Prints every event when `print_events` is set.
    pub(super) async fn wait_until(
        &self,
        tx_id: &str,
        last: Stage,
        print_events: bool,
    ) -> Result<Value, Failure> {
        let mut printed = 0;
        let mut stage = Stage::Accepted;
        loop {
            let tx = self.wait_at_node(tx_id, stage).await?;
            if print_events {
                printed = self.print_new_events(tx_id, printed).await?;
            }
            let seen: TxView = decode(&tx)?;
            if seen.is_settled() || reached_stage(&seen) >= last || Instant::now() >= self.deadline
            {
                return Ok(tx);
            }
            stage = match reached_stage(&seen) {
                Stage::Accepted => Stage::Submitted,
                Stage::Submitted => Stage::Mined,
                Stage::Mined | Stage::Confirmed => Stage::Confirmed,
            };
        }
    }

    /// Sends one request that the node holds until the stage is reached.
    async fn wait_at_node(&self, tx_id: &str, stage: Stage) -> Result<Value, Failure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let wait = left.min(WAIT_MAX).max(Duration::from_millis(1));
        let value = stage.to_possible_value().expect("no stage is hidden");
        let timeout = format!("{}ms", wait.as_millis().max(1));
        let query = [("wait", value.get_name().to_owned()), ("timeout", timeout)];
        self.client
            .get_waiting(&format!("/api/v1/tx/{tx_id}"), &query, wait)
            .await
    }

    /// Prints the events after the first `printed`, and returns how many there are now.
    async fn print_new_events(&self, tx_id: &str, printed: usize) -> Result<usize, Failure> {
        let page = self
            .client
            .get(&format!("/api/v1/tx/{tx_id}/events"), &[])
            .await?;
        let events: Vec<EventView> = decode(page.get("events").unwrap_or(&Value::Null))?;
        for event in events.iter().skip(printed) {
            let elapsed = format!("{:>7.2}s", self.started.elapsed().as_secs_f64());
            print_line!("{}  {}", paint(Tone::Quiet, &elapsed), event_line(event));
        }
        Ok(events.len())
    }
}

/// Reports how the tx ended; fails when it has not reached the requested stage.
pub(super) fn report_outcome(tx: &Value, requested: Stage, json: bool) -> Result<(), Failure> {
    if json {
        print_json(tx);
    }
    let tx: TxView = decode(tx)?;
    let why = tx
        .reason
        .as_deref()
        .map_or_else(String::new, |why| format!(": {why}"));
    match tx.state.as_str() {
        "FAILED_FINAL" => Err(Failure::Refused(format!(
            "the tx failed and will not be sent again{why}"
        ))),
        "STUCK" => Err(Failure::Refused(format!("the tx is stuck{why}"))),
        _ if reached_stage(&tx) >= requested => Ok(()),
        state => {
            let waits = tx.waiting_for.as_deref().unwrap_or("unknown");
            Err(Failure::Refused(format!(
                "timeout: the tx is {state} and waits for: {waits}{why}. The node continues with \
                 it; see `lanekeeper tx watch {}`",
                tx.tx_id
            )))
        }
    }
}

fn reached_stage(tx: &TxView) -> Stage {
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
