//! Lent nonces over HTTP: every answer and every refusal.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use domain::{Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation};
use engine::ports::{LaneReservations, NonceReservations, ReservationError};
use serde_json::{Value, json};
use sim::chain::MemoryChain;
use uuid::Uuid;

use crate::world::{Answer, CHAIN, LENT, Plan, SIGNER, TO, World, transfer};

async fn reservations() -> World {
    let chain = MemoryChain::new(CHAIN).auto_mining();
    Plan::new(chain).reservations().start().await
}

fn nonces() -> String {
    format!("/api/v1/lanes/31337/{LENT:#x}/nonces")
}

fn tx_hash(digit: char) -> String {
    format!("0x{}", digit.to_string().repeat(64))
}

async fn borrow(world: &World) -> (u64, String) {
    let lent = world.post(&nonces(), &json!({})).await;
    assert_eq!(lent.status, 201, "{}", lent.body);
    let holder = lent.body["holder"].as_str().unwrap().to_owned();
    (lent.body["nonce"].as_u64().unwrap(), holder)
}

async fn say(world: &World, nonce: u64, word: &str, body: Value) -> Answer {
    let path = format!("{}/{nonce}/{word}", nonces());
    world.post(&path, &body).await
}

#[tokio::test(start_paused = true)]
async fn a_nonce_is_borrowed_submitted_and_used() {
    let world = reservations().await;
    let lent = world.post(&nonces(), &json!({})).await;
    assert_eq!(lent.status, 201, "{}", lent.body);
    let body = &lent.body;
    assert_eq!(body["chainId"], CHAIN.0);
    assert_eq!(body["signer"], LENT.to_string());
    assert_eq!(
        (&body["nonce"], &body["state"]),
        (&json!(0), &json!("RESERVED"))
    );
    assert_eq!(
        (&body["txHash"], &body["reason"]),
        (&Value::Null, &Value::Null)
    );
    assert!(
        body["expiresAt"]
            .as_str()
            .is_some_and(|at| at.ends_with('Z'))
    );
    let holder = body["holder"].as_str().unwrap();
    assert!(Uuid::try_parse(holder).is_ok(), "{holder}");

    let sent = json!({"holder": holder, "txHash": tx_hash('1')});
    let said = say(&world, 0, "submitted", sent.clone()).await;
    assert_eq!(said.status, 200, "{}", said.body);
    assert_eq!(said.body["state"], "RESERVED");
    assert_eq!(said.body["txHash"], tx_hash('1'));
    for _ in 0..2 {
        let said = say(&world, 0, "used", sent.clone()).await;
        assert_eq!(
            (said.status.as_u16(), &said.body["state"]),
            (200, &json!("USED"))
        );
    }
    let back = json!({"holder": holder, "reason": "changed my mind"});
    let refused = say(&world, 0, "recyclable", back).await;
    let detail = refused.problem(409, "nonce-refused");
    assert!(detail.contains(&tx_hash('1')), "{detail}");
    assert_eq!(
        (&refused.body["retryable"], &refused.body["effect"]),
        (&json!(false), &json!("none"))
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_is_lent_to_the_next_and_listed_without_holders() {
    let world = reservations().await;
    let (nonce, former) = borrow(&world).await;
    let back = json!({"holder": former, "reason": "not needed"});
    for _ in 0..2 {
        let given = say(&world, nonce, "recyclable", back.clone()).await;
        assert_eq!(given.body["state"], "RECYCLABLE", "{}", given.body);
        assert_eq!(given.body["reason"], "not needed");
    }
    let sent = json!({"holder": former, "txHash": tx_hash('1')});
    let free = say(&world, nonce, "used", sent.clone()).await;
    assert!(free.problem(409, "nonce-refused").contains("is free"));
    let listed = world.get(&nonces()).await.body;
    assert_eq!(listed["nonces"][0]["state"], "RECYCLABLE", "{listed}");

    assert_eq!(borrow(&world).await.0, nonce, "the smallest free one");
    assert_eq!(borrow(&world).await.0, nonce + 1);
    let late = say(&world, nonce, "used", sent).await;
    assert!(
        late.problem(409, "nonce-refused")
            .contains("not lent to this holder")
    );
    let listed = world.get(&nonces()).await.body;
    assert_eq!(
        (&listed["nextNonce"], &listed["hasMore"]),
        (&json!(2), &json!(false))
    );
    let of = |index: usize| &listed["nonces"][index];
    assert_eq!((&of(0)["nonce"], &of(1)["nonce"]), (&json!(0), &json!(1)));
    assert!(
        of(0).get("holder").is_none(),
        "whoever knows it may speak: {listed}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_transaction_has_one_nonce() {
    let world = reservations().await;
    let lent = [borrow(&world).await, borrow(&world).await];
    let sent = |holder: &str| json!({"holder": holder, "txHash": tx_hash('1')});
    say(&world, 0, "submitted", sent(&lent[0].1)).await;
    let other = say(&world, 1, "submitted", sent(&lent[1].1)).await;
    assert!(
        other
            .problem(409, "nonce-refused")
            .contains("named for nonce 0")
    );
}

/// Path, body, and what the answer must mention.
fn bad_marks(holder: &str, hash: &str) -> [(&'static str, Value, &'static str); 14] {
    [
        (
            "x/used",
            json!({"holder": holder, "txHash": hash}),
            "decimal digits",
        ),
        (
            "-1/used",
            json!({"holder": holder, "txHash": hash}),
            "decimal digits",
        ),
        (
            "+1/used",
            json!({"holder": holder, "txHash": hash}),
            "decimal digits",
        ),
        (
            "18446744073709551615/used",
            json!({"holder": holder, "txHash": hash}),
            "decimal digits",
        ),
        ("0/used", json!({"holder": "me", "txHash": hash}), "holder"),
        (
            "0/used",
            json!({"holder": holder.replace('-', ""), "txHash": hash}),
            "holder",
        ),
        ("0/used", json!({"txHash": hash}), "holder"),
        ("0/used", json!({"holder": holder}), "txHash"),
        (
            "0/used",
            json!({"holder": holder, "txHash": "0x12"}),
            "txHash",
        ),
        (
            "0/submitted",
            json!({"holder": holder, "txHash": 7}),
            "string",
        ),
        (
            "0/used",
            json!({"holder": holder, "txHash": hash, "why": 1}),
            "why",
        ),
        ("0/recyclable", json!({"holder": holder}), "reason"),
        (
            "0/recyclable",
            json!({"holder": holder, "reason": "  "}),
            "reason",
        ),
        (
            "0/recyclable",
            json!({"holder": holder, "reason": "x".repeat(501)}),
            "reason",
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_told_and_changes_nothing() {
    let world = reservations().await;
    let (nonce, holder) = borrow(&world).await;
    let cases = bad_marks(&holder, &tx_hash('1'));
    for (path, body, mention) in cases {
        let answer = world.post(&format!("{}/{path}", nonces()), &body).await;
        assert_eq!(answer.status, 400, "{path} {body}: {}", answer.body);
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(mention), "{path} {body}: {detail}");
    }
    let unknown = world.post(&nonces(), &json!({"count": 5})).await;
    assert!(unknown.problem(400, "invalid-field").contains("count"));
    let asked = world.get(&format!("{}?limit=5", nonces())).await;
    assert_eq!(asked.status, 400, "{}", asked.body);
    let broken = Request::post(format!("{}/0/used", nonces()))
        .header("content-type", "application/json")
        .body(Body::from("{"));
    let broken = world.ask(broken.unwrap()).await;
    broken.problem(400, "invalid-json");
    let listed = world.get(&nonces()).await.body;
    assert_eq!(listed["nonces"][0]["nonce"], nonce);
    assert_eq!(listed["nonces"][0]["state"], "RESERVED");
    // To borrow, nothing need be said at all.
    let silent = Request::post(nonces()).body(Body::empty()).unwrap();
    assert_eq!(world.ask(silent).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn only_accounts_that_lend_lend_and_they_do_nothing_else() {
    let world = reservations().await;
    for (signer, mention) in [(SIGNER, "sends by itself"), (TO, "not configured")] {
        let path = format!("/api/v1/lanes/31337/{signer:#x}/nonces");
        for answer in [world.post(&path, &json!({})).await, world.get(&path).await] {
            let detail = answer.problem(409, "not-lendable");
            assert!(detail.contains(mention), "{detail}");
        }
    }
    let mut sends = transfer("r1");
    sends["signer"] = json!(LENT.to_string());
    let refused = world.post("/api/v1/tx", &sends).await;
    let detail = refused.body["detail"].as_str().unwrap();
    assert_eq!(refused.status, 400, "{detail}");
    assert!(detail.contains("lends its nonces"), "{detail}");

    let nobody = World::new().await;
    let refused = nobody.post(&nonces(), &json!({})).await;
    let detail = refused.problem(409, "not-lendable");
    assert!(detail.contains("kind = \"external\""), "{detail}");
}

/// Answers everything with one error.
struct Refusing(ReservationError);

#[async_trait]
impl NonceReservations for Refusing {
    async fn allocate(&self, _lane: LaneKey) -> Result<Reservation, ReservationError> {
        Err(self.0.clone())
    }

    async fn mark(
        &self,
        _lane: LaneKey,
        _nonce: Nonce,
        _holder: Holder,
        _mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        Err(self.0.clone())
    }

    async fn list_reservations(
        &self,
        _lane: LaneKey,
    ) -> Result<LaneReservations, ReservationError> {
        Err(self.0.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn every_refusal_says_whether_to_repeat_and_what_may_have_happened() {
    let why = || "why".to_owned();
    let nonce = Nonce(0);
    let cases = [
        (
            MarkRefusal::NotLent(nonce).into(),
            409,
            "nonce-refused",
            false,
            "none",
        ),
        (
            MarkRefusal::TwoNamed(nonce).into(),
            409,
            "nonce-refused",
            false,
            "none",
        ),
        (
            ReservationError::MayBeMined { nonce, why: why() },
            409,
            "nonce-may-be-mined",
            true,
            "none",
        ),
        (
            ReservationError::NotReservable(why()),
            409,
            "not-lendable",
            false,
            "none",
        ),
        (ReservationError::Busy, 429, "busy", true, "none"),
        (
            ReservationError::Unavailable(why()),
            503,
            "store-unavailable",
            true,
            "none",
        ),
        (
            ReservationError::Unknown(why()),
            503,
            "outcome-unknown",
            true,
            "unknown",
        ),
    ];
    for (error, status, slug, retryable, effect) in cases {
        assert_eq!(error.is_worth_repeating(), retryable, "{error}");
        let mut plan = Plan::new(MemoryChain::new(CHAIN).auto_mining());
        plan.api.lender = Some(Arc::new(Refusing(error)));
        let world = plan.start().await;
        let said = json!({"holder": Uuid::nil().to_string(), "reason": "no"});
        for answer in [
            world.post(&nonces(), &json!({})).await,
            say(&world, 0, "recyclable", said).await,
            world.get(&nonces()).await,
        ] {
            answer.problem(status, slug);
            assert_eq!(answer.body["retryable"], retryable, "{slug}");
            assert_eq!(answer.body["effect"], effect, "{slug}");
        }
    }
}
