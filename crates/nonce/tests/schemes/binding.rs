//! A lane belongs to one scheme, or to the txs of its keeper.

use domain::Nonce;
use engine::ports::ReservationError;
use nonce::postgres::{SchemaError, bind_lanes};
use nonce::{RowLock, Scheme, Segment, SegmentConfig};
use rig::postgres::{majors, shared};

use crate::kit::{client, clock, database, db, lane, request};

#[tokio::test]
async fn nonces_of_a_store_lane_are_not_reservable() {
    let database = database("binding").await;
    let client = client(database.url()).await;
    // The columns that the ledger reads.
    client
        .batch_execute(
            "CREATE TABLE lane (lane_id bigint, chain_id bigint, signer bytea); \
             CREATE TABLE signer_nonce_cursor (lane_id bigint)",
        )
        .await
        .unwrap();
    const INSERT: &str = "INSERT INTO lane VALUES (7, $1, $2)";
    let chain = i64::try_from(lane(1).chain_id.0).unwrap();
    let signer = lane(1).signer.to_vec();
    client.execute(INSERT, &[&chain, &signer]).await.unwrap();
    client
        .batch_execute("INSERT INTO signer_nonce_cursor VALUES (7)")
        .await
        .unwrap();

    let schemes: [&dyn Scheme; 2] = [
        &RowLock::new(db(database.url(), 2), None),
        &Segment::new(db(database.url(), 2), clock(), SegmentConfig::default()),
    ];
    for scheme in schemes {
        let refused = scheme.allocate(lane(1), request()).await;
        let Err(ReservationError::NotReservable(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("its own txs or by scheme lane"), "{why}");
    }
    assert_eq!(bind_lanes(&client, &[lane(1)]).await.unwrap(), None);
    let free = schemes[0].allocate(lane(2), request()).await.unwrap();
    assert_eq!(free.nonce, Nonce(0));
}

#[tokio::test]
async fn first_scheme_to_use_a_lane_owns_it() {
    let database = database("first").await;
    let nodes = [client(database.url()).await, client(database.url()).await];
    let scheme = RowLock::new(db(database.url(), 2), None);
    scheme.allocate(lane(1), request()).await.unwrap();
    let lanes = [lane(2), lane(1), lane(3)];
    for node in &nodes {
        let reserved = bind_lanes(node, &lanes).await.unwrap();
        let reserved = reserved.expect("a node with this account must not start");
        assert!(
            reserved.contains(&lane(1).signer.to_string().to_lowercase()),
            "{reserved}"
        );
    }
    let free = scheme.allocate(lane(3), request()).await;
    assert!(free.is_ok(), "those did not start");
    // A node that has allocated nothing yet owns its lanes all the same.
    let own = [lane(2), lane(4)];
    assert_eq!(bind_lanes(&nodes[0], &own).await.unwrap(), None);
    for own in own {
        let refused = scheme.allocate(own, request()).await;
        assert!(
            matches!(refused, Err(ReservationError::NotReservable(_))),
            "{refused:?}"
        );
        assert_eq!(bind_lanes(&nodes[1], &[own, own]).await.unwrap(), None);
    }
}

/// A node and a scheme bind the same lane at the same moment: one is refused.
#[tokio::test]
async fn concurrent_binding_has_one_owner() {
    let database = database("at_once").await;
    let node = client(database.url()).await;
    let scheme = RowLock::new(db(database.url(), 2), None);
    for number in 1..=20 {
        let own = [lane(number)];
        let (bound, reserved) = tokio::join!(
            bind_lanes(&node, &own),
            scheme.allocate(lane(number), request())
        );
        let is_node_refused = bound.unwrap().is_some();
        assert_eq!(is_node_refused, reserved.is_ok(), "{reserved:?}");
    }
}

#[tokio::test]
async fn node_needs_no_ledger() {
    let database = shared(majors()[0]).database("no_ledger");
    let client = client(database.url()).await;
    assert_eq!(bind_lanes(&client, &[lane(1)]).await.unwrap(), None);
}

/// Its lanes may have holders, so that a node must not take them for its own.
#[tokio::test]
async fn ledger_without_a_version_is_refused() {
    let database = database("unversioned").await;
    let client = client(database.url()).await;
    for lost in [
        "DELETE FROM nonce_schema_version",
        "DROP TABLE nonce_schema_version",
    ] {
        database.exec(lost);
        let refused = bind_lanes(&client, &[lane(1)]).await;
        assert!(
            matches!(refused, Err(SchemaError::Unversioned)),
            "{refused:?}"
        );
    }
    let bound = database.query_value("SELECT count(*) FROM nonce_lane");
    assert_eq!(bound.as_deref(), Some("0"));
}
