//! The closed list and the documents that callers get.

use std::fmt::Write as _;

use axum::body::to_bytes;
use domain::{Address, ChainId, NodeName, RequestId};
use expect_test::expect;
use strum::VariantArray as _;

use super::*;

#[test]
fn list_of_problems() {
    let mut page = String::new();
    for &kind in ProblemKind::VARIANTS {
        let repeat = if kind.is_retryable() { "retry" } else { "-" };
        let effect = match kind.may_have_effect() {
            true => "unknown",
            false => "none",
        };
        let status = kind.status().as_u16();
        writeln!(
            page,
            "{status} {} {repeat} {effect}: {}",
            kind.slug(),
            kind.title()
        )
        .unwrap();
    }
    expect![[r#"
        400 invalid-json - none: The body is not JSON
        400 invalid-field - none: A field is not valid
        400 invalid-path - none: A part of the path is not valid
        400 invalid-query - none: A query parameter is not valid
        400 invalid-header - none: A header is not valid
        400 invalid-cursor - none: The cursor is not valid
        400 invalid-payload - none: The payload is not valid
        401 unauthenticated - none: A valid API key is needed
        403 missing-scope - none: The API key may not do this
        403 not-a-peer - none: The caller is not a node of this cluster
        403 foreign-page - none: A page of another site may not do this
        404 unknown-path - none: No such path
        404 unknown-tx - none: No such tx
        404 unknown-lane - none: No such lane
        404 unknown-chain - none: The chain is not configured
        404 unknown-signer - none: The signer is not configured
        405 method-not-allowed - none: The path has no such method
        408 body-timeout retry unknown: The body arrived too slowly
        409 not-keeper retry none: Another node keeps the lane
        409 lane-not-halted - none: The lane is not halted
        409 nonce-refused - none: The reservation is in another state, or has another holder
        409 nonce-may-be-mined retry none: The nonce's transaction may still be mined
        409 not-lendable - none: The account's nonces cannot be reserved
        413 body-too-large - none: The body is too large
        421 foreign-host - none: The node does not have this name
        415 unsupported-media-type - none: The body must be JSON
        422 request-id-reused - none: The requestId was used for another payload
        422 call-reverts - none: The call reverts
        422 underfunded - none: The account cannot pay for the call
        422 gas-above-limit - none: No block can hold the gas limit
        422 gas-too-low - none: The gas limit is too low for the call
        422 fee-below-floor - none: The fee is too low for the chain at present
        422 type-not-supported - none: The transaction type is not supported
        429 busy retry none: Too many requests are queued
        429 too-many-waiters retry none: Too many callers are waiting
        429 too-many-streams retry none: Too many event streams are open
        429 too-many-connections retry none: Too many connections are open
        500 internal retry unknown: A bug in Lanekeeper
        500 store-corrupt - none: Stored data cannot be read
        503 chain-unavailable retry none: The chain does not answer
        503 store-unavailable retry none: The store does not answer
        503 outcome-unknown retry unknown: The outcome is not known
        503 lane-halted - none: The lane is halted
        503 draining retry none: The node is shutting down
    "#]]
    .assert_eq(&page);
}

#[test]
fn every_kind_has_its_own_slug() {
    let slugs = ProblemKind::VARIANTS.iter().map(|kind| kind.slug());
    let mut slugs: Vec<_> = slugs.collect();
    slugs.sort_unstable();
    slugs.dedup();
    assert_eq!(slugs.len(), ProblemKind::VARIANTS.len());
}

#[tokio::test]
async fn document_has_headers_and_every_member() {
    let response = Problem::from(Refusal::OutcomeUnknown).into_response();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    assert_eq!(response.headers()[RETRY_AFTER], "1");
    let body = to_bytes(response.into_body(), 4_096).await.unwrap();
    expect![[r#"{"type":"urn:lanekeeper:problem:outcome-unknown","title":"The outcome is not known","status":503,"detail":"the store's answer was lost; repeat the request, with the same requestId if it has one, to learn what happened","retryable":true,"effect":"unknown"}"#]].assert_eq(std::str::from_utf8(&body).unwrap());
}

#[test]
fn transient_problems_have_a_retry_after() {
    for &kind in ProblemKind::VARIANTS {
        let response = Problem::new(kind, "").into_response();
        let wants = [409, 429, 503].contains(&kind.status().as_u16());
        assert_eq!(
            response.headers().contains_key(RETRY_AFTER),
            wants && kind.is_retryable(),
            "{kind:?}"
        );
        assert_eq!(
            response.headers().contains_key(WWW_AUTHENTICATE),
            kind.status() == 401,
            "{kind:?}"
        );
    }
}

#[test]
fn refusals_map_to_the_documented_status() {
    let key = RequestId::parse("r1").unwrap();
    let cases = [
        (Refusal::UnknownChain(ChainId(5)), 404, "chain 5"),
        (
            Refusal::UnknownSigner(ChainId(5), Address::ZERO),
            404,
            "0x0000",
        ),
        (Refusal::KeyReused(key), 422, "r1"),
        (Refusal::BadPayload("why".into()), 400, "why"),
        (Refusal::GasAboveLimit("why".into()), 422, "why"),
        (Refusal::GasTooLow("why".into()), 422, "why"),
        (Refusal::FeeBelowFloor("why".into()), 422, "why"),
        (Refusal::TypeNotSupported("why".into()), 422, "why"),
        (Refusal::Reverted("why".into()), 422, "why"),
        (Refusal::Underfunded("why".into()), 422, "why"),
        (Refusal::Busy, 429, "try again"),
        (Refusal::NotKeeper(NodeName("b".into())), 409, "node b"),
        (Refusal::ChainUnavailable("why".into()), 503, "why"),
        (Refusal::StoreUnavailable("why".into()), 503, "why"),
        (Refusal::OutcomeUnknown, 503, "same requestId"),
        (Refusal::Halted("why".into()), 503, "halted: why"),
        (Refusal::Draining, 503, "shutting down"),
    ];
    for (refusal, status, mention) in cases {
        let is_open = refusal.may_have_effect();
        let problem = Problem::from(refusal);
        assert_eq!(problem.kind.status(), status, "{problem}");
        assert!(problem.detail.contains(mention), "{problem}");
        assert_eq!(problem.may_have_effect, is_open, "{problem}");
    }
    let cases = [
        (StoreError::Unavailable("why".into()), 503),
        (StoreError::Busy("why".into()), 429),
        (StoreError::Corrupt("why".into()), 500),
        (StoreError::Invalid("why".into()), 400),
    ];
    for (error, status) in cases {
        assert_eq!(Problem::from(error).kind.status(), status);
    }
}
