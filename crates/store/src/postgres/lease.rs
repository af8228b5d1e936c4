//! Leases, by the database's clock, for many lanes in one statement. Both rows of a lane change owner
//! together; lease rows are locked before lane rows, each in lane order.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::lease::{Lease, LeaseRequest};
use domain::{GrantId, History, Incarnation, LaneId, LaneKey, LeaseGrant, NodeName, Token};
use engine::ports::{ACCEPTED_LOSS_GAP, AcquireOutcome, RenewOutcome};
use futures::StreamExt as _;
use postgres_client::QueryError;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::pool::{Db, Param};
use super::rows::{history, lane_key, number, time};
use crate::encoding::{Malformed, bits, bound, stored};

/// Takes the lanes that may be taken; locked rows are skipped. Parameters: chains, signers, grants,
/// requester, its incarnation, duration and skew in ms, alive, silent.
///
/// The lane's content must be read by a later statement: this one's snapshot is older than the locks
/// that it waited for.
pub const ACQUIRE: &str = "\
WITH want AS MATERIALIZED ( \
  SELECT lane.lane_id, lane.chain_id, lane.signer, w.grant_id \
  FROM unnest($1::bigint[], $2::bytea[], $3::uuid[]) AS w(chain_id, signer, grant_id) \
  JOIN lane ON lane.chain_id = w.chain_id AND lane.signer = w.signer \
), lease AS MATERIALIZED ( \
  SELECT l.lane_id, w.chain_id, w.signer, w.grant_id, \
    CASE WHEN l.owner = $4 AND l.incarnation = $5 THEN NULL ELSE l.owner END AS held_by, \
    (l.owner = $4 AND l.incarnation = $5 AND l.expires_at + $7 > lanekeeper_now()) IS TRUE AS mine \
  FROM signer_lease AS l JOIN want AS w ON w.lane_id = l.lane_id \
  WHERE l.halted IS NULL AND NOT lanekeeper_is_held(l.owner, l.incarnation, l.expires_at, $4, $7, $8, $9) \
  ORDER BY l.lane_id FOR NO KEY UPDATE OF l SKIP LOCKED \
), cursor AS MATERIALIZED ( \
  SELECT c.lane_id, p.chain_id, p.signer, p.grant_id, p.held_by, p.mine \
  FROM signer_nonce_cursor AS c JOIN lease AS p ON p.lane_id = c.lane_id \
  ORDER BY c.lane_id FOR NO KEY UPDATE OF c SKIP LOCKED \
), taken AS ( \
  UPDATE signer_lease AS l \
  SET token = l.token + CASE WHEN p.mine THEN 0 ELSE 1 END, renew_seq = l.renew_seq + 1, \
      owner = $4, incarnation = $5, expires_at = lanekeeper_now() + $6, updated_at = lanekeeper_now() \
  FROM cursor AS p WHERE l.lane_id = p.lane_id \
  RETURNING l.lane_id, l.token, l.history, l.accepted, p.chain_id, p.signer, p.grant_id, p.held_by \
) \
UPDATE signer_nonce_cursor AS c \
SET fencing_token = t.token, grant_id = t.grant_id, updated_at = lanekeeper_now() \
FROM taken AS t WHERE c.lane_id = t.lane_id \
RETURNING t.chain_id, t.signer, c.lane_id, t.token, t.grant_id, \
  t.held_by, (SELECT lanekeeper_history()), t.history = (SELECT lanekeeper_history()), \
  (t.accepted = (SELECT lanekeeper_history())) IS TRUE";

/// The holders of lanes that were not granted, and whether the requester must respect them.
pub(super) const HOLDERS: &str = "\
SELECT lane.chain_id, lane.signer, l.owner, l.incarnation, l.token, l.expires_at, \
  greatest(l.expires_at - lanekeeper_now(), 0), \
  lanekeeper_is_held(l.owner, l.incarnation, l.expires_at, $3, $4, $5, $6), l.halted \
FROM unnest($1::bigint[], $2::bytea[]) AS w(chain_id, signer) \
JOIN lane ON lane.chain_id = w.chain_id AND lane.signer = w.signer \
JOIN signer_lease AS l ON l.lane_id = lane.lane_id";

/// Creates the rows of new lanes. Parameters: chains, signers.
pub const CREATE_LANES: &str = "SELECT lanekeeper_create_lanes($1, $2)";

type LaneRequest = (LaneKey, GrantId);

/// How many lanes one statement takes or renews: few enough to be done in some milliseconds.
const LANES_MAX: usize = 1_000;

/// Lanes that are new to the database are created and requested again.
pub(super) async fn acquire(
    db: &Db,
    lease_request: &LeaseRequest,
    lanes: &[LaneRequest],
) -> Result<Vec<AcquireOutcome>> {
    let mut outcomes = Vec::with_capacity(lanes.len());
    for chunk in lanes.chunks(LANES_MAX) {
        let mut answers: BTreeMap<LaneKey, AcquireOutcome> = BTreeMap::new();
        let missing = acquire_existing(db, lease_request, chunk, &mut answers).await?;
        if !missing.is_empty() {
            let keys = LaneColumns::of(missing.iter().map(|(key, _)| *key));
            db.writes.query(CREATE_LANES, &keys.params()).await?;
            let gone = acquire_existing(db, lease_request, &missing, &mut answers).await?;
            if !gone.is_empty() {
                let text = "lanes that were created are not there".into();
                return Err(QueryError::Unknown(text).into());
            }
        }
        outcomes.extend(chunk.iter().map(|(key, grant)| match answers.get(key) {
            // A lane that was requested twice has one of the two grants.
            Some(AcquireOutcome::Granted { lease_grant, .. }) if lease_grant.grant != *grant => {
                AcquireOutcome::Busy
            }
            Some(answer) => answer.clone(),
            None => AcquireOutcome::Busy,
        }));
    }
    Ok(outcomes)
}

/// Requests lanes that may exist; returns those that do not.
async fn acquire_existing(
    db: &Db,
    lease_request: &LeaseRequest,
    lanes: &[LaneRequest],
    answers: &mut BTreeMap<LaneKey, AcquireOutcome>,
) -> Result<Vec<LaneRequest>> {
    let keys = LaneColumns::of(lanes.iter().map(|(key, _)| *key));
    let grants: Vec<Uuid> = lanes.iter().map(|(_, grant)| grant.0).collect();
    let requester = RequesterParams::of(lease_request)?;
    let mut params = keys.params();
    params.push((&grants, Type::UUID_ARRAY));
    params.extend(requester.acquire_params());
    for row in db.writes.query(ACQUIRE, &params).await? {
        let (key, answer) = granted(&row)?;
        answers.insert(key, answer);
    }
    let others = lanes.iter().filter(|(key, _)| !answers.contains_key(key));
    let others: Vec<LaneRequest> = others.copied().collect();
    if others.is_empty() {
        return Ok(others);
    }
    let keys = LaneColumns::of(others.iter().map(|(key, _)| *key));
    let mut params = keys.params();
    params.extend(requester.holder_params());
    for row in db.writes.query(HOLDERS, &params).await? {
        let is_held: bool = row.try_get(7)?;
        if let Some(reason) = row.try_get(8)? {
            answers.insert(lane_key(&row, 0)?, AcquireOutcome::Halted(reason));
            continue;
        }
        let answer = match lease_of(&row, 2)? {
            Some(lease) if is_held => AcquireOutcome::NotKeeper {
                lease,
                left: Duration::from_millis(number(&row, 6, "time")?),
            },
            // Free and not granted: its rows were locked.
            Some(_) | None => AcquireOutcome::Busy,
        };
        answers.insert(lane_key(&row, 0)?, answer);
    }
    let missing = others
        .into_iter()
        .filter(|(key, _)| !answers.contains_key(key));
    Ok(missing.collect())
}

fn granted(row: &Row) -> Result<(LaneKey, AcquireOutcome)> {
    let lease_grant = LeaseGrant {
        lane: LaneId(row.try_get(2)?),
        token: Token(number(row, 3, "token")?),
        grant: GrantId(row.try_get(4)?),
    };
    let answer = AcquireOutcome::Granted {
        lease_grant,
        previous_keeper: row.try_get::<_, Option<String>>(5)?.map(NodeName),
        history: history(row, 6)?,
        is_reconciled: row.try_get(7)?,
        is_loss_accepted: row.try_get(8)?,
    };
    Ok((lane_key(row, 0)?, answer))
}

/// Extends the requester's leases, also expired ones that no other node took: the token is the last one,
/// so nothing of another keeper can be overwritten. Locked rows are skipped. Parameters: lanes, tokens,
/// owner, incarnation, duration in ms. The last column is whether a lane that was not renewed seemed to
/// be the requester's.
pub const RENEW: &str = "\
WITH want AS MATERIALIZED ( \
  SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS w(lane_id, token) \
), ours AS MATERIALIZED ( \
  SELECT l.lane_id FROM signer_lease AS l JOIN want AS w ON w.lane_id = l.lane_id AND w.token = l.token \
  WHERE l.owner = $3 AND l.incarnation = $4 AND l.expires_at <> 0 \
  ORDER BY l.lane_id FOR NO KEY UPDATE OF l SKIP LOCKED \
), renewed AS ( \
  UPDATE signer_lease AS l \
  SET expires_at = lanekeeper_now() + $5, renew_seq = l.renew_seq + 1, updated_at = lanekeeper_now() \
  FROM ours WHERE l.lane_id = ours.lane_id \
  RETURNING l.lane_id, l.token \
) \
SELECT w.lane_id, w.token, renewed.lane_id IS NOT NULL, \
  (l.token = w.token AND l.owner = $3 AND l.incarnation = $4 AND l.expires_at <> 0) IS TRUE \
FROM want AS w LEFT JOIN renewed ON renewed.lane_id = w.lane_id AND renewed.token = w.token \
LEFT JOIN signer_lease AS l ON l.lane_id = w.lane_id";

pub(super) async fn renew(
    db: &Db,
    lease_request: &LeaseRequest,
    lease_grants: &[LeaseGrant],
) -> Result<Vec<RenewOutcome>> {
    let mut outcomes = Vec::with_capacity(lease_grants.len());
    for chunk in lease_grants.chunks(LANES_MAX) {
        let (lanes, tokens) = lanes_and_tokens(chunk)?;
        let requester = RequesterParams::of(lease_request)?;
        let params = [
            (&lanes as _, Type::INT8_ARRAY),
            (&tokens as _, Type::INT8_ARRAY),
            (&requester.node as _, Type::TEXT),
            (&requester.incarnation as _, Type::UUID),
            (&requester.duration as _, Type::INT8),
        ];
        let mut answers: BTreeMap<(i64, i64), RenewOutcome> = BTreeMap::new();
        for row in db.leases.query(RENEW, &params).await? {
            let answer = match (row.try_get(2)?, row.try_get(3)?) {
                (true, _) => RenewOutcome::Renewed,
                (false, true) => RenewOutcome::Busy,
                (false, false) => RenewOutcome::Lost,
            };
            answers.insert((row.try_get(0)?, row.try_get(1)?), answer);
        }
        let answers = lanes.iter().zip(&tokens).map(|(lane, token)| {
            let answer = answers.get(&(*lane, *token)).copied();
            answer.unwrap_or(RenewOutcome::Lost)
        });
        outcomes.extend(answers);
    }
    Ok(outcomes)
}

macro_rules! release {
    ($wait:literal) => {
        concat!(
            "WITH leases AS MATERIALIZED ( \
               SELECT l.lane_id, w.token, w.grant_id FROM signer_lease AS l \
               JOIN unnest($1::bigint[], $2::bigint[], $5::uuid[]) AS w(lane_id, token, grant_id) \
                 ON w.lane_id = l.lane_id AND w.token = l.token \
               WHERE l.owner = $3 AND l.incarnation = $4 \
               ORDER BY l.lane_id FOR NO KEY UPDATE OF l ",
            $wait,
            "), ours AS MATERIALIZED ( \
               SELECT c.lane_id FROM signer_nonce_cursor AS c JOIN leases AS w ON w.lane_id = c.lane_id \
               WHERE c.fencing_token = w.token AND c.grant_id = w.grant_id \
               ORDER BY c.lane_id FOR NO KEY UPDATE OF c ",
            $wait,
            ") \
             UPDATE signer_lease AS l SET expires_at = 0, updated_at = lanekeeper_now() \
             FROM ours WHERE l.lane_id = ours.lane_id RETURNING l.lane_id"
        )
    };
}

/// Releases lanes; locked rows are skipped. Parameters: lanes, tokens, owner, incarnation, grants.
///
/// The grant is compared because a node that acquires its own lane again keeps the token: a release of the earlier grant
/// that arrives late must not end the new one.
pub const RELEASE: &str = release!("SKIP LOCKED");
/// As [`RELEASE`], waiting for locked rows.
pub const RELEASE_WAITING: &str = release!("");

/// Releases lanes. A locked one does not delay the others.
pub(super) async fn release(
    db: &Db,
    lease_request: &LeaseRequest,
    lease_grants: &[LeaseGrant],
) -> Result<()> {
    let mut released: Vec<i64> = Vec::new();
    for some in lease_grants.chunks(LANES_MAX) {
        for row in release_with(db, RELEASE, lease_request, some).await? {
            released.push(row.try_get(0)?);
        }
    }
    released.sort_unstable();
    // Another node's, or locked.
    let mut others = Vec::new();
    for lease_grant in lease_grants {
        if released.binary_search(&lease_grant.lane.0).is_err() {
            let alone = std::slice::from_ref(lease_grant);
            others.push(release_with(db, RELEASE_WAITING, lease_request, alone));
        }
    }
    let answers: Vec<Result<Vec<Row>>> = futures::stream::iter(others)
        .buffer_unordered(db.writes.capacity())
        .collect()
        .await;
    answers.into_iter().try_for_each(|answer| answer.map(drop))
}

async fn release_with(
    db: &Db,
    sql: &str,
    lease_request: &LeaseRequest,
    lease_grants: &[LeaseGrant],
) -> Result<Vec<Row>> {
    let (lanes, tokens) = lanes_and_tokens(lease_grants)?;
    let grants: Vec<Uuid> = lease_grants.iter().map(|held| held.grant.0).collect();
    let params = [
        (&lanes as _, Type::INT8_ARRAY),
        (&tokens as _, Type::INT8_ARRAY),
        (&lease_request.node.0 as _, Type::TEXT),
        (&lease_request.incarnation.0 as _, Type::UUID),
        (&grants as _, Type::UUID_ARRAY),
    ];
    Ok(db.writes.query(sql, &params).await?)
}

macro_rules! update_lease_as_keeper {
    ($set:literal) => {
        update_lease_as_keeper!($set, "")
    };
    ($set:literal, $condition:literal) => {
        concat!(
            "WITH lease AS MATERIALIZED ( \
               SELECT l.lane_id FROM signer_lease AS l \
               WHERE l.lane_id = $1 AND l.token = $2 FOR NO KEY UPDATE OF l \
             ), ours AS MATERIALIZED ( \
               SELECT c.lane_id FROM signer_nonce_cursor AS c JOIN lease ON lease.lane_id = c.lane_id \
               WHERE c.fencing_token = $2 AND c.grant_id = $3 FOR NO KEY UPDATE OF c \
             ) \
             UPDATE signer_lease AS l SET updated_at = lanekeeper_now(), ",
            $set,
            " FROM ours WHERE l.lane_id = ours.lane_id",
            $condition,
            " RETURNING l.lane_id"
        )
    };
}

/// Records that a lane agreed with the chain under a history. Parameters: lane, token, grant, history. Both rows are
/// locked, so that no new grant comes in between. A restore that is declared meanwhile changes nothing: what is written
/// is the history that was compared, and that is another one then.
pub const MARK_RECONCILED: &str = update_lease_as_keeper!(
    "history = $4, accepted = NULL",
    " AND (SELECT lanekeeper_history()) = $4"
);

pub(super) async fn mark_reconciled(
    db: &Db,
    lease_grant: LeaseGrant,
    history: History,
) -> Result<bool> {
    let token = stored(lease_grant.token.0)?;
    let history = history.to_string();
    let mut params = keeper_params(&lease_grant, &token).to_vec();
    params.push((&history, Type::TEXT));
    // Without a row the grant is over, or the history: the present keeper reconciles the lane anew.
    Ok(!db.writes.query(MARK_RECONCILED, &params).await?.is_empty())
}

/// As [`MARK_RECONCILED`], for a lane that has lost commits: it is released, and no node gets it. The last
/// parameter is the reason.
pub const HALT: &str = update_lease_as_keeper!("halted = $4, expires_at = 0");

pub(super) async fn halt(db: &Db, lease_grant: LeaseGrant, reason: &str) -> Result<bool> {
    let token = stored(lease_grant.token.0)?;
    let mut params = keeper_params(&lease_grant, &token).to_vec();
    params.push((&reason, Type::TEXT));
    // Without a row the grant is over, and the present keeper reconciles the lane anew.
    Ok(!db.writes.query(HALT, &params).await?.is_empty())
}

fn keeper_params<'a>(lease_grant: &'a LeaseGrant, token: &'a i64) -> [Param<'a>; 3] {
    [
        (&lease_grant.lane.0 as _, Type::INT8),
        (token as _, Type::INT8),
        (&lease_grant.grant.0 as _, Type::UUID),
    ]
}

/// Begins another history, unless the store is on another one already. Parameters: the history, its suspicions. The count is
/// compared on the locked row, so that of several nodes with the same finding one begins it.
const SUSPECT_LOSS: &str = "\
UPDATE store_identity SET suspicions = suspicions + 1 \
WHERE one AND suspicions = $2 AND lanekeeper_history() = $1";

const HISTORY: &str = "SELECT lanekeeper_history()";

pub(super) async fn suspect_loss(db: &Db, seen: History) -> Result<History> {
    let (text, suspicions) = (seen.to_string(), stored(seen.suspicions)?);
    let params = [(&text as _, Type::TEXT), (&suspicions as _, Type::INT8)];
    db.writes.query(SUSPECT_LOSS, &params).await?;
    let rows = db.writes.query(HISTORY, &[]).await?;
    let row = rows.first().ok_or(Malformed("store_identity"))?;
    history(row, 0)
}

/// Halts a lane that has fewer commits than a node has seen, whichever node keeps it. Parameters: chain, signer, commits,
/// a new grant, the reason. Both rows are locked as by a takeover; the new grant fences the present keeper.
const HALT_LOST_LANE: &str = "\
WITH lease AS MATERIALIZED ( \
  SELECT l.lane_id FROM signer_lease AS l JOIN lane ON lane.lane_id = l.lane_id \
  WHERE lane.chain_id = $1 AND lane.signer = $2 AND l.halted IS NULL FOR NO KEY UPDATE OF l \
), behind AS MATERIALIZED ( \
  SELECT c.lane_id FROM signer_nonce_cursor AS c JOIN lease ON lease.lane_id = c.lane_id \
  WHERE c.batch_seq < $3 FOR NO KEY UPDATE OF c \
), fenced AS ( \
  UPDATE signer_nonce_cursor AS c SET grant_id = $4, updated_at = lanekeeper_now() \
  FROM behind WHERE c.lane_id = behind.lane_id RETURNING c.lane_id \
) \
UPDATE signer_lease AS l SET halted = $5, expires_at = 0, updated_at = lanekeeper_now() \
FROM fenced WHERE l.lane_id = fenced.lane_id RETURNING l.lane_id";

pub(super) async fn halt_lost_lane(
    db: &Db,
    lane: LaneKey,
    batch_seq: u64,
    grant: GrantId,
    reason: &str,
) -> Result<bool> {
    let keys = LaneColumns::of(std::iter::once(lane));
    db.writes.query(CREATE_LANES, &keys.params()).await?;
    let (chain, signer) = (bits(lane.chain_id.0), lane.signer.to_vec());
    let params = [
        (&chain as _, Type::INT8),
        (&signer as _, Type::BYTEA),
        (&bound(batch_seq) as _, Type::INT8),
        (&grant.0 as _, Type::UUID),
        (&reason as _, Type::TEXT),
    ];
    Ok(!db.writes.query(HALT_LOST_LANE, &params).await?.is_empty())
}

/// An operator accepts the loss: the lane may be granted again, and is reconciled under no history. Parameters: chain,
/// signer, the gap in the count of commits. The lease is locked before the lane row, which no keeper writes while the lane
/// is halted.
const ACCEPT_LOSS: &str = "\
WITH accepted AS ( \
  UPDATE signer_lease AS l \
  SET halted = NULL, history = '', accepted = (SELECT lanekeeper_history()), updated_at = lanekeeper_now() \
  FROM lane WHERE lane.chain_id = $1 AND lane.signer = $2 AND l.lane_id = lane.lane_id \
    AND l.halted IS NOT NULL RETURNING l.lane_id \
) \
UPDATE signer_nonce_cursor AS c SET batch_seq = c.batch_seq + $3, updated_at = lanekeeper_now() \
FROM accepted WHERE c.lane_id = accepted.lane_id RETURNING c.lane_id";

/// Whether the lane was halted.
pub(super) async fn accept_loss(db: &Db, lane: LaneKey) -> Result<bool> {
    let (chain, signer) = (bits(lane.chain_id.0), lane.signer.to_vec());
    let params = [
        (&chain as _, Type::INT8),
        (&signer as _, Type::BYTEA),
        (&bound(ACCEPTED_LOSS_GAP) as _, Type::INT8),
    ];
    Ok(!db.writes.query(ACCEPT_LOSS, &params).await?.is_empty())
}

/// A lease from four columns: owner, incarnation, token, expiry. `None` when it was never held.
pub(super) fn lease_of(row: &Row, at: usize) -> Result<Option<Lease>> {
    let Some(owner) = row.try_get::<_, Option<String>>(at)? else {
        return Ok(None);
    };
    Ok(Some(Lease {
        owner: NodeName(owner),
        incarnation: Incarnation(row.try_get(at + 1)?),
        token: Token(number(row, at + 2, "token")?),
        expires_at: time(row, at + 3)?,
    }))
}

fn lanes_and_tokens(lease_grants: &[LeaseGrant]) -> Result<(Vec<i64>, Vec<i64>)> {
    let columns = |grant: &LeaseGrant| Ok((grant.lane.0, stored(grant.token.0)?));
    lease_grants.iter().map(columns).collect()
}

/// Lanes as two columns.
pub(super) struct LaneColumns {
    chains: Vec<i64>,
    signers: Vec<Vec<u8>>,
}

impl LaneColumns {
    pub(super) fn of(keys: impl Iterator<Item = LaneKey>) -> Self {
        let (chains, signers) = keys
            .map(|key| (bits(key.chain_id.0), key.signer.to_vec()))
            .unzip();
        Self { chains, signers }
    }

    pub(super) fn params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.chains as _, Type::INT8_ARRAY),
            (&self.signers as _, Type::BYTEA_ARRAY),
        ]
    }
}

/// The requesting node, as parameters.
pub(super) struct RequesterParams<'a> {
    node: &'a str,
    incarnation: Uuid,
    duration: i64,
    skew: i64,
    alive: Vec<Uuid>,
    silent: Vec<Uuid>,
}

impl<'a> RequesterParams<'a> {
    pub(super) fn of(lease_request: &'a LeaseRequest) -> Result<Self> {
        let ms = |time: Duration| u64::try_from(time.as_millis()).map_or(i64::MAX, bound);
        let (duration, skew) = (ms(lease_request.duration), ms(lease_request.skew));
        // The database adds them to its clock.
        if duration.max(skew) > i64::MAX / 4 {
            return Err(Fault::Invalid(
                "the lease duration or skew is too long".into(),
            ));
        }
        let ids = |nodes: &[Incarnation]| nodes.iter().map(|incarnation| incarnation.0).collect();
        Ok(Self {
            node: &lease_request.node.0,
            incarnation: lease_request.incarnation.0,
            duration,
            skew,
            alive: ids(&lease_request.alive),
            silent: ids(&lease_request.silent),
        })
    }

    fn acquire_params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.node as _, Type::TEXT),
            (&self.incarnation as _, Type::UUID),
            (&self.duration as _, Type::INT8),
            (&self.skew as _, Type::INT8),
            (&self.alive as _, Type::UUID_ARRAY),
            (&self.silent as _, Type::UUID_ARRAY),
        ]
    }

    pub(super) fn holder_params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.node as _, Type::TEXT),
            (&self.skew as _, Type::INT8),
            (&self.alive as _, Type::UUID_ARRAY),
            (&self.silent as _, Type::UUID_ARRAY),
        ]
    }
}
