//! Reserved nonces over HTTP: every response and every refusal.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use domain::{Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation};
use engine::ports::{LaneReservations, NonceReservations, ReservationError};
use serde_json::{Value, json};
use sim::chain::{MemoryChain, RemoteChain, Staleness};
use sim::network::{Link, LinkFaults};
use sim::rng::Rng;
use uuid::Uuid;

use crate::world::{ApiResponse, CHAIN, Plan, RESERVABLE, SIGNER, TO, World, transfer};

async fn reservations() -> World {
    let chain = MemoryChain::new(CHAIN).auto_mining();
    Plan::new(chain).reservations().start().await
}

fn nonces() -> String {
    format!("/api/v1/lanes/31337/{RESERVABLE:#x}/nonces")
}

fn tx_hash(digit: char) -> String {
    format!("0x{}", digit.to_string().repeat(64))
}

async fn allocate_nonce(world: &World) -> (u64, String) {
    let allocated = world.post(&nonces(), &json!({})).await;
    assert_eq!(allocated.status, 201, "{}", allocated.body);
    let holder = allocated.body["holder"].as_str().unwrap().to_owned();
    (allocated.body["nonce"].as_u64().unwrap(), holder)
}

async fn mark_nonce(world: &World, nonce: u64, word: &str, body: Value) -> ApiResponse {
    let path = format!("{}/{nonce}/{word}", nonces());
    world.post(&path, &body).await
}

#[tokio::test(start_paused = true)]
async fn nonce_is_allocated_submitted_and_used() {
    let world = reservations().await;
    let allocated = world.post(&nonces(), &json!({})).await;
    assert_eq!(allocated.status, 201, "{}", allocated.body);
    let body = &allocated.body;
    assert_eq!(body["chainId"], CHAIN.0);
    assert_eq!(body["signer"], RESERVABLE.to_string());
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
    let marked = mark_nonce(&world, 0, "submitted", sent.clone()).await;
    assert_eq!(marked.status, 200, "{}", marked.body);
    assert_eq!(marked.body["state"], "RESERVED");
    assert_eq!(marked.body["txHash"], tx_hash('1'));
    for _ in 0..2 {
        let marked = mark_nonce(&world, 0, "used", sent.clone()).await;
        assert_eq!(
            (marked.status.as_u16(), &marked.body["state"]),
            (200, &json!("USED"))
        );
    }
    let release = json!({"holder": holder, "reason": "changed my mind"});
    let refused = mark_nonce(&world, 0, "recyclable", release).await;
    let detail = refused.problem(409, "nonce-refused");
    assert!(detail.contains(&tx_hash('1')), "{detail}");
    assert_eq!(
        (&refused.body["retryable"], &refused.body["effect"]),
        (&json!(false), &json!("none"))
    );
}

#[tokio::test(start_paused = true)]
async fn keeper_lists_free_nonces_without_a_query_of_its_chain() {
    let chain = MemoryChain::new(CHAIN).auto_mining();
    let link = Link::new(Rng::new(3), LinkFaults::NONE);
    let mut plan = Plan::new(chain.clone()).reservations();
    plan.ports.chains = vec![Arc::new(RemoteChain::new(
        chain,
        link.clone(),
        Staleness::NONE,
    ))];
    let world = plan.start().await;
    let (nonce, holder) = allocate_nonce(&world).await;
    let release = json!({"holder": holder, "reason": "not needed"});
    let released = mark_nonce(&world, nonce, "recyclable", release).await;
    assert_eq!(released.body["state"], "RECYCLABLE", "{}", released.body);
    link.cut(true);
    let listed = world.get(&nonces()).await.body;
    assert_eq!(listed["nonces"][0]["state"], "RECYCLABLE", "{listed}");
}

#[tokio::test(start_paused = true)]
async fn released_nonce_is_reissued_and_listed_without_holder() {
    let world = reservations().await;
    let (nonce, former) = allocate_nonce(&world).await;
    let release = json!({"holder": former, "reason": "not needed"});
    for _ in 0..2 {
        let released = mark_nonce(&world, nonce, "recyclable", release.clone()).await;
        assert_eq!(released.body["state"], "RECYCLABLE", "{}", released.body);
        assert_eq!(released.body["reason"], "not needed");
    }
    let sent = json!({"holder": former, "txHash": tx_hash('1')});
    let free = mark_nonce(&world, nonce, "used", sent.clone()).await;
    assert!(free.problem(409, "nonce-refused").contains("is free"));
    let listed = world.get(&nonces()).await.body;
    assert_eq!(listed["nonces"][0]["state"], "RECYCLABLE", "{listed}");

    assert_eq!(
        allocate_nonce(&world).await.0,
        nonce,
        "the smallest free one"
    );
    assert_eq!(allocate_nonce(&world).await.0, nonce + 1);
    let late = mark_nonce(&world, nonce, "used", sent).await;
    assert!(
        late.problem(409, "nonce-refused")
            .contains("not reserved for this holder")
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
        "the holder id authorizes marks, so it is not listed: {listed}"
    );
}

#[tokio::test(start_paused = true)]
async fn transaction_belongs_to_one_nonce() {
    let world = reservations().await;
    let allocated = [allocate_nonce(&world).await, allocate_nonce(&world).await];
    let sent = |holder: &str| json!({"holder": holder, "txHash": tx_hash('1')});
    mark_nonce(&world, 0, "submitted", sent(&allocated[0].1)).await;
    let other = mark_nonce(&world, 1, "submitted", sent(&allocated[1].1)).await;
    assert!(
        other
            .problem(409, "nonce-refused")
            .contains("named for nonce 0")
    );
}

/// Path, body, and what the response must mention.
#[expect(clippy::too_many_lines, reason = "a table, one case per entry")]
fn bad_marks(holder: &str, hash: &str) -> [(&'static str, Value, &'static str); 20] {
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
            "00/used",
            json!({"holder": holder, "txHash": hash}),
            "leading zeros",
        ),
        (
            "0/used",
            json!([holder, hash]),
            "must be an object, not an array",
        ),
        ("0/submitted", json!([holder, hash]), "must be an object"),
        (
            "0/recyclable",
            json!([holder, "not needed"]),
            "must be an object",
        ),
        (
            "0/used",
            json!({"holder": [holder], "txHash": hash}),
            "`holder` must be a string, not an array",
        ),
        (
            "0/recyclable",
            json!({"holder": holder, "reason": "a\nb"}),
            "control characters",
        ),
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
async fn invalid_input_is_refused_without_effect() {
    let world = reservations().await;
    let (nonce, holder) = allocate_nonce(&world).await;
    let cases = bad_marks(&holder, &tx_hash('1'));
    for (path, body, mention) in cases {
        let response = world.post(&format!("{}/{path}", nonces()), &body).await;
        assert_eq!(response.status, 400, "{path} {body}: {}", response.body);
        assert_ne!(
            response.body["type"], "urn:lanekeeper:problem:invalid-json",
            "{path} {body}"
        );
        let detail = response.body["detail"].as_str().unwrap();
        assert!(detail.contains(mention), "{path} {body}: {detail}");
    }
    let unknown = world.post(&nonces(), &json!({"count": 5})).await;
    assert!(unknown.problem(400, "invalid-field").contains("count"));
    let array = world.post(&nonces(), &json!([])).await;
    let detail = array.problem(400, "invalid-field");
    assert!(detail.contains("must be an object"), "{detail}");
    let asked = world.get(&format!("{}?limit=5", nonces())).await;
    assert_eq!(asked.status, 400, "{}", asked.body);
    let violation = Request::post(format!("{}/0/used", nonces()))
        .header("content-type", "application/json")
        .body(Body::from("{"));
    let violation = world.request(violation.unwrap()).await;
    violation.problem(400, "invalid-json");
    let listed = world.get(&nonces()).await.body;
    assert_eq!(listed["nonces"][0]["nonce"], nonce);
    assert_eq!(listed["nonces"][0]["state"], "RESERVED");
    // An allocation needs no body, but the type that pages of other sites cannot send.
    let silent = Request::post(nonces()).body(Body::empty()).unwrap();
    let refused = world.request(silent).await;
    refused.problem(415, "unsupported-media-type");
    let silent = Request::post(nonces()).header("content-type", "application/json");
    let silent = silent.body(Body::empty()).unwrap();
    assert_eq!(world.request(silent).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn only_external_signers_have_reservable_nonces() {
    let world = reservations().await;
    for (chain, signer, status, slug, mention) in [
        (31_337, SIGNER, 409, "not-lendable", "sends by itself"),
        (31_337, TO, 404, "unknown-signer", "signer of kind external"),
        (5, RESERVABLE, 404, "unknown-chain", "chain 5"),
    ] {
        let path = format!("/api/v1/lanes/{chain}/{signer:#x}/nonces");
        for response in [world.post(&path, &json!({})).await, world.get(&path).await] {
            let detail = response.problem(status, slug);
            assert!(detail.contains(mention), "{detail}");
        }
    }
    let mut sends = transfer("r1");
    sends["signer"] = json!(RESERVABLE.to_string());
    let refused = world.post("/api/v1/tx", &sends).await;
    let detail = refused.body["detail"].as_str().unwrap();
    assert_eq!(refused.status, 400, "{detail}");
    assert!(detail.contains("signer of kind external"), "{detail}");

    let without_reservations = World::new().await;
    let refused = without_reservations.post(&nonces(), &json!({})).await;
    refused.problem(404, "unknown-signer");
    let path = format!("/api/v1/lanes/31337/{SIGNER:#x}/nonces");
    let refused = without_reservations.post(&path, &json!({})).await;
    let detail = refused.problem(409, "not-lendable");
    assert!(detail.contains("kind = \"external\""), "{detail}");
}

/// Answers every call with one error.
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

#[expect(clippy::too_many_lines, reason = "a table, one case per entry")]
#[tokio::test(start_paused = true)]
async fn every_refusal_states_retryability_and_effect() {
    let why = || "why".to_owned();
    let nonce = Nonce(0);
    let cases = [
        (
            MarkRefusal::NotReserved(nonce).into(),
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
            ReservationError::UnknownChain(CHAIN),
            404,
            "unknown-chain",
            false,
            "none",
        ),
        (
            ReservationError::UnknownSigner(CHAIN, TO),
            404,
            "unknown-signer",
            false,
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
        plan.api.reservations = Some(Arc::new(Refusing(error)));
        let world = plan.start().await;
        let marked = json!({"holder": Uuid::nil().to_string(), "reason": "no"});
        for response in [
            world.post(&nonces(), &json!({})).await,
            mark_nonce(&world, 0, "recyclable", marked).await,
            world.get(&nonces()).await,
        ] {
            response.problem(status, slug);
            assert_eq!(response.body["retryable"], retryable, "{slug}");
            assert_eq!(response.body["effect"], effect, "{slug}");
        }
    }
}
