//! Several endpoints: each knows a part of the truth, and together they show what can be trusted.

use super::*;

fn chain_with_three_endpoints() -> (MemoryChain, RemoteChain) {
    let chain = MemoryChain::new(CHAIN).with_endpoints(3);
    let links = (1..=3).map(|seed| Link::new(Rng::new(seed), LinkFaults::healthy(3)));
    let view = RemoteChain::with_links(chain.clone(), links.collect(), Staleness::NONE);
    (chain, view)
}

async fn marked(mark: [u8; 4]) -> OutgoingEnvelope {
    let data = mark.into();
    sign(UnsignedEnvelope {
        data,
        gas: 100_000,
        ..envelope(0, 5)
    })
    .await
}

async fn send_one(chain: &dyn Chain, outgoing: &OutgoingEnvelope) -> SendOutcome {
    let mut outcomes = send_all(chain, std::slice::from_ref(outgoing)).await;
    outcomes.remove(0)
}

async fn query_nonces_twice(chain: &dyn Chain) -> EndpointNonces {
    let nonces = chain.account_nonces(account(), ChainQuery::Pending, Quorum::Two);
    nonces.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn tx_is_rejected_only_when_every_endpoint_rejects_it() {
    let (chain, view) = chain_with_three_endpoints();
    let everywhere = marked(REJECTED).await;
    let recorded = send_one(&view, &everywhere).await;
    assert!(matches!(recorded, SendOutcome::Rejected(_)), "{recorded:?}");
    chain.set_down(2, true);
    let recorded = send_one(&view, &everywhere).await;
    assert!(matches!(recorded, SendOutcome::Refused(_)), "{recorded:?}");
    let disputed = marked(DISPUTED).await;
    assert_eq!(send_one(&view, &disputed).await, SendOutcome::Accepted);
    let sometimes_rejected = UnsignedEnvelope {
        data: SOMETIMES_REJECTED.into(),
        gas: 100_000,
        ..envelope(1, 5)
    };
    let sometimes_rejected = sign(sometimes_rejected).await;
    chain.set_down(2, false);
    chain.set_strict(true);
    let recorded = send_one(&view, &sometimes_rejected).await;
    assert!(matches!(recorded, SendOutcome::Rejected(_)), "{recorded:?}");
    chain.set_strict(false);
    assert_eq!(
        send_one(&view, &sometimes_rejected).await,
        SendOutcome::Accepted
    );
}

#[tokio::test(start_paused = true)]
async fn mempools_differ_until_gossip() {
    let (chain, view) = chain_with_three_endpoints();
    let (hash, recorded) = send(&view, 0, 5).await;
    assert_eq!(recorded, SendOutcome::Accepted);
    let nonces = query_nonces_twice(&view).await;
    assert_eq!(nonces.first.pending, Nonce(1));
    assert_eq!(nonces.second.unwrap().pending, Nonce(0));
    assert!(nonces.is_complete());
    chain.gossip(|| true);
    assert_eq!(
        query_nonces_twice(&view).await.second.unwrap().pending,
        Nonce(1)
    );
    chain.lose_pool(0);
    assert_eq!(chain.pool().len(), 1, "other mempools have it");
    chain.mine();
    assert_eq!(view.receipts(&[hash], Quorum::One).await.unwrap().len(), 1);
    let one = view.account_nonces(account(), ChainQuery::Latest, Quorum::One);
    let one = one.await.unwrap();
    assert_eq!((one.second, one.is_complete()), (None, false));
}

#[tokio::test(start_paused = true)]
async fn lagging_endpoint_is_called_last_and_down_endpoint_never() {
    let (chain, view) = chain_with_three_endpoints();
    let (hash, _) = send(&view, 0, 5).await;
    chain.mine();
    chain.mine();
    chain.set_lag(0, 2);
    let head = view.header(BlockTag::Latest).await.unwrap().unwrap();
    assert_eq!(head, chain.head());
    chain.set_down(1, true);
    let nonces = query_nonces_twice(&view).await;
    assert_eq!(nonces.first.latest, Nonce(1));
    assert_eq!(nonces.second.unwrap().latest, Nonce(0), "two blocks ago");
    chain.set_down(2, true);
    let head = view.header(BlockTag::Latest).await.unwrap().unwrap();
    assert_eq!(head.number, 0);
    let nonces = query_nonces_twice(&view).await;
    assert_eq!((nonces.second, nonces.agreement), (None, Agreement::Living));
    assert_eq!(view.receipts(&[hash], Quorum::One).await, Ok(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn safe_and_final_blocks_are_below_the_head() {
    let (chain, view) = chain_with_three_endpoints();
    chain.set_tags(2, 4);
    for _ in 0..6 {
        chain.mine();
    }
    let (safe, last) = (
        view.header(BlockTag::Safe).await.unwrap(),
        view.header(BlockTag::Finalized).await.unwrap(),
    );
    assert_eq!((safe.unwrap().number, last.unwrap().number), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn nonce_consumer_is_found_in_its_block() {
    let (chain, view) = chain_with_three_endpoints();
    let ours = send(&view, 0, 5).await.0;
    chain.mine();
    let way = ForeignRoute::Private;
    let foreign = chain.submit_foreign_tx(account(), "foreign", 50 * GWEI, way);
    send(&view, 1, 5).await;
    chain.mine();
    chain.mine();
    let foreign = foreign.expect("sent privately").hash;
    let blocks = view.headers(0, 9).await.unwrap();
    let consumer = |nonce| view.find_consumer(account(), Nonce(nonce), blocks[3]);
    assert_eq!(consumer(0).await.map(NonceConsumer::hash), Ok(Some(ours)));
    assert_eq!(
        consumer(1).await.map(NonceConsumer::hash),
        Ok(Some(foreign))
    );
    assert_eq!(consumer(2).await, Ok(NonceConsumer::NotConsumed));
    let early = view.find_consumer(account(), Nonce(1), blocks[1]).await;
    assert_eq!(early, Ok(NonceConsumer::NotConsumed));
    let elsewhere = domain::Header {
        number: 2,
        ..blocks[1]
    };
    let elsewhere = view.find_consumer(account(), Nonce(1), elsewhere).await;
    assert!(elsewhere.is_err(), "on another branch");
    view.set_staleness(Staleness {
        without_old_blocks: 1_000,
        ..Staleness::NONE
    });
    assert_eq!(consumer(1).await, Ok(NonceConsumer::Unattributed));
    chain.set_down(1, true);
    chain.set_down(2, true);
    assert!(consumer(1).await.is_err(), "one endpoint is not two");
}

#[tokio::test(start_paused = true)]
async fn foreign_transaction_keeps_its_nonce() {
    let (chain, view) = chain_with_three_endpoints();
    let way = ForeignRoute::Pool(0);
    let foreign = chain.submit_foreign_tx(account(), "foreign", 50 * GWEI, way);
    assert_eq!(foreign.expect("it is free").envelope.nonce, Nonce(0));
    let recorded = send(&view, 0, 5).await.1;
    assert!(
        matches!(recorded, SendOutcome::ForeignPending(_)),
        "{recorded:?}"
    );
    assert_eq!(chain.foreign_pending().len(), 1);
    chain.set_fees(60 * GWEI, GWEI);
    chain.drop_cheap_foreign();
    assert_eq!(chain.foreign_pending(), []);
    assert_eq!(send(&view, 0, 5).await.1, SendOutcome::Accepted);
}

#[tokio::test(start_paused = true)]
async fn endpoint_that_hangs_on_sends_leaves_time_for_the_next_one() {
    let (chain, view) = chain_with_three_endpoints();
    chain.set_hangs_on_sends(0, true);
    let outgoing = sign(envelope(0, 5)).await;
    let began = tokio::time::Instant::now();
    assert_eq!(send_one(&view, &outgoing).await, SendOutcome::Accepted);
    assert!(began.elapsed() < Duration::from_secs(4));
    (1..3).for_each(|endpoint| chain.set_hangs_on_sends(endpoint, true));
    let recorded = send_one(&view, &outgoing).await;
    assert!(matches!(recorded, SendOutcome::Unknown(_)), "{recorded:?}");
    assert!(
        began.elapsed() < Duration::from_secs(64),
        "before the trust is over"
    );
}
