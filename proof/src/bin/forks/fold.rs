//! The checker: reads the event feed as a business would, folds what is told of each tx's confirmations
//! into a list, and refuses every event that does not fit to what was told before.

use std::collections::BTreeMap;

use alloy_primitives::B256;
use proof::stage::{Head, hash_of};
use proof::{Api, Outcome, demand};
use serde_json::Value;

/// What the feed has told of one tx so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The block it is in.
    pub(crate) block: Option<(u64, B256)>,
    /// Its block and what stands on it, once something does.
    pub(crate) list: Vec<Head>,
    /// Whether that was told as final.
    pub(crate) is_final: bool,
    /// Whether it waits for a decision.
    pub(crate) is_stuck: bool,
}

/// What was counted on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    /// `TxConfirmations` and `TxConfirmed`: lists that were checked.
    pub(crate) lists: u64,
    /// Of them those with `newFork`.
    pub(crate) new_forks: u64,
    pub(crate) reorged: u64,
    /// Of them those that took back a final.
    pub(crate) after_final: u64,
    pub(crate) stuck: u64,
    pub(crate) requeued: u64,
}

/// The reader of a feed.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    after: Option<String>,
    seqs: BTreeMap<String, u64>,
    txs: BTreeMap<String, Told>,
    pub(crate) counts: Counts,
}

impl Fold {
    /// What is told of a tx up to now.
    pub(crate) fn of(&self, tx_id: &str) -> Told {
        self.txs.get(tx_id).cloned().unwrap_or_default()
    }

    /// Reads on to the end of the feed.
    pub(crate) async fn read(&mut self, api: &Api) -> Outcome<()> {
        loop {
            let after = self.after.as_ref();
            let after = after.map_or_else(String::new, |after| format!("&after={after}"));
            let path = format!("/api/v1/events?limit=1000{after}");
            let (status, page) = api.get(&path).await?;
            demand(status.is_success(), format!("{path}: {status} {page}"))?;
            for event in page["events"].as_array().into_iter().flatten() {
                self.take(event)
                    .map_err(|error| format!("{error}\n  in {event}"))?;
            }
            let next = page["next"].as_str().map(str::to_owned);
            if next.is_none() || next == self.after {
                return Ok(());
            }
            self.after = next;
        }
    }

    fn take(&mut self, event: &Value) -> Outcome<()> {
        self.counts.events += 1;
        let signer = event["signer"].as_str().ok_or("no signer")?.to_owned();
        let seq = event["seq"].as_u64().ok_or("no seq")?;
        let last = self.seqs.insert(signer, seq).unwrap_or(0);
        demand(seq == last + 1, format!("event {seq} follows event {last}"))?;
        let Some(tx_id) = event["txId"].as_str() else {
            return Ok(());
        };
        let told = self.txs.entry(tx_id.to_owned()).or_default();
        let (data, counts) = (&event["data"], &mut self.counts);
        match event["type"].as_str().ok_or("no type")? {
            "TxReceiptUpdated" => told.receipt(data),
            "TxConfirmations" => told.confirmations(data, counts),
            "TxConfirmed" => told.confirmed(data, counts),
            "TxReorged" => told.reorged(data, counts),
            "TxStuck" => {
                told.is_stuck = true;
                counts.stuck += 1;
                Ok(())
            }
            "TxRequeued" => {
                counts.requeued += 1;
                demand(told.block.is_none(), "requeued while it is in a block")
            }
            "TxFailed" => Err("it failed".into()),
            _ => Ok(()),
        }
    }
}

impl Told {
    fn receipt(&mut self, data: &Value) -> Outcome<()> {
        let block = block_of(data)?;
        demand(
            self.block.is_none_or(|told| told == block),
            format!("{:?} was told and not taken back", self.block),
        )?;
        self.block = Some(block);
        self.is_stuck = false;
        Ok(())
    }

    /// An increment, or with `newFork` a complete list in the place of what was told.
    fn confirmations(&mut self, data: &Value, counts: &mut Counts) -> Outcome<()> {
        let (list, new_fork) = self.list_of(data, counts)?;
        let is_increment = !self.list.is_empty() && !new_fork;
        if is_increment {
            let first = list.first().ok_or("nothing is added")?;
            let top = self.list.last().map(|head| head.hash);
            demand(
                Some(first.parent) == top,
                format!("it does not stand on {top:?}, which was told, and newFork is false"),
            )?;
            self.list.extend(list);
        } else {
            demand(starts_at(&list, self.block), "the list is not complete")?;
            let is_live_for = list.starts_with(&self.list);
            demand(
                new_fork != is_live_for,
                format!("newFork is {new_fork}, told before: {:?}", self.list),
            )?;
            self.list = list;
        }
        let count = data["count"].as_u64().ok_or("no count")?;
        let above = self.list.len() as u64 - 1;
        demand(count == above, format!("{above} stand on it, not {count}"))
    }

    /// Always the complete list.
    fn confirmed(&mut self, data: &Value, counts: &mut Counts) -> Outcome<()> {
        demand(!self.is_final, "it was told as final before")?;
        let (list, new_fork) = self.list_of(data, counts)?;
        demand(starts_at(&list, self.block), "the list is not complete")?;
        let is_live_for = list.starts_with(&self.list);
        demand(
            new_fork != is_live_for,
            format!("newFork is {new_fork}, told before: {:?}", self.list),
        )?;
        self.list = list;
        self.is_final = true;
        Ok(())
    }

    fn reorged(&mut self, data: &Value, counts: &mut Counts) -> Outcome<()> {
        counts.reorged += 1;
        counts.after_final += u64::from(data["afterFinal"] == true);
        demand(
            self.block == Some(block_of(data)?),
            format!("{:?} is what was told", self.block),
        )?;
        demand(data["newFork"] == true, "newFork is not true")?;
        demand(
            data["afterFinal"] == self.is_final,
            format!("it was told as final: {}", self.is_final),
        )?;
        *self = Self {
            is_stuck: self.is_stuck,
            ..Self::default()
        };
        Ok(())
    }

    /// The list of an event, linked by parents, of the block that was told.
    fn list_of(&self, data: &Value, counts: &mut Counts) -> Outcome<(Vec<Head>, bool)> {
        demand(
            self.block == Some(block_of(data)?),
            format!("{:?} is what was told", self.block),
        )?;
        let headers = data["confirmations"].as_array().ok_or("no list")?;
        let list: Vec<Head> = headers.iter().map(Head::read).collect::<Outcome<_>>()?;
        demand(is_linked(&list), "the list is not linked by parents")?;
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

/// Whether each header stands on the one before.
pub(crate) fn is_linked(list: &[Head]) -> bool {
    list.windows(2).all(|pair| {
        pair[1].parent == pair[0].hash && pair[1].number == pair[0].number.saturating_add(1)
    })
}
