//! The embedded store as files: durability and exclusive access.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use domain::lane::{AdmittedRequest, OpenCost};
use domain::{
    Address, ChainId, Event, EventKind, GrantId, Incarnation, LaneKey, LastWrite, LeaseGrant,
    NodeName, Nonce, Payload, RequestId, SubState, Timestamp, Token, Tx, TxHistory, TxId,
    TxRequest, TxState, U256, Writes,
};
use engine::ports::{
    AcquireOutcome, CommitOutcome, EventFilter, LaneBatch, LeaseRequest, QueuedRequest, Store as _,
    StoreError, TxFilter,
};
use store::sqlite::{OpenError, SCHEMA_VERSION, SchemaState, SqliteStore};
use uuid::Uuid;

/// Set for a test process that writes until it is killed: the folder to write to.
const VICTIM_FOLDER: &str = "LANEKEEPER_TEST_VICTIM_FOLDER";
/// How many commits the victim answers before it is killed.
const ANSWERS_BEFORE_KILL: u64 = 50;
const TXS_PER_BATCH: u64 = 7;

#[tokio::test]
async fn reopened_store_has_all_commits() {
    let folder = tempfile::tempdir().unwrap();
    SqliteStore::migrate(folder.path()).unwrap();
    let (lease_grant, cursor) = {
        let store = SqliteStore::open(folder.path()).unwrap();
        let lease_grant = acquire(&store, 1).await;
        assert_eq!(commit(&store, lease_grant, 0).await, CommitOutcome::Applied);
        store
            .queue_requests(vec![new_queued("waits")])
            .await
            .unwrap();
        let page = store.events(&all_events()).await.unwrap();
        assert_eq!(page.events.len() as u64, TXS_PER_BATCH);
        (lease_grant, page.next)
    };
    let store = SqliteStore::open(folder.path()).unwrap();
    let image = store
        .load(lane(), lease_grant, 64)
        .await
        .unwrap()
        .expect("the right still holds");
    assert_eq!(
        (image.next_nonce, image.event_seq),
        (Nonce(TXS_PER_BATCH), TXS_PER_BATCH)
    );
    assert_eq!((image.backlog_from, image.open.queued), (Some(Nonce(0)), 1));
    assert_eq!(commit(&store, lease_grant, 1).await, CommitOutcome::Applied);
    let after = EventFilter {
        after: Some(cursor),
        ..all_events()
    };
    assert_eq!(
        store.events(&after).await.unwrap().events.len() as u64,
        TXS_PER_BATCH
    );
}

#[tokio::test]
async fn declared_restore_fences_keepers_and_refuses_old_cursors() {
    let folder = tempfile::tempdir().unwrap();
    SqliteStore::migrate(folder.path()).unwrap();
    let (lease_grant, cursor) = {
        let store = SqliteStore::open(folder.path()).unwrap();
        let in_use = SqliteStore::declare_restore(folder.path(), "too early");
        assert!(matches!(in_use, Err(OpenError::InUse { .. })), "{in_use:?}");
        let lease_grant = acquire(&store, 1).await;
        assert_eq!(commit(&store, lease_grant, 0).await, CommitOutcome::Applied);
        let page = store.events(&all_events()).await.unwrap();
        (lease_grant, page.next)
    };
    let history = SqliteStore::declare_restore(folder.path(), "a disk was lost").unwrap();
    assert_eq!(history.restores, 1);
    let store = SqliteStore::open(folder.path()).unwrap();
    assert_eq!(commit(&store, lease_grant, 1).await, CommitOutcome::Fenced);
    let after = EventFilter {
        after: Some(cursor),
        ..all_events()
    };
    let refused = store.events(&after).await.map(drop);
    assert!(
        matches!(refused, Err(StoreError::Invalid(_))),
        "{refused:?}"
    );
    let missing = SqliteStore::declare_restore(&folder.path().join("none"), "no store");
    assert!(
        matches!(missing, Err(OpenError::NotMigrated { .. })),
        "{missing:?}"
    );
}

#[tokio::test]
async fn cursor_of_another_store_is_refused() {
    let (one, other) = (
        SqliteStore::temporary().unwrap(),
        SqliteStore::temporary().unwrap(),
    );
    let next = one.events(&all_events()).await.unwrap().next;
    let after = EventFilter {
        after: Some(next),
        ..all_events()
    };
    assert!(one.events(&after).await.is_ok());
    assert!(other.events(&after).await.is_err());
}

#[test]
fn folder_has_one_owner_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    SqliteStore::migrate(folder.path()).unwrap();
    let owner = SqliteStore::open(folder.path()).unwrap();
    let refused = SqliteStore::open(folder.path())
        .err()
        .expect("it is in use");
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused:?}");
    let text = refused.to_string();
    assert!(
        text.contains(&folder.path().display().to_string()),
        "{text}"
    );
    assert!(text.contains("stop that one"), "{text}");
    assert!(matches!(
        SqliteStore::migrate(folder.path()),
        Err(OpenError::InUse { .. })
    ));
    assert_eq!(
        SqliteStore::check(folder.path()).unwrap(),
        SchemaState::Current
    );
    drop(owner);
    SqliteStore::open(folder.path()).unwrap();
}

#[test]
fn foreign_schema_is_refused_with_instructions() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("not/there");
    for path in [missing.as_path(), folder.path()] {
        assert_eq!(
            SqliteStore::check(path).unwrap(),
            SchemaState::Behind { found: 0 }
        );
        let refused = SqliteStore::open(path).err().expect("nothing is there");
        assert!(
            matches!(refused, OpenError::NotMigrated { found: 0, .. }),
            "{refused:?}"
        );
        assert!(
            refused.to_string().contains("lanekeeper migrate"),
            "{refused}"
        );
    }
    let applied = SqliteStore::migrate(folder.path()).unwrap();
    assert_eq!(applied, (1..=SCHEMA_VERSION).collect::<Vec<_>>());
    assert_eq!(SqliteStore::migrate(folder.path()).unwrap(), []);

    let database = rusqlite::Connection::open(folder.path().join("lanekeeper.db")).unwrap();
    let future = SCHEMA_VERSION + 1;
    database
        .execute(
            "INSERT INTO schema_version VALUES (?1, 'future', 0)",
            [future],
        )
        .unwrap();
    drop(database);
    assert_eq!(
        SqliteStore::check(folder.path()).unwrap(),
        SchemaState::Newer { found: future }
    );
    for refused in [
        SqliteStore::open(folder.path()).err().expect("it is newer"),
        SqliteStore::migrate(folder.path()).expect_err("it is newer"),
    ] {
        assert!(matches!(refused, OpenError::Newer { .. }), "{refused:?}");
        assert!(refused.to_string().contains("newer program"), "{refused}");
    }
}

/// Kills a process in the middle of its commits: every acknowledged batch is there, and every batch is
/// there whole or not at all.
#[tokio::test]
async fn killed_process_loses_no_acknowledged_commit() {
    let folder = tempfile::tempdir().unwrap();
    SqliteStore::migrate(folder.path()).unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "victim_that_writes_until_it_is_killed",
            "--nocapture",
        ])
        .env(VICTIM_FOLDER, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let answers = BufReader::new(victim.stdout.take().unwrap()).lines();
    let answered = answers
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("answered ")?.parse::<u64>().ok())
        .take_while(|answered| *answered < ANSWERS_BEFORE_KILL)
        .last()
        .expect("the victim writes");
    victim.kill().unwrap();
    victim.wait().unwrap();

    let store = SqliteStore::open(folder.path()).unwrap();
    let lease_grant = acquire(&store, 2).await;
    assert_eq!(lease_grant.token, Token(2), "the victim held the lane");
    let image = store
        .load(lane(), lease_grant, 64)
        .await
        .unwrap()
        .expect("it is ours");
    let txs = image.next_nonce.0;
    assert!(
        txs > answered * TXS_PER_BATCH,
        "{txs} txs, {answered} batches were answered"
    );
    assert_eq!(txs % TXS_PER_BATCH, 0, "whole batches only");
    assert_eq!(image.event_seq, txs);
    assert_eq!((image.held.first(), image.held.len()), (Some(&(0..txs)), 1));
    let listed = store
        .txs(&TxFilter {
            limit: 1_000,
            ..TxFilter::default()
        })
        .await
        .unwrap();
    assert_eq!(listed.txs.len() as u64, txs.min(1_000));
}

/// Not a test by itself: the process that the one above kills.
#[tokio::test]
async fn victim_that_writes_until_it_is_killed() {
    let Ok(folder) = std::env::var(VICTIM_FOLDER) else {
        return;
    };
    let store = SqliteStore::open(Path::new(&folder)).unwrap();
    let lease_grant = acquire(&store, 1).await;
    for batch in 0.. {
        assert_eq!(
            commit(&store, lease_grant, batch).await,
            CommitOutcome::Applied
        );
        writeln!(std::io::stdout(), "answered {batch}").unwrap();
    }
}

fn lane() -> LaneKey {
    LaneKey {
        chain_id: ChainId(31_337),
        signer: Address::repeat_byte(1),
    }
}

fn all_events() -> EventFilter {
    EventFilter {
        limit: 1_000,
        ..EventFilter::default()
    }
}

async fn acquire(store: &SqliteStore, incarnation: u128) -> LeaseGrant {
    let lease_request = LeaseRequest {
        node: NodeName("a".into()),
        incarnation: Incarnation(Uuid::from_u128(incarnation)),
        duration: Duration::from_secs(10),
        skew: Duration::from_secs(1),
        alive: Vec::new(),
        silent: Vec::new(),
    };
    let grant = GrantId(Uuid::from_u128(0xA0 + incarnation));
    match store
        .acquire(&lease_request, &[(lane(), grant)])
        .await
        .expect("acquire")
        .remove(0)
    {
        AcquireOutcome::Granted { lease_grant, .. } => lease_grant,
        other @ (AcquireOutcome::NotKeeper { .. }
        | AcquireOutcome::Halted(_)
        | AcquireOutcome::Busy) => {
            panic!("not granted: {other:?}")
        }
    }
}

/// Accepts [`TXS_PER_BATCH`] txs as the lane's n-th batch.
async fn commit(store: &SqliteStore, lease_grant: LeaseGrant, n: u64) -> CommitOutcome {
    let before = n * TXS_PER_BATCH;
    let after = before + TXS_PER_BATCH;
    let mut writes = Writes::default();
    for nonce in before..after {
        let tx = tx(nonce);
        let kind = EventKind::TxAccepted { nonce: tx.nonce };
        writes.events.push(Event {
            seq: nonce + 1,
            at: AT,
            tx_id: Some(tx.id),
            kind,
        });
        writes.inserts.push(tx);
    }
    let batch = LaneBatch {
        lease_grant,
        batch_seq_before: n,
        node: NodeName("a".into()),
        at: AT,
        event_seq_before: before,
        next_nonce: Nonce(after),
        floor_nonce: Nonce(0),
        open_cost: OpenCost::default(),
        head: None,
        newest_final: None,
        writes,
    };
    store.commit(vec![batch.into()]).await.remove(0)
}

const AT: Timestamp = Timestamp(1_800_000_000_000);

fn tx(nonce: u64) -> Tx {
    let payload = Payload::transfer(Address::repeat_byte(2), U256::from(nonce));
    Tx {
        id: TxId(Uuid::from_u128(
            (u128::from(AT.0) << 80) + u128::from(nonce),
        )),
        request: TxRequest {
            request_id: request_id(&format!("request-{nonce}")),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
            created_at: AT,
        },
        nonce: Some(Nonce(nonce)),
        state: TxState::Allocated,
        sub_state: Some(SubState::Waiting),
        reason: None,
        tx_hash: None,
        inclusion: None,
        counted: None,
        written: LastWrite {
            token: Token(1),
            at: AT,
        },
        confirmed_at: None,
        history: TxHistory {
            event_seqs: vec![nonce + 1],
            ..TxHistory::default()
        },
    }
}

fn new_queued(request: &str) -> QueuedRequest {
    let payload = Payload::transfer(Address::repeat_byte(3), U256::from(1));
    QueuedRequest {
        lane: lane(),
        request: AdmittedRequest {
            id: TxId(Uuid::from_u128(7)),
            request_id: request_id(request),
            fingerprint: payload.fingerprint(),
            payload,
            gas: 21_000,
        },
        at: AT,
    }
}

fn request_id(text: &str) -> RequestId {
    RequestId::parse(text).expect("the tests' request ids keep the rule")
}
