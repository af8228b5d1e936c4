//! No statement of the store reads a growing table as a whole: every method of the port runs on a large database, and the
//! server logs, by `auto_explain`, how it executed every statement, also those inside its functions.

use std::time::Duration;

use domain::lane::{AdmittedRequest, OpenCost};
use domain::lease::LeaseRequest;
use domain::{
    Address, Attempt, AttemptKind, B256, Bytes, ChainId, Event, EventKind, Fees, GrantId, Header,
    History, Incarnation, LaneImage, LaneKey, LeaseGrant, NodeName, Nonce, Payload, RequestId,
    SubState, Timestamp, Token, Tx, TxId, TxState, U256, Writes,
};
use engine::ports::{
    AcquireOutcome, CommitOutcome, EventFilter, LaneBatch, LanePlace, Member, QueuedRequest, Store,
    TxCursor, TxFilter,
};
use rig::postgres::{Postgres, majors};
use uuid::Uuid;

use super::{PostgresConfig, PostgresStore, migrate};

/// Lanes, of which the first has most of the txs: so many that reading them all never seems cheaper than
/// a hundred look-ups.
const LANES: u64 = 50_000;
/// Lanes with a tx that waits.
const WAITING: u64 = 2_000;
/// Finished txs of the first lane, and as many headers, turns and ranges of the feed.
const FINISHED: u64 = 30_000;
/// Its open txs.
const OPEN: u64 = 20;

/// Tables that grow with every tx or lane, and may only be read by a key. (`node` is not among them: a
/// heartbeat returns all of it on purpose, and it has a row per incarnation of a node, of which few are kept.
/// `feed_head` has one row.)
const GROWING: [&str; 10] = [
    "lane",
    "signer_lease",
    "signer_nonce_cursor",
    "lane_feed",
    "managed_tx",
    "tx_attempt",
    "queued_tx",
    "lane_event",
    "event_feed",
    "chain_header",
];
/// Reads all lanes on purpose: the sweep of the feed finds lanes that are behind without a notification. It
/// walks their keys, twice a minute for each node.
const SWEEP: &str = "SELECT array_agg(c.lane_id)";
/// The most rows of them that one step of a plan may touch: as many as a filtered page reads. A
/// statement that reads the first lane whole touches more.
const TOUCHED_MAX: f64 = 10_001.0;

/// Statements inside the database's functions that must be in the log, too.
const WRITES: [&str; 7] = [
    "INSERT INTO managed_tx",
    "UPDATE managed_tx",
    "INSERT INTO tx_attempt",
    "UPDATE tx_attempt",
    "DELETE FROM queued_tx",
    "INSERT INTO lane_event",
    "INSERT INTO event_feed",
];

/// Long, because the timeouts that follow from it also hold for filling the database.
const LEASE: Duration = Duration::from_secs(600);

#[tokio::test]
async fn every_statement_finds_its_rows_by_a_key() {
    let mut explained = 0;
    for major in majors() {
        let settings = [
            ("fsync", "off"),
            ("logging_collector", "on"),
            ("log_directory", "plans"),
            ("log_filename", "log"),
        ];
        let server = Postgres::start_with(major, &settings);
        // Only a whole installation has it.
        if server.try_query_value("LOAD 'auto_explain'").is_err() {
            continue;
        }
        explained += 1;
        let database = server.database("plans");
        migrate(database.url(), None, LEASE).await.expect("migrate");
        database.exec(&fill());
        let name = database.name();
        database.exec(&format!(
            "ALTER DATABASE {name} SET session_preload_libraries = 'auto_explain';
             ALTER DATABASE {name} SET auto_explain.log_min_duration = 0;
             ALTER DATABASE {name} SET auto_explain.log_nested_statements = on;
             ALTER DATABASE {name} SET auto_explain.log_analyze = on;
             ALTER DATABASE {name} SET auto_explain.log_timing = off"
        ));
        let config = PostgresConfig {
            url: database.url().to_owned(),
            pool_size: 5,
            lease: LEASE,
        };
        let store = PostgresStore::open(config).await.expect("open");
        run_every_verb(&store).await;
        check(&log(&server));
    }
    assert!(explained > 0, "no installed PostgreSQL has auto_explain");
}

/// The server's log up to now. (Its log is written by a process of its own.)
fn log(server: &Postgres) -> String {
    server.exec("DO $$ BEGIN RAISE LOG 'end of log'; END $$");
    rig::wait_until("the log is written", LEASE, || {
        let log = server.query_value("SELECT pg_read_file('plans/log')")?;
        log.contains("end of log").then_some(log)
    })
}

/// The content of a database that has been used for long.
fn fill() -> String {
    let all = FINISHED + OPEN;
    format!(
        "INSERT INTO lane (chain_id, signer)
         SELECT 1 + n % 3, decode(lpad(to_hex(n), 40, '0'), 'hex') FROM generate_series(1, {LANES}) n;
         INSERT INTO signer_lease (lane_id, token, renew_seq, expires_at, updated_at, history)
         SELECT lane_id, 0, 0, 0, 0, lanekeeper_history() FROM lane;
         INSERT INTO signer_nonce_cursor
           (lane_id, next_nonce, floor_nonce, event_seq, batch_seq, fencing_token, updated_at,
            grant_id, paused, busy, has_finals, newest_final)
         SELECT lane_id, {all}, {FINISHED}, {FINISHED}, {FINISHED}, 0, 0, gen_random_uuid(), false,
                lane_id = 1, lane_id % 10 = 0, CASE WHEN lane_id % 10 = 0 THEN decode(repeat('01', 40), 'hex') ELSE '' END
         FROM lane;
         INSERT INTO managed_tx
           (lane_id, created_at, gas, tx_id, request_id, fingerprint, value, data, state, signed,
            nonce, token, updated_at, tx_hash, event_seqs, inclusion, counted)
         SELECT 1, n, 21000, lpad(to_hex(n), 32, '0')::uuid, 'r' || n, sha256('x'), '', '',
                CASE WHEN n <= {FINISHED} THEN 3 ELSE 2 END, true, n - 1, 1, n,
                sha256(('tx' || n)::bytea), '\\x01',
                CASE WHEN n <= {FINISHED} THEN '\\x01'::bytea || sha256(('tx' || n)::bytea)
                  || sha256(('h' || greatest(n - 20, 1))::bytea) || int8send(n)
                  || decode(repeat('00', 24), 'hex') END,
                CASE WHEN n <= {FINISHED} THEN sha256(('h' || n)::bytea) END
         FROM generate_series(1, {all}) n;
         INSERT INTO managed_tx
           (lane_id, created_at, gas, tx_id, request_id, fingerprint, value, data, state, signed,
            token, updated_at, event_seqs)
         SELECT lane_id, 0, 21000, lpad(to_hex({all} + lane_id), 32, '0')::uuid, 'w', sha256('x'), '', '',
                0, false, 0, 0, ''
         FROM lane WHERE lane_id <= {WAITING};
         INSERT INTO queued_tx SELECT lane_id, tx_id FROM managed_tx WHERE state = 0;
         INSERT INTO tx_attempt (lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw)
         SELECT lane_id, nonce, 21000, 0, tx_id, 0, tx_hash, '\\x0001', '\\xab'
         FROM managed_tx WHERE signed;
         INSERT INTO lane_event (lane_id, first_seq, at, token, count, node, body)
         SELECT 1, n, 0, 1, 1, 'a', '\\x010b0007' FROM generate_series(1, {FINISHED}) n;
         INSERT INTO event_feed (position, lane_id, first_seq, last_seq)
         SELECT n, 1, n, n FROM generate_series(1, {FINISHED}) n;
         UPDATE feed_head SET position = {FINISHED};
         INSERT INTO lane_feed (lane_id, fed_seq) SELECT lane_id, {FINISHED} FROM lane;
         INSERT INTO chain_header (chain_id, number, timestamp, hash, parent_hash)
         SELECT 2, n, n, sha256(('h' || n)::bytea), sha256(('h' || n - 1)::bytea)
         FROM generate_series(1, {FINISHED}) n;
         ANALYZE"
    )
}

/// The n-th lane of [`fill`].
fn lane(n: u64) -> LaneKey {
    LaneKey {
        chain_id: ChainId(1 + n % 3),
        signer: Address::left_padding_from(&n.to_be_bytes()),
    }
}

fn lease_request() -> LeaseRequest {
    LeaseRequest {
        node: NodeName("a".into()),
        incarnation: Incarnation(Uuid::from_u128(1)),
        duration: LEASE,
        skew: Duration::from_secs(1),
        alive: vec![Incarnation(Uuid::from_u128(2))],
        silent: vec![Incarnation(Uuid::from_u128(3))],
    }
}

/// Acquires lanes, one of them new, each with the history of its grant.
async fn acquire_lanes(
    store: &PostgresStore,
    lease_request: &LeaseRequest,
) -> (Vec<LeaseGrant>, Vec<History>) {
    let lanes: Vec<_> = (1..=100)
        .chain([LANES + 1]) // a new lane
        .map(|n| (lane(n), GrantId(Uuid::from_u128(n.into()))))
        .collect();
    let answers = store.acquire(lease_request, &lanes).await.expect("acquire");
    answers
        .into_iter()
        .map(|answer| match answer {
            AcquireOutcome::Granted {
                lease_grant,
                history,
                ..
            } => (lease_grant, history),
            AcquireOutcome::NotKeeper { .. } | AcquireOutcome::Halted(_) | AcquireOutcome::Busy => {
                panic!("no other node exists")
            }
        })
        .unzip()
}

async fn run_every_verb(store: &PostgresStore) {
    let lease_request = lease_request();
    let (lease_grants, histories) = acquire_lanes(store, &lease_request).await;
    store
        .renew(&lease_request, &lease_grants)
        .await
        .expect("renew");
    store
        .mark_reconciled(lease_grants[1], histories[1])
        .await
        .expect("settle");
    let image = store
        .load(lane(1), lease_grants[0], 64)
        .await
        .expect("load");
    let image = image.expect("it is ours");
    assert_eq!(image.in_flight.len() as u64, OPEN);
    assert_eq!(image.mined.finals.len(), 65, "a block each");
    let (backlog, queued) = (image.lease_grant.lane, lease_grants[5].lane);
    store
        .load_backlog(backlog, Nonce(FINISHED), 10)
        .await
        .expect("load_backlog");
    let waiting = store.load_queued(queued, 10).await.expect("load_queued");
    assert_eq!(waiting.len(), 1);
    write(store, &image).await;
    let lane_ids: Vec<_> = lease_grants
        .iter()
        .map(|lease_grant| lease_grant.lane)
        .collect();
    store.extend_feed(&lane_ids).await.expect("extend_feed");
    store.extend_feed(&[]).await.expect("extend_feed");
    find_lanes(store, &lease_request).await;
    let keys: Vec<LaneKey> = (1..=100).chain([LANES + 1]).map(lane).collect();
    store.lanes(&keys).await.expect("lanes");
    heartbeat(store, &lease_request).await;
    read_txs(store, &image).await;
    read_events(store).await;
    let grant = GrantId(Uuid::from_u128(9_999));
    store
        .regrant(lease_grants[1], grant)
        .await
        .expect("regrant");
    store
        .release(&lease_request, &lease_grants)
        .await
        .expect("release");
    let halted = store.halt_lost_lane(lane(2), u64::MAX / 4, grant, "behind");
    assert_eq!(halted.await, Ok(true));
    assert_eq!(store.accept_loss(lane(2)).await, Ok(true));
}

async fn find_lanes(store: &PostgresStore, lease_request: &LeaseRequest) {
    let work = store.lanes_with_work(lease_request).await;
    work.expect("lanes_with_work");
    let page = store.unwatched_lanes(lease_request, None, 1_000).await;
    let page = page.expect("unwatched_lanes");
    assert_eq!((page.lanes.len(), page.next.is_some()), (1_000, true));
}

/// Batches with a write of every kind, one of which is refused.
async fn write(store: &PostgresStore, image: &LaneImage) {
    let given_up = image.in_flight[1].0.id;
    let batch = LaneBatch {
        lease_grant: image.lease_grant,
        batch_seq_before: image.batch_seq,
        node: NodeName("a".into()),
        at: Timestamp(1),
        event_seq_before: image.event_seq,
        next_nonce: image.next_nonce.next(),
        floor_nonce: Nonce(FINISHED),
        open_cost: OpenCost::default(),
        head: None,
        newest_final: None,
        writes: writes(image),
    };
    assert_eq!(
        store.commit(vec![batch.clone().into()]).await,
        [CommitOutcome::Applied]
    );
    let later = |writes| LaneBatch {
        batch_seq_before: image.batch_seq + 1,
        event_seq_before: image.event_seq + 1,
        writes,
        ..batch.clone()
    };
    let known = Writes {
        inserts: vec![tx("r7", 2, None)],
        ..Writes::default()
    };
    let outcomes = store.commit(vec![later(known).into()]).await;
    assert!(
        matches!(outcomes[..], [CommitOutcome::Conflict(_)]),
        "{outcomes:?}"
    );
    let done = Writes {
        queued_removed: vec![given_up],
        ..Writes::default()
    };
    let outcomes = store.commit(vec![later(done).into()]).await;
    assert_eq!(outcomes, [CommitOutcome::Applied]);
    let requests = ["r9", "unknown"].map(|id| (image.key, request_id(id)));
    store.find_requests(&requests).await.expect("find_requests");
    let queued = [("r10", 3), ("queued", 4)].map(|(id, n)| QueuedRequest {
        lane: lane(1),
        request: request(id, n),
        at: Timestamp(1),
    });
    store.queue_requests(queued.into()).await.expect("queue");
}

/// A tx is inserted, two are signed again (one of them with its new image) and one loses its nonce.
fn writes(image: &LaneImage) -> Writes {
    let (out, given_up) = (image.in_flight[0].0.clone(), &image.in_flight[1].0);
    let unchanged = &image.in_flight[2].0;
    let new = tx("new", 1, Some(image.next_nonce));
    let attempt = |tx: &Tx, n: u8| Attempt {
        hash: B256::repeat_byte(n),
        tx_id: tx.id,
        kind: AttemptKind::Bump,
        nonce: tx.nonce.expect("it holds one"),
        gas: 21_000,
        fees: Fees::Legacy { gas_price: 1 },
        raw: Bytes::from_static(&[1]),
        signed_at: Timestamp(1),
        first_sent_at: None,
    };
    let event = Event {
        seq: image.event_seq + 1,
        at: Timestamp(1),
        tx_id: Some(new.id),
        kind: EventKind::TxAccepted { nonce: new.nonce },
    };
    Writes {
        attempts: vec![attempt(&out, 1), attempt(&new, 2), attempt(unchanged, 3)],
        inserts: vec![new],
        first_sent: vec![(out.tx_hash.expect("it was signed"), Timestamp(2))],
        events: vec![event],
        queued_added: vec![given_up.id],
        updates: vec![
            out,
            Tx {
                nonce: None,
                tx_hash: None,
                state: TxState::Created,
                ..given_up.clone()
            },
        ],
        ..Writes::default()
    }
}

async fn heartbeat(store: &PostgresStore, lease_request: &LeaseRequest) {
    let member = Member {
        node: lease_request.node.clone(),
        incarnation: lease_request.incarnation,
        advertise: None,
        started_at: Timestamp(1),
        seen_at: Timestamp(1),
        heartbeats: 0,
        draining: false,
    };
    store.heartbeat(&member).await.expect("heartbeat");
    store.members().await.expect("members");
}

async fn read_txs(store: &PostgresStore, image: &LaneImage) {
    let (out, attempts) = &image.in_flight[0];
    store.tx(out.id).await.expect("tx");
    let by_request = store.tx_by_request(lane(1), &out.request.request_id).await;
    assert!(by_request.expect("tx").is_some());
    let by_hash = store.tx_by_hash(attempts[0].hash).await;
    assert!(by_hash.expect("tx").is_some());
    let header = |n: u64| Header {
        number: n,
        hash: B256::left_padding_from(&n.to_be_bytes()),
        parent_hash: B256::ZERO,
        timestamp: 0,
    };
    let headers: Vec<Header> = (0..100).map(header).collect();
    store
        .put_headers(ChainId(1), &headers)
        .await
        .expect("put_headers");
    // From the middle, as a client that has read many pages.
    let middle = TxCursor::After(TxId(Uuid::from_u128((FINISHED / 2).into())));
    let in_lane = TxCursor::InLane(lane(1), LanePlace::WithNonce(Nonce(FINISHED / 2)));
    for (state, signer, after) in [
        (None, None, middle),
        (Some(TxState::FailedFinal), None, middle),
        (None, Some(lane(1).signer), in_lane),
        (Some(TxState::Stuck), Some(lane(1).signer), in_lane),
        (Some(TxState::FailedFinal), Some(lane(1).signer), in_lane),
        (Some(TxState::Stuck), None, in_lane),
    ] {
        let filter = TxFilter {
            state,
            signer,
            after: Some(after),
            limit: 100,
            ..TxFilter::default()
        };
        let page = store.txs(&filter).await.expect("txs");
        let walks = page.txs.iter().map(|record| record.confirmations.len());
        assert!(
            walks.clone().all(|length| length == 21),
            "{:?}",
            walks.collect::<Vec<_>>()
        );
    }
}

async fn read_events(store: &PostgresStore) {
    let tx = TxId(Uuid::from_u128(1));
    store.tx_events(tx).await.expect("tx_events");
    let mut filter = EventFilter {
        limit: 100,
        ..EventFilter::default()
    };
    for _ in 0..3 {
        let page = store.events(&filter).await.expect("events");
        assert_eq!(page.events.len(), 100);
        filter.after = Some(page.next);
    }
    filter.kinds = vec!["TxConfirmed".into()];
    store.events(&filter).await.expect("events");
    filter.signer = Some(lane(2).signer);
    store.events(&filter).await.expect("events");
    let end = store.changed_txs(None).await.expect("changed_txs").next;
    store.changed_txs(Some(&end)).await.expect("changed_txs");
}

fn request_id(text: &str) -> RequestId {
    RequestId::parse(text).expect("it keeps the rule")
}

fn request(id: &str, n: u128) -> AdmittedRequest {
    let payload = Payload::transfer(Address::repeat_byte(9), U256::from(1));
    AdmittedRequest {
        id: TxId(Uuid::from_u128(n << 64)),
        request_id: request_id(id),
        fingerprint: payload.fingerprint(),
        payload,
        gas: 21_000,
    }
}

fn tx(id: &str, n: u128, nonce: Option<Nonce>) -> Tx {
    let mut tx = Tx::created(request(id, n), Token(1), Timestamp(1));
    if nonce.is_some() {
        tx.nonce = nonce;
        tx.transition(TxState::Allocated, SubState::Waiting, Timestamp(1));
    }
    tx
}

/// Checks every step of every plan in the log.
fn check(log: &str) {
    let mut seen = Vec::new();
    let mut faults = Vec::new();
    let plans = log.split("Query Text: ").skip(1);
    for plan in plans.filter(|plan| !plan.starts_with(SWEEP)) {
        let lines: Vec<&str> = plan.lines().collect();
        for (n, line) in lines.iter().enumerate() {
            let Some((step, table)) = scan(line) else {
                continue;
            };
            seen.push(table);
            let below = &lines[n + 1..];
            if let Some(fault) = fault(step, line, below) {
                faults.push(format!("{fault}\n{plan}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    for table in GROWING {
        assert!(seen.contains(&table), "no plan mentions {table}");
    }
    for statement in WRITES {
        assert!(log.contains(statement), "{statement} was not explained");
    }
}

/// The kind of scan of this line, and its growing table.
fn scan(line: &str) -> Option<(&str, &'static str)> {
    let (step, rest) = line.split_once(" on ")?;
    let name = rest.split_whitespace().next()?;
    let table = GROWING.into_iter().find(|table| *table == name)?;
    step.contains("Scan").then_some((step, table))
}

/// Why a step is not a look-up.
fn fault(step: &str, line: &str, below: &[&str]) -> Option<&'static str> {
    if step.contains("Seq Scan") {
        return Some("reads the whole table");
    }
    // Its own details, up to the next step. (A bitmap heap scan's index is the step below it.)
    let details = below.iter().take_while(|line| !line.contains("->"));
    let details: Vec<&str> = details.copied().collect();
    let has_key = details.iter().any(|line| line.contains("Index Cond:"));
    if !has_key && !step.contains("Bitmap") && !is_first_of_all(line) {
        return Some("walks the whole index");
    }
    let removed = details
        .iter()
        .filter(|line| line.contains("Rows Removed by"));
    let removed = removed.filter_map(|line| line.rsplit_once(": ")?.1.trim().parse::<f64>().ok());
    let actual = line.split_once("(actual rows=")?.1;
    let mut numbers = actual.trim_end_matches(')').split(" loops=");
    let (rows, loops) = (number(numbers.next()), number(numbers.next()));
    let touched = (rows + removed.sum::<f64>()) * loops;
    (touched > TOUCHED_MAX).then_some("touches too many rows")
}

/// A walk that ends at its first row needs no key.
fn is_first_of_all(line: &str) -> bool {
    line.contains("(actual rows=1 loops=1)") || line.contains("(actual rows=1.00 loops=1)")
}

fn number(text: Option<&str>) -> f64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0.0)
}
