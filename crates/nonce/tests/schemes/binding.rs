//! A lane belongs to one scheme, or to the txs of its keeper.

use domain::Nonce;
use engine::ports::LendError;
use nonce::postgres::lent_here;
use nonce::{RowLock, Scheme, Segment, SegmentConfig};

use crate::kit::{borrow, client, clock, database, db, lane};

#[tokio::test]
async fn what_a_lane_of_the_store_beside_it_deals_is_not_lent() {
    let database = database("binding").await;
    let client = client(database.url()).await;
    // As far as the books look at them.
    client
        .batch_execute(
            "CREATE TABLE lane (lane_id bigint, chain_id bigint, signer bytea); \
             CREATE TABLE signer_nonce_cursor (lane_id bigint)",
        )
        .await
        .unwrap();
    const KEPT: &str = "INSERT INTO lane VALUES (7, $1, $2)";
    let chain = i64::try_from(lane(1).chain_id.0).unwrap();
    let signer = lane(1).signer.to_vec();
    client.execute(KEPT, &[&chain, &signer]).await.unwrap();
    client
        .batch_execute("INSERT INTO signer_nonce_cursor VALUES (7)")
        .await
        .unwrap();

    let schemes: [&dyn Scheme; 2] = [
        &RowLock::new(db(database.url(), 2), None),
        &Segment::new(db(database.url(), 2), clock(), SegmentConfig::default()),
    ];
    for scheme in schemes {
        let refused = scheme.allocate(lane(1), borrow()).await;
        let Err(LendError::NotLendable(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("its own txs or by scheme lane"), "{why}");
    }
    let lanes = [lane(1), lane(2)];
    assert_eq!(lent_here(&client, &lanes).await.unwrap(), None);
    let free = schemes[0].allocate(lane(2), borrow()).await.unwrap();
    assert_eq!(free.nonce, Nonce(0));
    let lent = lent_here(&client, &lanes).await.unwrap();
    let lent = lent.expect("and a node with this account must not start");
    assert!(
        lent.contains(&lane(2).signer.to_string().to_lowercase()),
        "{lent}"
    );
}
