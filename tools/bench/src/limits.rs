//! The upper limits of `bench accept`: HTTP alone, and the store alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy_primitives::Address;
use axum::Json;
use axum::http::StatusCode;
use axum::routing::post;
use cli::{Failure, Signals, listener, print_line};
use domain::{ChainId, LaneKey};
use engine::ports::Store;
use serde_json::{Value, json};

use super::row_writer::{RowKind, RowWriter};

/// Rows in one commit.
const BATCH: usize = 500;

/// Answers POSTs of JSON with 202 and does nothing else.
pub(crate) async fn serve_http_limit() -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    signals.stop_when_stdin_ends();
    let listener = listener::bind(([127, 0, 0, 1], 0).into(), "--port").await?;
    let address = listener
        .local_addr()
        .map_err(|e| Failure::refused("cannot read the address of the listener", &e))?;
    let accept = |Json(_): Json<Value>| async { (StatusCode::ACCEPTED, Json(json!({}))) };
    let router = axum::Router::new().route("/api/v1/tx", post(accept));
    let (closing, closed) = tokio::sync::watch::channel(false);
    // The serving loop of a node, without the work behind it.
    let server = tokio::spawn(api::serve(listener, router, api::CONNECTIONS_MAX, closed));
    print_line!(
        "{}",
        json!({ "ready": true, "api": format!("http://{address}") })
    );
    signals.wait_for_stop().await;
    closing.send_replace(true);
    let ended = server
        .await
        .map_err(|e| Failure::refused("the HTTP server ended", &e))?;
    ended.map_err(|e| Failure::refused("the HTTP server ended", &e))
}

/// Measures how many rows per second the store writes without a node: the rows of accepted requests, in
/// batches of [`BATCH`] over these lanes, for about `duration`.
pub(crate) async fn measure_store_rate(
    store: Arc<dyn Store>,
    lanes: u32,
    kind: RowKind,
    duration: Duration,
) -> Result<f64, Failure> {
    let keys: Vec<LaneKey> = (0..lanes)
        .map(|n| LaneKey {
            chain_id: ChainId(1),
            signer: Address::left_padding_from(&n.to_be_bytes()),
        })
        .collect();
    let mut writer = RowWriter::open(store, &keys, kind).await?;
    let at_once = keys.len().min(BATCH);
    let mut count = 0_usize;
    let mut spent = Duration::ZERO;
    while spent < duration {
        // Building rows is not the store's work, so it is not measured.
        let rows_by_lane: Vec<(usize, usize)> =
            (0..at_once).map(|lane| (lane, BATCH / at_once)).collect();
        let batches = writer.build_batches(&rows_by_lane);
        count += (BATCH / at_once) * at_once;
        let started = Instant::now();
        writer.commit(batches).await?;
        spent += started.elapsed();
    }
    writer.close().await?;
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let count = count as f64;
    Ok(count / spent.as_secs_f64())
}
