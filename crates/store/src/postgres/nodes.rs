//! The nodes of the cluster.

use domain::{Incarnation, NodeName};
use engine::ports::{HeartbeatOutcome, Member};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::fault::Result;
use super::pool::{Db, Pool};
use super::rows::{history, number, time};
use crate::cursor::{CursorTag, StoreTag};
use crate::encoding::{Malformed, stored};

/// How many replaced incarnations of a node are kept, so that each learns that it was replaced.
const REPLACED_KEPT: i64 = 64;
/// How long a silent node is kept, by the clock of a node that starts. (Names may be as short-lived as
/// containers are.) One that was only silent is inserted anew.
const SILENT_KEPT_MS: i64 = 30 * 24 * 60 * 60 * 1_000;
/// The most nodes that are returned.
const MEMBERS_MAX: i64 = 10_000;

/// The columns that [`member`] reads.
macro_rules! member_columns {
    () => {
        "name, incarnation, advertise, started_at, seen_at, heartbeats, draining"
    };
}

// One statement, so that a frozen node holds no lock. No clock decides: a new incarnation replaces those
// before it, and a replaced one never comes back. Two incarnations that start at the same moment do not
// see each other yet: the one with the higher row wins, at its next heartbeat, and until then only that
// one is returned. Rows of a name are only ever locked downwards, so there is no deadlock.
// $1 incarnation, $2 name, $3 advertise, $4 started_at, $5 seen_at, $6 draining.
pub(super) const HEARTBEAT: &str = concat!(
    "WITH beat AS ( \
       INSERT INTO node \
         (incarnation, name, advertise, started_at, seen_at, draining, heartbeats, replaced) \
       VALUES ($1, $2, $3, $4, $5, $6, 1, false) \
       ON CONFLICT (incarnation) DO UPDATE \
         SET advertise = excluded.advertise, started_at = excluded.started_at, \
             seen_at = excluded.seen_at, draining = excluded.draining, heartbeats = node.heartbeats + 1 \
         WHERE NOT node.replaced \
       RETURNING row_id, ",
    member_columns!(),
    "), replaced AS ( \
       UPDATE node SET replaced = true \
       FROM beat WHERE node.name = $2 AND node.row_id < beat.row_id AND NOT node.replaced \
     ), forgotten AS ( \
       DELETE FROM node USING beat \
       WHERE beat.heartbeats = 1 AND ( \
         (node.name = $2 AND node.replaced AND node.row_id < coalesce(( \
            SELECT kept.row_id FROM node AS kept WHERE kept.name = $2 AND kept.replaced \
            ORDER BY kept.row_id DESC OFFSET $7 - 1 LIMIT 1), 0)) \
         OR (node.name <> $2 AND NOT node.replaced AND node.seen_at < $5 - $8) \
       ) \
     ) \
     SELECT * FROM ( \
       SELECT ",
    member_columns!(),
    " FROM beat \
       UNION ALL \
       (SELECT DISTINCT ON (name) ",
    member_columns!(),
    " FROM node WHERE name <> $2 AND NOT replaced ORDER BY name, row_id DESC) \
     ) AS member, (SELECT lanekeeper_history() AS history, identity.cursor_tag FROM beat, store_identity AS identity) AS store \
     ORDER BY name LIMIT $9"
);

/// Records a heartbeat, and returns the other nodes.
pub(super) async fn heartbeat(
    db: &Db,
    cursor_tag: &CursorTag,
    node: &Member,
) -> Result<HeartbeatOutcome> {
    let rows = db
        .leases
        .query(
            HEARTBEAT,
            &[
                (&node.incarnation.0, Type::UUID),
                (&node.node.0, Type::TEXT),
                (&node.advertise, Type::TEXT),
                (&stored(node.started_at.0)?, Type::INT8),
                (&stored(node.seen_at.0)?, Type::INT8),
                (&node.draining, Type::BOOL),
                (&REPLACED_KEPT, Type::INT8),
                (&SILENT_KEPT_MS, Type::INT8),
                (&MEMBERS_MAX, Type::INT8),
            ],
        )
        .await?;
    // Nothing was written: the incarnation was replaced.
    let Some(first) = rows.first() else {
        return Ok(HeartbeatOutcome::Replaced);
    };
    let tag = StoreTag::try_from(first.try_get::<_, &[u8]>(8)?);
    cursor_tag.set(tag.map_err(|_wrong_length| Malformed("cursor tag"))?);
    Ok(HeartbeatOutcome::Recorded {
        history: history(first, 7)?,
        members: rows.iter().map(member).collect::<Result<_, _>>()?,
    })
}

pub(super) const MEMBERS: &str = concat!(
    "SELECT DISTINCT ON (name) ",
    member_columns!(),
    " FROM node WHERE NOT replaced ORDER BY name, row_id DESC LIMIT $1"
);

/// All nodes, alive or not, each with its last incarnation only; by name.
pub(super) async fn members(pool: &Pool) -> Result<Vec<Member>> {
    let rows = pool.query(MEMBERS, &[(&MEMBERS_MAX, Type::INT8)]).await?;
    rows.iter().map(member).collect()
}

/// A row of [`member_columns`].
fn member(row: &Row) -> Result<Member> {
    Ok(Member {
        node: NodeName(row.try_get(0)?),
        incarnation: Incarnation(row.try_get(1)?),
        advertise: row.try_get(2)?,
        started_at: time(row, 3)?,
        seen_at: time(row, 4)?,
        heartbeats: number(row, 5, "count")?,
        draining: row.try_get(6)?,
    })
}
