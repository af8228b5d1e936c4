//! The nodes of the cluster.

use domain::{Incarnation, NodeName};
use engine::ports::{HeartbeatOutcome, Member};
use rusqlite::{Connection, params};

use super::fault::Result;
use super::history;
use super::rows::{number, select, time, uuid};
use crate::encoding::stored;

/// How many replaced incarnations of a node are kept, so that each learns that it was replaced.
const REPLACED_KEPT: i64 = 64;

/// Records a heartbeat, unless a later incarnation of the node exists.
///
/// No clock decides this: a new incarnation replaces the one before, and a replaced one never comes back.
pub(super) fn heartbeat(conn: &Connection, member: &Member) -> Result<HeartbeatOutcome> {
    const SEEN: &str = "UPDATE node SET advertise = ?2, started_at = ?3, seen_at = ?4, \
         draining = ?5, heartbeats = heartbeats + 1 WHERE incarnation = ?1 AND replaced = 0";
    const REPLACED: &str = "SELECT 1 FROM node WHERE incarnation = ?1";
    const REPLACE: &str = "UPDATE node SET replaced = 1 WHERE name = ?1 AND replaced = 0";
    const BEGIN: &str = "INSERT INTO node \
         (name, incarnation, advertise, started_at, seen_at, draining, replaced, heartbeats) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, 1)";
    const FORGET: &str = "DELETE FROM node WHERE name = ?1 AND replaced = 1 AND row_id NOT IN \
         (SELECT row_id FROM node WHERE name = ?1 ORDER BY row_id DESC LIMIT ?2)";
    let incarnation = member.incarnation.0.as_bytes().as_slice();
    let (started_at, seen_at) = (stored(member.started_at.0)?, stored(member.seen_at.0)?);
    let seen = params![
        incarnation,
        member.advertise,
        started_at,
        seen_at,
        member.draining
    ];
    if conn.prepare_cached(SEEN)?.execute(seen)? == 1 {
        return heartbeat_outcome(conn);
    }
    if conn.prepare_cached(REPLACED)?.exists([incarnation])? {
        return Ok(HeartbeatOutcome::Replaced);
    }
    conn.prepare_cached(REPLACE)?.execute([&member.node.0])?;
    conn.prepare_cached(BEGIN)?.execute(params![
        member.node.0,
        incarnation,
        member.advertise,
        started_at,
        seen_at,
        member.draining,
    ])?;
    conn.prepare_cached(FORGET)?
        .execute(params![member.node.0, REPLACED_KEPT])?;
    heartbeat_outcome(conn)
}

fn heartbeat_outcome(conn: &Connection) -> Result<HeartbeatOutcome> {
    Ok(HeartbeatOutcome::Recorded {
        members: members(conn)?,
        history: history::current(conn)?,
    })
}

/// All nodes, alive or not, each with its last incarnation only; by name.
pub(super) fn members(conn: &Connection) -> Result<Vec<Member>> {
    const SQL: &str = "SELECT name, incarnation, advertise, started_at, seen_at, draining, heartbeats \
         FROM node WHERE replaced = 0 ORDER BY name";
    select(conn, SQL, [], |row| {
        Ok(Member {
            node: NodeName(row.get(0)?),
            incarnation: Incarnation(uuid(row, 1)?),
            advertise: row.get(2)?,
            started_at: time(row, 3)?,
            seen_at: time(row, 4)?,
            draining: row.get(5)?,
            heartbeats: number(row, 6, "heartbeats")?,
        })
    })
}
