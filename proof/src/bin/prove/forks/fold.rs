//! The checker: reads the event feed like a client, folds each tx's confirmations into a list, and refuses every
//! event that contradicts earlier ones.

use std::collections::BTreeMap;

use alloy_primitives::B256;
use proof::manual_chain::{Head, hash_of};
use proof::{Api, Outcome, ensure};
use serde_json::Value;

/// The state of a tx according to the feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportedState {
    /// Its block.
    pub(crate) block: Option<(u64, B256)>,
    /// Its block and the blocks above, once there are some.
    pub(crate) list: Vec<Head>,
    pub(crate) is_final: bool,
    /// Whether it waits for a decision.
    pub(crate) is_stuck: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    /// `TxConfirmations` and `TxConfirmed`: lists that were checked.
    pub(crate) lists: u64,
    /// Of these, lists with `newFork`.
    pub(crate) new_forks: u64,
    pub(crate) reorged: u64,
    /// Of these, reorgs of a final result.
    pub(crate) after_final: u64,
    pub(crate) stuck: u64,
    pub(crate) requeued: u64,
}

/// The reader of a feed.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    after: Option<String>,
    seqs: BTreeMap<String, u64>,
    txs: BTreeMap<String, ReportedState>,
    pub(crate) counts: Counts,
}

impl Fold {
    /// The reported state of a tx.
    pub(crate) fn reported_state(&self, tx_id: &str) -> ReportedState {
        self.txs.get(tx_id).cloned().unwrap_or_default()
    }

    /// Reads to the end of the feed.
    pub(crate) async fn read(&mut self, api: &Api) -> Outcome<()> {
        loop {
            let after = self.after.as_ref();
            let after = after.map_or_else(String::new, |after| format!("&after={after}"));
            let path = format!("/api/v1/events?limit=1000{after}");
            let (status, page) = api.get(&path).await?;
            ensure(status.is_success(), format!("{path}: {status} {page}"))?;
            for event in page["events"].as_array().into_iter().flatten() {
                self.apply_event(event)
                    .map_err(|error| format!("{error}\n  in {event}"))?;
            }
            let next = page["next"].as_str().map(str::to_owned);
            if next.is_none() || next == self.after {
                return Ok(());
            }
            self.after = next;
        }
    }

    fn apply_event(&mut self, event: &Value) -> Outcome<()> {
        self.counts.events += 1;
        let signer = event["signer"].as_str().ok_or("no signer")?.to_owned();
        let seq = event["seq"].as_u64().ok_or("no seq")?;
        let last = self.seqs.insert(signer, seq).unwrap_or(0);
        ensure(seq == last + 1, format!("event {seq} follows event {last}"))?;
        let Some(tx_id) = event["txId"].as_str() else {
            return Ok(());
        };
        let reported = self.txs.entry(tx_id.to_owned()).or_default();
        let (data, counts) = (&event["data"], &mut self.counts);
        match event["type"].as_str().ok_or("no type")? {
            "TxReceiptUpdated" => reported.receipt(data),
            "TxConfirmations" => reported.confirmations(data, counts),
            "TxConfirmed" => reported.confirmed(data, counts),
            "TxReorged" => reported.reorged(data, counts),
            "TxStuck" => {
                reported.is_stuck = true;
                counts.stuck += 1;
                Ok(())
            }
            "TxRequeued" => {
                counts.requeued += 1;
                ensure(reported.block.is_none(), "requeued while it is in a block")
            }
            "TxFailed" => Err("it failed".into()),
            _ => Ok(()),
        }
    }
}

impl ReportedState {
    fn receipt(&mut self, data: &Value) -> Outcome<()> {
        let block = block_of(data)?;
        ensure(
            self.block.is_none_or(|reported| reported == block),
            format!("{:?} was reported and not reorged out", self.block),
        )?;
        self.block = Some(block);
        self.is_stuck = false;
        Ok(())
    }

    /// An increment, or a complete list with `newFork`.
    fn confirmations(&mut self, data: &Value, counts: &mut Counts) -> Outcome<()> {
        let (list, new_fork) = self.list_of(data, counts)?;
        let is_increment = !self.list.is_empty() && !new_fork;
        if is_increment {
            let first = list.first().ok_or("nothing is added")?;
            let top = self.list.last().map(|head| head.hash);
            ensure(
                Some(first.parent) == top,
                format!(
                    "its parent is not {top:?}, the last reported header, and newFork is false"
                ),
            )?;
            self.list.extend(list);
        } else {
            ensure(starts_at(&list, self.block), "the list is not complete")?;
            let extends_reported = list.starts_with(&self.list);
            ensure(
                new_fork != extends_reported,
                format!("newFork is {new_fork}, reported before: {:?}", self.list),
            )?;
            self.list = list;
        }
        let count = data["count"].as_u64().ok_or("no count")?;
        let above = self.list.len() as u64 - 1;
        ensure(
            count == above,
            format!("{above} headers are above it, not {count}"),
        )
    }

    /// Always the complete list.
    fn confirmed(&mut self, data: &Value, counts: &mut Counts) -> Outcome<()> {
        ensure(!self.is_final, "it was already reported as final")?;
        let (list, new_fork) = self.list_of(data, counts)?;
        ensure(starts_at(&list, self.block), "the list is not complete")?;
        let extends_reported = list.starts_with(&self.list);
        ensure(
            new_fork != extends_reported,
            format!("newFork is {new_fork}, reported before: {:?}", self.list),
        )?;
        self.list = list;
        self.is_final = true;
        Ok(())
    }

    fn reorged(&mut self, data: &Value, counts: &mut Counts) -> Outcome<()> {
        counts.reorged += 1;
        counts.after_final += u64::from(data["afterFinal"] == true);
        ensure(
            self.block == Some(block_of(data)?),
            format!("{:?} is the reported block", self.block),
        )?;
        ensure(data["newFork"] == true, "newFork is not true")?;
        ensure(
            data["afterFinal"] == self.is_final,
            format!("reported as final: {}", self.is_final),
        )?;
        *self = Self {
            is_stuck: self.is_stuck,
            ..Self::default()
        };
        Ok(())
    }

    /// The parent-linked list of an event, for the reported block.
    fn list_of(&self, data: &Value, counts: &mut Counts) -> Outcome<(Vec<Head>, bool)> {
        ensure(
            self.block == Some(block_of(data)?),
            format!("{:?} is the reported block", self.block),
        )?;
        let headers = data["confirmations"].as_array().ok_or("no list")?;
        let list: Vec<Head> = headers.iter().map(Head::read).collect::<Outcome<_>>()?;
        ensure(is_linked(&list), "the list is not linked by parents")?;
        let new_fork = data["newFork"].as_bool().ok_or("no newFork")?;
        counts.lists += 1;
        counts.new_forks += u64::from(new_fork);
        Ok((list, new_fork))
    }
}

fn block_of(data: &Value) -> Outcome<(u64, B256)> {
    let number = data["blockNumber"].as_u64().ok_or("no blockNumber")?;
    Ok((number, hash_of(&data["blockHash"])?))
}

fn starts_at(list: &[Head], block: Option<(u64, B256)>) -> bool {
    list.first().map(|head| (head.number, head.hash)) == block
}

/// Whether each header's parent is the previous one.
pub(crate) fn is_linked(list: &[Head]) -> bool {
    list.windows(2).all(|pair| {
        pair[1].parent == pair[0].hash && pair[1].number == pair[0].number.saturating_add(1)
    })
}
