//! The feed of all lanes, appended after the gate: any node may do it, at any time.

use domain::LaneId;
use tokio_postgres::types::Type;

use super::fault::Result;
use super::pool::Db;

/// Appends the new events of these lanes; without lanes: of all lanes that are behind. Parameters: lanes.
pub const FEED: &str = "SELECT lanekeeper_feed($1)";

pub(super) async fn extend_feed(db: &Db, lanes: &[LaneId]) -> Result<()> {
    let lanes: Vec<i64> = lanes.iter().map(|lane| lane.0).collect();
    db.writes.query(FEED, &[(&lanes, Type::INT8_ARRAY)]).await?;
    Ok(())
}
