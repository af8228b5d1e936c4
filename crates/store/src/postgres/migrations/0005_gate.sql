-- What runs inside the database: the clock, the gate, the queue and the feed. The number in a name is
-- its version: a rolling deploy installs the next one beside it.
--
-- Plans are pinned. They are cached per session, and one that was made while a table was empty would
-- read the whole of it for ever after. Rows are found by one key; the lane is compared by IS NOT DISTINCT
-- FROM, which no index can serve, so that no plan goes through all rows of a lane.

-- The one clock for leases, in ms since 1970. Not the transaction's: that one stands still.
CREATE FUNCTION lk_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- Which history of the server this is: another one after a standby was promoted. Fails on a standby.
-- (The control file's timeline is stale right after a promotion.)
CREATE FUNCTION lk_history() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
$$;

-- Whether a tx in this state is unfinished.
CREATE FUNCTION lk_open(state smallint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT state NOT IN (3, 4)
$$;

-- Whether the asker must take the holder of a lease for alive.
CREATE FUNCTION lk_kept_1(
  owner text, incarnation uuid, expires_at bigint, asker text, skew bigint, lively uuid[], silent uuid[]
) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT owner IS NOT NULL AND owner <> asker AND expires_at <> 0 AND incarnation <> ALL (silent)
    AND (expires_at + skew > lk_now() OR incarnation = ANY (lively))
$$;

-- Makes the rows of lanes that are new. Each inner statement sees what others committed meanwhile.
CREATE FUNCTION lk_make_lanes_1(chains bigint[], signers bytea[]) RETURNS void LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO lane (chain_id, signer)
  SELECT DISTINCT w.chain_id, w.signer FROM unnest(chains, signers) AS w(chain_id, signer)
  ORDER BY w.chain_id, w.signer
  ON CONFLICT (chain_id, signer) DO NOTHING;

  INSERT INTO signer_lease (lane_id, token, renew_seq, expires_at, updated_at, history)
  SELECT lane.lane_id, 0, 0, 0, lk_now(), lk_history()
  FROM lane JOIN unnest(chains, signers) AS w(chain_id, signer) USING (chain_id, signer)
  ORDER BY lane.lane_id
  ON CONFLICT (lane_id) DO NOTHING;

  INSERT INTO signer_nonce_cursor
    (lane_id, next_nonce, floor_nonce, event_seq, last_batch, fencing_token, updated_at, grant_id, paused, busy)
  SELECT lane.lane_id, 0, 0, 0, 0, 0, lk_now(), '00000000-0000-0000-0000-000000000000', false, false
  FROM lane JOIN unnest(chains, signers) AS w(chain_id, signer) USING (chain_id, signer)
  ORDER BY lane.lane_id
  ON CONFLICT (lane_id) DO NOTHING;
END $$;

-- How many of these rows belong to lanes that passed the fence.
CREATE FUNCTION lk_share_1(lanes bigint[], ok bigint[]) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN (SELECT count(*) FROM unnest(lanes) AS x(lane_id) WHERE x.lane_id = ANY (ok));
END $$;

-- The gate. Answers with the lanes that were applied; a lane that is missing was locked, or is not the
-- caller's. Any count that is off raises LK001 and takes everything back.
--   l: lanes   i: new txs   u: changed txs   a: new attempts   m: txs that get their first attempt and
--   change in nothing else   s: attempts that a node has taken   wa, wd: wake rows added and done
-- An array may be shorter than its neighbours: what is missing is NULL.
CREATE FUNCTION lk_gate_1(
  l_lane bigint[], l_token bigint[], l_grant uuid[], l_batch bigint[], l_seq bigint[], l_next bigint[],
  l_floor bigint[], l_paused boolean[], l_at bigint[], l_node text[], l_events integer[], l_body bytea[],
  i_lane bigint[], i_created bigint[], i_gas bigint[], i_tx uuid[], i_type smallint[], i_request text[],
  i_fingerprint bytea[], i_to bytea[], i_value bytea[], i_gas_asked bytea[], i_max_fee bytea[],
  i_max_priority_fee bytea[], i_gas_price bytea[], i_data bytea[], i_state smallint[], i_sub smallint[],
  i_signed boolean[], i_nonce bigint[], i_token bigint[], i_updated bigint[], i_confirmed bigint[],
  i_hash bytea[], i_inclusion bytea[], i_counted bytea[], i_seqs bytea[], i_reason text[],
  u_lane bigint[], u_tx uuid[], u_state smallint[], u_sub smallint[], u_signed boolean[], u_nonce bigint[],
  u_token bigint[], u_updated bigint[], u_confirmed bigint[], u_hash bytea[], u_inclusion bytea[],
  u_counted bytea[], u_seqs bytea[], u_reason text[],
  a_lane bigint[], a_nonce bigint[], a_gas bigint[], a_signed bigint[], a_tx uuid[], a_kind smallint[],
  a_hash bytea[], a_fees bytea[], a_raw bytea[], a_sent bigint[],
  m_lane bigint[], m_tx uuid[],
  s_lane bigint[], s_hash bytea[], s_at bigint[],
  wa_lane bigint[], wa_tx uuid[], wd_lane bigint[], wd_tx uuid[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT
  SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET jit = off AS $$
#variable_conflict use_column
DECLARE ok bigint[]; all_ok boolean; n bigint; done bigint; need bigint; gives_up boolean;
BEGIN
  -- The fence: lock in lane order, waiting for nobody, then write the row that a takeover must write too.
  SELECT array_agg(x.lane_id) INTO ok FROM (
    SELECT c.lane_id FROM signer_nonce_cursor AS c
    JOIN unnest(l_lane, l_token, l_grant, l_batch, l_seq) AS w(lane_id, token, grant_id, batch, seq)
      ON w.lane_id = c.lane_id
    WHERE c.fencing_token = w.token AND c.grant_id = w.grant_id
      AND c.last_batch = w.batch AND c.event_seq = w.seq
    ORDER BY c.lane_id FOR NO KEY UPDATE OF c SKIP LOCKED) AS x;
  IF ok IS NULL THEN RETURN '{}'; END IF;
  all_ok := cardinality(ok) = cardinality(l_lane);

  UPDATE signer_nonce_cursor AS c
  SET next_nonce = w.next, floor_nonce = w.floor, event_seq = w.seq + w.events, last_batch = w.batch + 1,
      updated_at = w.at, paused = coalesce(w.paused, c.paused), busy = w.floor < w.next
  FROM unnest(l_lane, l_batch, l_seq, l_next, l_floor, l_paused, l_at, l_events)
    AS w(lane_id, batch, seq, next, floor, paused, at, events)
  WHERE (all_ok OR w.lane_id = ANY (ok)) AND c.lane_id = w.lane_id AND c.next_nonce <= w.next;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n <> cardinality(ok) THEN
    RAISE EXCEPTION 'lane rows: % of %', n, cardinality(ok) USING ERRCODE = 'LK001';
  END IF;

  -- Nonces that are given up first: they are free for the others of this batch.
  need := CASE WHEN all_ok THEN cardinality(u_lane) ELSE lk_share_1(u_lane, ok) END;
  IF need > 0 THEN
    done := 0;
    FOREACH gives_up IN ARRAY ARRAY[true, false] LOOP
      CONTINUE WHEN gives_up AND array_position(u_nonce, NULL) IS NULL
        AND cardinality(u_nonce) = cardinality(u_lane);
      UPDATE managed_tx AS t
      SET state = u.state, sub_state = u.sub_state, signed = t.signed OR u.signed, nonce = u.nonce,
          token = u.token, updated_at = u.updated_at, confirmed_at = u.confirmed_at,
          past_nonces = CASE WHEN t.nonce IS DISTINCT FROM u.nonce AND t.nonce IS NOT NULL
                             THEN array_append(t.past_nonces, t.nonce) ELSE t.past_nonces END,
          tx_hash = u.tx_hash, inclusion = u.inclusion, counted = u.counted, event_seqs = u.event_seqs,
          reason = u.reason
      FROM unnest(u_lane, u_tx, u_state, u_sub, u_signed, u_nonce, u_token, u_updated, u_confirmed,
                  u_hash, u_inclusion, u_counted, u_seqs, u_reason)
        AS u(lane_id, tx_id, state, sub_state, signed, nonce, token, updated_at, confirmed_at,
             tx_hash, inclusion, counted, event_seqs, reason)
      WHERE (all_ok OR u.lane_id = ANY (ok)) AND (u.nonce IS NULL) = gives_up
        AND t.tx_id = u.tx_id AND t.lane_id IS NOT DISTINCT FROM u.lane_id;
      GET DIAGNOSTICS n = ROW_COUNT;
      done := done + n;
    END LOOP;
    IF done <> need THEN RAISE EXCEPTION 'changed txs: % of %', done, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  -- In the order of the unfenced queue, so that the two never wait for each other in a circle.
  need := CASE WHEN all_ok THEN cardinality(i_lane) ELSE lk_share_1(i_lane, ok) END;
  IF need > 0 THEN
    INSERT INTO managed_tx
      (lane_id, created_at, gas, tx_id, tx_type, request_id, fingerprint, to_address, value, gas_asked,
       max_fee, max_priority_fee, gas_price, data, state, sub_state, signed, nonce, token, updated_at,
       confirmed_at, tx_hash, inclusion, counted, event_seqs, reason)
    SELECT t.*
    FROM unnest(i_lane, i_created, i_gas, i_tx, i_type, i_request, i_fingerprint, i_to, i_value, i_gas_asked,
                i_max_fee, i_max_priority_fee, i_gas_price, i_data, i_state, i_sub, i_signed, i_nonce,
                i_token, i_updated, i_confirmed, i_hash, i_inclusion, i_counted, i_seqs, i_reason)
      AS t(lane_id, created_at, gas, tx_id, tx_type, request_id, fingerprint, to_address, value, gas_asked,
           max_fee, max_priority_fee, gas_price, data, state, sub_state, signed, nonce, token, updated_at,
           confirmed_at, tx_hash, inclusion, counted, event_seqs, reason)
    WHERE all_ok OR t.lane_id = ANY (ok)
    ORDER BY t.lane_id, t.request_id COLLATE "C";
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'new txs: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(a_lane) ELSE lk_share_1(a_lane, ok) END;
  IF need > 0 THEN
    INSERT INTO tx_attempt (lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw, first_sent_at)
    SELECT a.*
    FROM unnest(a_lane, a_nonce, a_gas, a_signed, a_tx, a_kind, a_hash, a_fees, a_raw, a_sent)
      AS a(lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw, first_sent_at)
    WHERE all_ok OR a.lane_id = ANY (ok);
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'attempts: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(m_lane) ELSE lk_share_1(m_lane, ok) END;
  IF need > 0 THEN
    UPDATE managed_tx AS t SET signed = true
    FROM unnest(m_lane, m_tx) AS m(lane_id, tx_id)
    WHERE (all_ok OR m.lane_id = ANY (ok)) AND t.tx_id = m.tx_id AND t.lane_id IS NOT DISTINCT FROM m.lane_id;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'txs of attempts: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(s_lane) ELSE lk_share_1(s_lane, ok) END;
  IF need > 0 THEN
    UPDATE tx_attempt AS a SET first_sent_at = coalesce(a.first_sent_at, s.at)
    FROM unnest(s_lane, s_hash, s_at) AS s(lane_id, hash, at)
    WHERE (all_ok OR s.lane_id = ANY (ok)) AND a.hash = s.hash AND a.lane_id IS NOT DISTINCT FROM s.lane_id;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'sent attempts: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(wd_lane) ELSE lk_share_1(wd_lane, ok) END;
  IF need > 0 THEN
    DELETE FROM tx_wake AS x USING unnest(wd_lane, wd_tx) AS k(lane_id, tx_id)
    WHERE (all_ok OR k.lane_id = ANY (ok)) AND x.lane_id = k.lane_id AND x.tx_id = k.tx_id;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'wake rows done: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(wa_lane) ELSE lk_share_1(wa_lane, ok) END;
  IF need > 0 THEN
    INSERT INTO tx_wake (lane_id, tx_id)
    SELECT k.lane_id, k.tx_id FROM unnest(wa_lane, wa_tx) AS k(lane_id, tx_id)
    JOIN managed_tx AS t ON t.tx_id = k.tx_id AND t.lane_id IS NOT DISTINCT FROM k.lane_id
    WHERE all_ok OR k.lane_id = ANY (ok);
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'wake rows added: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  INSERT INTO lane_event (lane_id, first_seq, at, token, count, node, body)
  SELECT w.lane_id, w.seq + 1, w.at, w.token, w.events, w.node, w.body
  FROM unnest(l_lane, l_seq, l_at, l_token, l_events, l_node, l_body)
    AS w(lane_id, seq, at, token, events, node, body)
  WHERE (all_ok OR w.lane_id = ANY (ok)) AND w.events > 0;
  RETURN ok;
END $$;

-- The one unfenced write: new requests with a wake row each. Answers with the tx of every key, in the
-- order given, also when another node inserted it in this very moment: the answer is read by a later inner
-- statement than the one that waited for it.
CREATE FUNCTION lk_queue_1(
  chains bigint[], signers bytea[], i_created bigint[], i_gas bigint[], i_tx uuid[], i_type smallint[],
  i_request text[], i_fingerprint bytea[], i_to bytea[], i_value bytea[], i_gas_asked bytea[],
  i_max_fee bytea[], i_max_priority_fee bytea[], i_gas_price bytea[], i_data bytea[], i_state smallint[],
  i_sub smallint[], i_seqs bytea[]
) RETURNS SETOF managed_tx LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT
  SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET jit = off AS $$
#variable_conflict use_column
DECLARE reason text;
BEGIN
  IF EXISTS (
    SELECT FROM unnest(chains, signers) AS w(chain_id, signer)
    LEFT JOIN lane ON lane.chain_id = w.chain_id AND lane.signer = w.signer
    WHERE lane.lane_id IS NULL
  ) THEN
    PERFORM lk_make_lanes_1(chains, signers);
  END IF;

  -- A lane that has lost commits, or may have, must not take a request again that was carried out.
  SELECT coalesce(l.halted, 'the database''s history changed, and the lane is not compared with its chain yet')
    INTO reason
  FROM unnest(chains, signers, i_request) AS w(chain_id, signer, request_id)
  JOIN lane ON lane.chain_id = w.chain_id AND lane.signer = w.signer
  JOIN signer_lease AS l ON l.lane_id = lane.lane_id
  LEFT JOIN managed_tx AS tx ON tx.lane_id = lane.lane_id AND tx.request_id = w.request_id
  WHERE (l.halted IS NOT NULL OR l.history <> lk_history()) AND tx.tx_id IS NULL
  LIMIT 1;
  IF FOUND THEN RAISE EXCEPTION '%', reason USING ERRCODE = 'LK002'; END IF;

  WITH new AS (
    INSERT INTO managed_tx
      (lane_id, created_at, gas, tx_id, tx_type, request_id, fingerprint, to_address, value, gas_asked,
       max_fee, max_priority_fee, gas_price, data, state, sub_state, signed, token, updated_at, event_seqs)
    SELECT lane.lane_id, t.created_at, t.gas, t.tx_id, t.tx_type, t.request_id, t.fingerprint, t.to_address,
           t.value, t.gas_asked, t.max_fee, t.max_priority_fee, t.gas_price, t.data, t.state, t.sub_state,
           false, 0, t.created_at, t.event_seqs
    FROM unnest(chains, signers, i_created, i_gas, i_tx, i_type, i_request, i_fingerprint, i_to, i_value,
                i_gas_asked, i_max_fee, i_max_priority_fee, i_gas_price, i_data, i_state, i_sub, i_seqs)
      AS t(chain_id, signer, created_at, gas, tx_id, tx_type, request_id, fingerprint, to_address, value,
           gas_asked, max_fee, max_priority_fee, gas_price, data, state, sub_state, event_seqs)
    JOIN lane ON lane.chain_id = t.chain_id AND lane.signer = t.signer
    ORDER BY lane.lane_id, t.request_id COLLATE "C"
    ON CONFLICT (lane_id, request_id) DO NOTHING
    RETURNING lane_id, tx_id
  )
  INSERT INTO tx_wake (lane_id, tx_id) SELECT new.lane_id, new.tx_id FROM new;

  RETURN QUERY
    SELECT tx.* FROM unnest(chains, signers, i_request) WITH ORDINALITY AS k(chain_id, signer, request_id, n)
    JOIN lane ON lane.chain_id = k.chain_id AND lane.signer = k.signer
    JOIN managed_tx AS tx ON tx.lane_id = lane.lane_id AND tx.request_id = k.request_id
    ORDER BY k.n;
END $$;

-- Appends what these lanes wrote to the feed; without lanes: of all that are behind. The head is locked
-- by a statement of its own, so that the next one sees whatever was fed before: nobody skips or repeats,
-- and positions become visible in their order. Answers with how many rows it appended.
CREATE FUNCTION lk_feed_1(lanes bigint[]) RETURNS bigint LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT
  SET plan_cache_mode = force_custom_plan
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET jit = off AS $$
#variable_conflict use_column
DECLARE head bigint; behind bigint[]; n bigint;
BEGIN
  -- Without the lock first: most often somebody who sweeps finds nothing, and should write nothing.
  IF cardinality(lanes) = 0 THEN
    SELECT array_agg(c.lane_id) INTO behind FROM signer_nonce_cursor AS c
    LEFT JOIN lane_feed AS f ON f.lane_id = c.lane_id WHERE c.event_seq > coalesce(f.fed_seq, 0);
    IF behind IS NULL THEN RETURN 0; END IF;
  ELSE
    behind := lanes;
  END IF;

  -- In another history positions may have been dealt and lost, and somebody may have read them: go on far
  -- above those, so that no reader skips what comes now.
  SELECT h.position + CASE WHEN h.history IN (0, lk_history()) THEN 0 ELSE 1000000000 END
    INTO STRICT head FROM feed_head AS h WHERE h.one FOR UPDATE;

  WITH fed AS (
    INSERT INTO event_feed (position, lane_id, first_seq, last_seq)
    SELECT head + row_number() OVER (ORDER BY c.lane_id), c.lane_id, coalesce(f.fed_seq, 0) + 1, c.event_seq
    FROM signer_nonce_cursor AS c LEFT JOIN lane_feed AS f ON f.lane_id = c.lane_id
    WHERE c.lane_id = ANY (behind) AND c.event_seq > coalesce(f.fed_seq, 0)
    RETURNING lane_id, last_seq
  )
  INSERT INTO lane_feed AS f (lane_id, fed_seq) SELECT fed.lane_id, fed.last_seq FROM fed
  ON CONFLICT (lane_id) DO UPDATE SET fed_seq = excluded.fed_seq;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n > 0 THEN
    UPDATE feed_head SET position = head + n, history = lk_history() WHERE one;
  END IF;
  RETURN n;
END $$;
