//! Short descriptions of operations, for the report of a difference.

use domain::{B256, Tx, TxId, Writes};
use engine::ports::LaneBatch;

use crate::operation::{Operation, Write};

/// One line. (A commit's own form would fill pages.)
pub(crate) fn operation(operation: &Operation) -> String {
    match operation {
        Operation::Write(Write::Commit(batches)) => {
            let batches: Vec<String> = batches.iter().map(batch).collect();
            format!("Commit\n      {}", batches.join("\n      "))
        }
        Operation::Write(Write::Queue(requests)) => {
            let requests = requests.iter().map(|new| {
                let (id, key) = (short(new.request.id), &new.request.request_id);
                format!("{} {id} {key:.10}", new.lane)
            });
            format!("Queue {:?}", requests.collect::<Vec<_>>())
        }
        Operation::Write(Write::PutHeaders(..) | Write::ExtendFeed(_) | Write::Heartbeat(_))
        | Operation::LeaseCall(_)
        | Operation::Load(_)
        | Operation::ReadCall(_)
        | Operation::Incident(_) => format!("{operation:?}"),
    }
}

fn batch(batch: &LaneBatch) -> String {
    let lease_grant = batch.lease_grant;
    format!(
        "lane {} token {} grant {:x} batch {} event {} next {} floor {}: {}",
        lease_grant.lane.0,
        lease_grant.token,
        lease_grant.grant.0.as_u128() & 0xffff,
        batch.batch_seq_before,
        batch.event_seq_before,
        batch.next_nonce,
        batch.floor_nonce,
        writes(&batch.writes),
    )
}

fn writes(writes: &Writes) -> String {
    let mut text: Vec<String> = Vec::new();
    text.extend(writes.updates.iter().map(|row| tx("update", row)));
    text.extend(writes.inserts.iter().map(|row| tx("insert", row)));
    text.extend(writes.attempts.iter().map(|attempt| {
        let (hash, id) = (number(attempt.hash), short(attempt.tx_id));
        format!("attempt {hash:x} of {id} at {}", attempt.nonce)
    }));
    let sent = writes.first_sent.iter();
    text.extend(sent.map(|(hash, _)| format!("sent {:x}", number(*hash))));
    text.extend(writes.events.iter().map(|event| {
        let about = event.tx_id.map(short).unwrap_or_default();
        format!("event {} {} {about}", event.seq, event.kind.as_str())
    }));
    text.extend(
        writes
            .queued_removed
            .iter()
            .map(|id| format!("done {}", short(*id))),
    );
    text.extend(
        writes
            .queued_added
            .iter()
            .map(|id| format!("wake {}", short(*id))),
    );
    text.extend(writes.paused.map(|paused| format!("paused {paused}")));
    text.join(", ")
}

fn tx(how: &str, tx: &Tx) -> String {
    format!(
        "{how} {} {:.10} nonce {:?} {} hash {:?} seqs {:?}",
        short(tx.id),
        tx.request.request_id.as_str(),
        tx.nonce.map(|nonce| nonce.0),
        tx.state.as_str(),
        tx.tx_hash.map(number),
        tx.history.event_seqs,
    )
}

fn short(id: TxId) -> String {
    format!("t{}", id.0.as_u128() & 0xffff)
}

/// The end of a hash, which is unique in a sequence.
fn number(hash: B256) -> u16 {
    u16::from_be_bytes([hash[30], hash[31]])
}
