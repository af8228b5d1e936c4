//! What nothing of ours could exceed: HTTP alone, and the store alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy_primitives::Address;
use axum::Json;
use axum::http::StatusCode;
use axum::routing::post;
use domain::{ChainId, LaneKey};
use engine::ports::Store;
use serde_json::{Value, json};

use super::filler::{Filler, Rows};
use crate::failure::Failure;
use crate::open;
use crate::output::say;
use crate::signals::Signals;

/// Rows in one commit.
const BATCH: usize = 500;

/// Serves POSTs of JSON with 202 and does nothing else.
pub(crate) async fn serve_http() -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    signals.also_when_stdin_ends();
    let listener = open::bind(([127, 0, 0, 1], 0).into(), "nothing").await?;
    let address = listener
        .local_addr()
        .map_err(|e| Failure::refused("the listener", &e))?;
    let taken = |Json(_): Json<Value>| async { (StatusCode::ACCEPTED, Json(json!({}))) };
    let router = axum::Router::new().route("/api/v1/tx", post(taken));
    let (closing, closed) = tokio::sync::watch::channel(false);
    // The same serving loop as the node's: only the work behind it is left out.
    let server = tokio::spawn(api::serve(listener, router, closed));
    say!(
        "{}",
        json!({ "ready": true, "api": format!("http://{address}") })
    );
    signals.stop().await;
    closing.send_replace(true);
    let ended = server
        .await
        .map_err(|e| Failure::refused("the server", &e))?;
    ended.map_err(|e| Failure::refused("the server", &e))
}

/// Rows per second that the bare store takes: those that accepting makes, in batches of
/// [`BATCH`] over as many lanes, for about `duration`.
pub(crate) async fn store_rate(
    store: Arc<dyn Store>,
    lanes: u32,
    rows: Rows,
    duration: Duration,
) -> Result<f64, Failure> {
    let keys: Vec<LaneKey> = (0..lanes)
        .map(|n| LaneKey {
            chain_id: ChainId(1),
            signer: Address::left_padding_from(&n.to_be_bytes()),
        })
        .collect();
    let mut filler = Filler::open(store, &keys, rows).await?;
    let at_once = keys.len().min(BATCH);
    let mut count = 0_usize;
    let mut spent = Duration::ZERO;
    while spent < duration {
        // Making rows is not the store's work, so it is not measured.
        let wanted: Vec<(usize, usize)> =
            (0..at_once).map(|lane| (lane, BATCH / at_once)).collect();
        let batches = filler.batches(&wanted);
        count += (BATCH / at_once) * at_once;
        let started = Instant::now();
        filler.commit(batches).await?;
        spent += started.elapsed();
    }
    filler.close().await?;
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let count = count as f64;
    Ok(count / spent.as_secs_f64())
}
