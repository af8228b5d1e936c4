-- Functions that statements and other functions share.
--
-- Plans of functions are pinned, here and in the gate, the queue and the feed. They are cached per session, and a plan
-- that was made while a table was empty would read all of it for ever after. Rows are found by one key; the lane is
-- compared by IS NOT DISTINCT FROM, which no index can serve, so that no plan reads all rows of a lane.

-- The clock of all leases, in ms since 1970. Not the transaction's time, which does not advance.
CREATE FUNCTION lanekeeper_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- The store's history: another one after a standby was promoted, a restore declared, or a loss suspected. Fails on a standby.
-- (The timeline in the control file is stale right after a promotion.) It reads a file: statements call it once, not once
-- per row.
CREATE FUNCTION lanekeeper_history() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT lpad(to_hex(server.system_identifier # store.database), 16, '0')
    || '.' || ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
    || '.' || store.restores
    || '.' || store.suspicions
  FROM store_identity AS store, pg_control_system() AS server
$$;

-- The history in which the store was created.
UPDATE store_identity SET born = lanekeeper_history();

-- Whether a tx in this state is unfinished.
CREATE FUNCTION lanekeeper_is_open(state smallint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT state NOT IN (3, 4)
$$;

-- Whether the requester must assume that another holder of the lease is alive.
CREATE FUNCTION lanekeeper_is_held(
  owner text, incarnation uuid, expires_at bigint, requester text, skew bigint, alive uuid[], silent uuid[]
) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT owner IS NOT NULL AND owner <> requester AND expires_at <> 0 AND incarnation <> ALL (silent)
    AND (expires_at + skew > lanekeeper_now() OR incarnation = ANY (alive))
$$;

-- Creates the rows of new lanes. Each inner statement sees what others have committed meanwhile. A lane is reconciled in
-- the history in which the store was created: in a later one it may be missing because commits were lost.
CREATE FUNCTION lanekeeper_create_lanes(chains bigint[], signers bytea[]) RETURNS void LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO lane (chain_id, signer)
  SELECT DISTINCT w.chain_id, w.signer FROM unnest(chains, signers) AS w(chain_id, signer)
  ORDER BY w.chain_id, w.signer
  ON CONFLICT (chain_id, signer) DO NOTHING;

  INSERT INTO signer_lease (lane_id, token, renew_seq, expires_at, updated_at, history)
  SELECT lane.lane_id, 0, 0, 0, lanekeeper_now(), (SELECT born FROM store_identity)
  FROM lane JOIN unnest(chains, signers) AS w(chain_id, signer) USING (chain_id, signer)
  ORDER BY lane.lane_id
  ON CONFLICT (lane_id) DO NOTHING;

  INSERT INTO signer_nonce_cursor
    (lane_id, next_nonce, floor_nonce, event_seq, batch_seq, fencing_token, updated_at, grant_id, paused, busy)
  SELECT lane.lane_id, 0, 0, 0, 0, 0, lanekeeper_now(), '00000000-0000-0000-0000-000000000000', false, false
  FROM lane JOIN unnest(chains, signers) AS w(chain_id, signer) USING (chain_id, signer)
  ORDER BY lane.lane_id
  ON CONFLICT (lane_id) DO NOTHING;
END $$;


-- An operator declares that a backup was restored. From now on every lane is unreconciled, no grant and no cursor of the
-- feed holds any more, and every node notices it by its next heartbeat. The rows are locked as by takeovers, leases before
-- lane rows and each in lane order: a batch that is in progress lands before this, or is fenced. Returns the new history.
CREATE FUNCTION lanekeeper_declare_restore(why text) RETURNS text LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM FROM signer_lease ORDER BY lane_id FOR UPDATE;
  PERFORM FROM signer_nonce_cursor ORDER BY lane_id FOR UPDATE;
  UPDATE store_identity SET restores = restores + 1, cursor_tag = substr(uuid_send(gen_random_uuid()), 1, 4) WHERE one;
  INSERT INTO store_restore (number, declared_at, reason) SELECT restores, now(), why FROM store_identity;
  UPDATE signer_lease SET expires_at = 0, updated_at = lanekeeper_now();
  UPDATE signer_nonce_cursor SET grant_id = gen_random_uuid(), updated_at = lanekeeper_now();
  RETURN lanekeeper_history();
END $$;
