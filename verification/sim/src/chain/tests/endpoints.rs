//! Several endpoints: each knows its own part of the truth, and together they say what can be believed.

use super::*;

fn three() -> (MemoryChain, RemoteChain) {
    let chain = MemoryChain::new(CHAIN).with_endpoints(3);
    let wires = (1..=3).map(|seed| Wire::new(Rng::new(seed), WireFaults::healthy(3)));
    let view = RemoteChain::over(chain.clone(), wires.collect(), Staleness::NONE);
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
    let mut outcomes = chain.send(std::slice::from_ref(outgoing)).await;
    outcomes.remove(0)
}

async fn twice(chain: &dyn Chain) -> EndpointNonces {
    let asked = chain.account_nonces(account(), ChainQuery::Pending, Quorum::Two);
    asked.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_node_takes_it_only_when_every_node_says_so() {
    let (chain, view) = three();
    let everywhere = marked(REJECTED).await;
    let told = send_one(&view, &everywhere).await;
    assert!(matches!(told, SendOutcome::Rejected(_)), "{told:?}");
    chain.set_down(2, true);
    let told = send_one(&view, &everywhere).await;
    assert!(matches!(told, SendOutcome::Refused(_)), "{told:?}");
    let disputed = marked(DISPUTED).await;
    assert_eq!(send_one(&view, &disputed).await, SendOutcome::Accepted);
    let wavering = UnsignedEnvelope {
        data: WAVERING.into(),
        gas: 100_000,
        ..envelope(1, 5)
    };
    let wavering = sign(wavering).await;
    chain.set_down(2, false);
    chain.set_strict(true);
    let told = send_one(&view, &wavering).await;
    assert!(matches!(told, SendOutcome::Rejected(_)), "{told:?}");
    chain.set_strict(false);
    assert_eq!(send_one(&view, &wavering).await, SendOutcome::Accepted);
}

#[tokio::test(start_paused = true)]
async fn pools_differ_until_nodes_talk() {
    let (chain, view) = three();
    let (hash, told) = send(&view, 0, 5).await;
    assert_eq!(told, SendOutcome::Accepted);
    let nonces = twice(&view).await;
    assert_eq!(nonces.first.pending, Nonce(1));
    assert_eq!(nonces.second.unwrap().pending, Nonce(0));
    assert!(nonces.is_complete);
    chain.gossip(|| true);
    assert_eq!(twice(&view).await.second.unwrap().pending, Nonce(1));
    chain.lose_pool(0);
    assert_eq!(chain.pool().len(), 1, "others have it");
    chain.mine();
    assert_eq!(view.receipts(&[hash], Quorum::One).await.unwrap().len(), 1);
    let one = view.account_nonces(account(), ChainQuery::Latest, Quorum::One);
    let one = one.await.unwrap();
    assert_eq!((one.second, one.is_complete), (None, false));
}

#[tokio::test(start_paused = true)]
async fn one_that_lags_is_asked_last_and_one_that_is_down_not_at_all() {
    let (chain, view) = three();
    let (hash, _) = send(&view, 0, 5).await;
    chain.mine();
    chain.mine();
    chain.set_lag(0, 2);
    let head = view.header(BlockTag::Latest).await.unwrap().unwrap();
    assert_eq!(head, chain.head());
    chain.set_down(1, true);
    let nonces = twice(&view).await;
    assert_eq!(nonces.first.latest, Nonce(1));
    assert_eq!(nonces.second.unwrap().latest, Nonce(0), "two blocks ago");
    chain.set_down(2, true);
    let head = view.header(BlockTag::Latest).await.unwrap().unwrap();
    assert_eq!(head.number, 0);
    let asked = view.account_nonces(account(), ChainQuery::Latest, Quorum::Two);
    assert!(asked.await.is_err(), "nobody else answers");
    assert_eq!(view.receipts(&[hash], Quorum::One).await, Ok(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn safe_and_final_blocks_lie_below_the_head() {
    let (chain, view) = three();
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
async fn who_consumed_a_nonce_is_found_in_its_block() {
    let (chain, view) = three();
    let ours = send(&view, 0, 5).await.0;
    chain.mine();
    let way = ForeignWay::Private;
    let theirs = chain.use_account(account(), "foreign", 50 * GWEI, way);
    send(&view, 1, 5).await;
    chain.mine();
    chain.mine();
    let theirs = theirs.expect("past all pools").hash;
    let blocks = view.headers(0, 9).await.unwrap();
    let who = |nonce| view.find_consumer(account(), Nonce(nonce), blocks[3]);
    assert_eq!(who(0).await.map(NonceConsumer::hash), Ok(Some(ours)));
    assert_eq!(who(1).await.map(NonceConsumer::hash), Ok(Some(theirs)));
    assert_eq!(who(2).await, Ok(NonceConsumer::Nobody));
    let early = view.find_consumer(account(), Nonce(1), blocks[1]).await;
    assert_eq!(early, Ok(NonceConsumer::Nobody));
    let elsewhere = domain::Header {
        number: 2,
        ..blocks[1]
    };
    let elsewhere = view.find_consumer(account(), Nonce(1), elsewhere).await;
    assert!(elsewhere.is_err(), "on another branch");
    view.set(Staleness {
        blind: 1_000,
        ..Staleness::NONE
    });
    assert_eq!(who(1).await, Ok(NonceConsumer::Unseen));
    chain.set_down(1, true);
    chain.set_down(2, true);
    assert!(who(1).await.is_err(), "one is not two");
}

#[tokio::test(start_paused = true)]
async fn somebody_elses_transaction_holds_its_place() {
    let (chain, view) = three();
    let way = ForeignWay::Pool(0);
    let theirs = chain.use_account(account(), "foreign", 50 * GWEI, way);
    assert_eq!(theirs.expect("it is free").envelope.nonce, Nonce(0));
    let told = send(&view, 0, 5).await.1;
    assert!(matches!(told, SendOutcome::ForeignPending(_)), "{told:?}");
    assert_eq!(chain.foreign_pending().len(), 1);
    chain.set_fees(60 * GWEI, GWEI);
    chain.drop_cheap_foreign();
    assert_eq!(chain.foreign_pending(), []);
    assert_eq!(send(&view, 0, 5).await.1, SendOutcome::Accepted);
}
