//! Every kind of critical write of a deposed keeper: refused as fenced, and no row is any different.

use domain::{B256, EventKind, Inclusion, Nonce, SubState, Tx, TxState, Writes};
use engine::ports::{CommitOutcome, LaneBatch, RegrantOutcome, RenewOutcome, Store as _};
use rig::postgres::{Database, shared};

use crate::kit::{
    AT, Memory, acceptance, event, keep, migrated, new_grant, new_lane, new_queued, new_tx, node,
    node_that_misses, open, present_history, sign,
};
use crate::report::majors;

/// The writes that a deposed keeper tries.
#[derive(Clone, Copy, Debug)]
enum Write {
    Allocate,
    Attempt,
    State,
    FirstSent,
    Receipt,
    Confirmations,
    Cursor,
    Event,
    WakeAdded,
    WakeDone,
    Paused,
    Insert,
}

macro_rules! each_kind {
    ($($name:ident => $write:ident,)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                a_deposed_keeper_writes_nothing(Write::$write).await;
            }
        )*
    };
}

each_kind! {
    allocates_no_nonce => Allocate,
    stores_no_attempt => Attempt,
    changes_no_state => State,
    notes_no_sending => FirstSent,
    stores_no_receipt => Receipt,
    counts_no_confirmations => Confirmations,
    moves_no_cursor => Cursor,
    emits_no_event => Event,
    puts_nothing_to_sleep => WakeAdded,
    wakes_nothing => WakeDone,
    pauses_nothing => Paused,
    accepts_nothing => Insert,
}

/// A lane of `a` with a sent tx and one that waits, which `b` has taken over.
struct World {
    deposed: Memory,
    sent: Tx,
    waiting: Tx,
}

async fn a_deposed_keeper_writes_nothing(write: Write) {
    for major in majors() {
        let database = migrated(&shared(major), "deposed").await;
        let store = open(database.url(), 5).await;
        let (a, b) = (node("a"), node_that_misses("b", &["a"]));
        let key = new_lane();
        let lease_grant = keep(&*store, &a, &[key]).await[0];
        let mut deposed = Memory::new(key, lease_grant, &a);
        let first = deposed.batch(acceptance("sent", Nonce(0), lease_grant.token));
        assert_eq!(
            store.commit(vec![first.clone().into()]).await,
            [CommitOutcome::Applied]
        );
        deposed.follow(&first);
        let queued = vec![new_queued(key, "waiting")];
        let waiting = store.queue_requests(queued).await.expect("queue").remove(0);
        store.extend_feed(&[]).await.expect("extend_feed");
        let sent = first.writes.inserts[0].clone();
        let world = World {
            deposed,
            sent,
            waiting,
        };
        let allowed = world.batch(write);
        let taken = keep(&*store, &b, &[key]).await[0];
        assert_eq!(taken.token, lease_grant.token.next());

        let history = present_history(&*store).await;
        let before = dump(&database);
        let outcome = store.commit(vec![allowed.into()]).await;
        assert_eq!(outcome, [CommitOutcome::Fenced], "{write:?} on {major}");
        let regranted = store
            .regrant(lease_grant, new_grant())
            .await
            .expect("regrant");
        assert_eq!(regranted, RegrantOutcome::Fenced);
        assert_eq!(
            store.renew(&a, &[lease_grant]).await.expect("renew"),
            [RenewOutcome::Lost]
        );
        store.release(&a, &[lease_grant]).await.expect("release");
        let marked = store.mark_reconciled(lease_grant, history).await;
        assert_eq!(marked, Ok(false));
        store.halt(lease_grant, "it says").await.expect("halt");
        assert_eq!(dump(&database), before, "{write:?} on {major}");

        // The same writes are fine in the hands of the keeper: it was the fence, and nothing else.
        let keeper = Memory {
            lease_grant: taken,
            node: b.node.clone(),
            ..world.deposed.clone()
        };
        let world = World {
            deposed: keeper,
            ..world
        };
        let outcome = store.commit(vec![world.batch(write).into()]).await;
        assert_eq!(outcome, [CommitOutcome::Applied], "{write:?} on {major}");
        assert_ne!(dump(&database), before, "{write:?} on {major}");
    }
}

impl World {
    /// One batch with this kind of write.
    fn batch(&self, write: Write) -> LaneBatch {
        let mut batch = self.deposed.batch(self.writes(write));
        if let Write::Cursor = write {
            batch.next_nonce = Nonce(77);
        }
        batch
    }

    fn writes(&self, write: Write) -> Writes {
        let (sent, waiting) = (&self.sent, &self.waiting);
        let (mut writes, lease_grant) = (Writes::default(), self.deposed.lease_grant);
        match write {
            Write::Allocate => {
                let nonce = Some(self.deposed.next_nonce);
                let mut tx = waiting.clone();
                tx.transition(TxState::Allocated, SubState::Waiting, AT);
                writes.queued_removed.push(tx.id);
                writes.updates.push(Tx { nonce, ..tx });
            }
            Write::Attempt => writes.attempts.push(sign(&mut sent.clone())),
            Write::State => {
                let mut tx = sent.clone();
                tx.transition(TxState::Stuck, SubState::Rejected, AT);
                writes.updates.push(tx);
            }
            Write::FirstSent => {
                let hash = sent.tx_hash.expect("it is signed");
                writes.first_sent.push((hash, AT));
            }
            Write::Receipt => writes.updates.push(Tx {
                inclusion: Some(inclusion(sent)),
                ..sent.clone()
            }),
            Write::Confirmations => writes.updates.push(Tx {
                counted: Some(B256::repeat_byte(8)),
                ..sent.clone()
            }),
            Write::Cursor => {} // comes with the batch
            Write::Event => {
                let reason = "it says".into();
                writes
                    .events
                    .push(event(sent, EventKind::TxStuck { reason }));
            }
            Write::WakeAdded => {
                let tx = new_queued(self.deposed.key, "another").into_tx();
                writes.queued_added.push(tx.id);
                writes.inserts.push(tx);
            }
            Write::WakeDone => writes.queued_removed.push(waiting.id),
            Write::Paused => writes.paused = Some(true),
            Write::Insert => {
                let tx = new_tx("new", self.deposed.next_nonce, lease_grant.token);
                writes.inserts.push(tx);
            }
        }
        writes
    }
}

fn inclusion(tx: &Tx) -> Inclusion {
    Inclusion {
        tx_hash: tx.tx_hash.expect("it is signed"),
        block_number: 7,
        block_hash: B256::repeat_byte(6),
        succeeded: true,
        gas_used: 21_000,
        effective_gas_price: 7,
        contract_address: None,
        revert_reason: None,
    }
}

/// Every row of every table that matters, and which transaction wrote it.
fn dump(database: &Database) -> Vec<String> {
    const TABLES: [&str; 10] = [
        "lane",
        "signer_lease",
        "signer_nonce_cursor",
        "managed_tx",
        "tx_attempt",
        "queued_tx",
        "lane_event",
        "event_feed",
        "lane_feed",
        "feed_head",
    ];
    let rows = TABLES.iter().map(|table| {
        let sql = format!(
            "SELECT string_agg(t.xmin || ' ' || t::text, E'\\n' ORDER BY t::text) FROM {table} AS t"
        );
        format!(
            "{table}: {}",
            database.query_value(&sql).unwrap_or_default()
        )
    });
    rows.collect()
}
