-- The gate: everything that one turn writes, for many lanes at once.

-- Counts those of these rows that belong to lanes that passed the fence.
CREATE FUNCTION lanekeeper_count_rows(lanes bigint[], ok bigint[]) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN (SELECT count(*) FROM unnest(lanes) AS x(lane_id) WHERE x.lane_id = ANY (ok));
END $$;

-- Returns the lanes that were applied; a lane that is missing was locked, or is not the caller's. Any row count that
-- is off raises LK001 and rolls everything back. `signed` is that of the tx's new image: a tx that lost its nonce waits
-- unsigned, like one that never had an attempt. An attempt alone changes nothing of its tx.
--   l: lanes   i: new txs   u: changed txs   a: new attempts   m: txs that get an attempt and do not change
--   s: attempts that an endpoint has accepted   qa, qr: queue rows added and removed
-- An array may be shorter than its neighbours: what is missing is NULL.
CREATE FUNCTION lanekeeper_gate(
  l_lane bigint[], l_token bigint[], l_grant uuid[], l_batch bigint[], l_seq bigint[], l_next bigint[],
  l_floor bigint[], l_cost bytea[], l_head bytea[], l_final bytea[], l_paused boolean[], l_at bigint[], l_node text[], l_events integer[],
  l_body bytea[],
  i_lane bigint[], i_created bigint[], i_gas bigint[], i_tx uuid[], i_type smallint[], i_request text[],
  i_fingerprint bytea[], i_to bytea[], i_value bytea[], i_requested_gas bytea[], i_max_fee bytea[],
  i_max_priority_fee bytea[], i_gas_price bytea[], i_data bytea[], i_state smallint[], i_sub smallint[],
  i_signed boolean[], i_nonce bigint[], i_token bigint[], i_updated bigint[], i_confirmed bigint[],
  i_hash bytea[], i_inclusion bytea[], i_counted bytea[], i_seqs bytea[], i_reason text[], i_resubmits integer[],
  u_lane bigint[], u_tx uuid[], u_state smallint[], u_sub smallint[], u_signed boolean[], u_nonce bigint[],
  u_token bigint[], u_updated bigint[], u_confirmed bigint[], u_hash bytea[], u_inclusion bytea[],
  u_counted bytea[], u_seqs bytea[], u_reason text[], u_resubmits integer[],
  a_lane bigint[], a_nonce bigint[], a_gas bigint[], a_signed bigint[], a_tx uuid[], a_kind smallint[],
  a_hash bytea[], a_fees bytea[], a_raw bytea[], a_sent bigint[],
  m_lane bigint[], m_tx uuid[],
  s_lane bigint[], s_hash bytea[], s_at bigint[],
  qa_lane bigint[], qa_tx uuid[], qr_lane bigint[], qr_tx uuid[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT
  SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET jit = off AS $$
#variable_conflict use_column
DECLARE ok bigint[]; all_ok boolean; n bigint; done bigint; need bigint; loses_nonce boolean;
BEGIN
  -- The fence: lock in lane order without waiting, then write the row that a takeover must write too.
  SELECT array_agg(x.lane_id) INTO ok FROM (
    SELECT c.lane_id FROM signer_nonce_cursor AS c
    JOIN unnest(l_lane, l_token, l_grant, l_batch, l_seq) AS w(lane_id, token, grant_id, batch, seq)
      ON w.lane_id = c.lane_id
    WHERE c.fencing_token = w.token AND c.grant_id = w.grant_id
      AND c.batch_seq = w.batch AND c.event_seq = w.seq
    ORDER BY c.lane_id FOR NO KEY UPDATE OF c SKIP LOCKED) AS x;
  IF ok IS NULL THEN RETURN '{}'; END IF;
  all_ok := cardinality(ok) = cardinality(l_lane);

  UPDATE signer_nonce_cursor AS c
  SET next_nonce = w.next, floor_nonce = w.floor, event_seq = w.seq + w.events, batch_seq = w.batch + 1,
      updated_at = w.at, paused = coalesce(w.paused, c.paused), busy = w.floor < w.next, open_cost = w.cost,
      head_wait = w.head, newest_final = w.final, has_finals = w.final <> ''
  FROM unnest(l_lane, l_batch, l_seq, l_next, l_floor, l_cost, l_head, l_final, l_paused, l_at, l_events)
    AS w(lane_id, batch, seq, next, floor, cost, head, final, paused, at, events)
  WHERE (all_ok OR w.lane_id = ANY (ok)) AND c.lane_id = w.lane_id AND c.next_nonce <= w.next;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n <> cardinality(ok) THEN
    RAISE EXCEPTION 'lane rows: % of %', n, cardinality(ok) USING ERRCODE = 'LK001';
  END IF;

  -- Txs that lose their nonce come first: it is free for the others of this batch.
  need := CASE WHEN all_ok THEN cardinality(u_lane) ELSE lanekeeper_count_rows(u_lane, ok) END;
  IF need > 0 THEN
    done := 0;
    FOREACH loses_nonce IN ARRAY ARRAY[true, false] LOOP
      CONTINUE WHEN loses_nonce AND array_position(u_nonce, NULL) IS NULL
        AND cardinality(u_nonce) = cardinality(u_lane);
      UPDATE managed_tx AS t
      SET state = u.state, sub_state = u.sub_state, signed = u.signed, nonce = u.nonce,
          token = u.token, updated_at = u.updated_at, confirmed_at = u.confirmed_at,
          past_nonces = CASE WHEN t.nonce IS DISTINCT FROM u.nonce AND t.nonce IS NOT NULL
                             THEN array_append(t.past_nonces, t.nonce) ELSE t.past_nonces END,
          tx_hash = u.tx_hash, inclusion = u.inclusion, counted = u.counted, event_seqs = u.event_seqs,
          reason = u.reason, resubmits = u.resubmits
      FROM unnest(u_lane, u_tx, u_state, u_sub, u_signed, u_nonce, u_token, u_updated, u_confirmed,
                  u_hash, u_inclusion, u_counted, u_seqs, u_reason, u_resubmits)
        AS u(lane_id, tx_id, state, sub_state, signed, nonce, token, updated_at, confirmed_at,
             tx_hash, inclusion, counted, event_seqs, reason, resubmits)
      WHERE (all_ok OR u.lane_id = ANY (ok)) AND (u.nonce IS NULL) = loses_nonce
        AND t.tx_id = u.tx_id AND t.lane_id IS NOT DISTINCT FROM u.lane_id;
      GET DIAGNOSTICS n = ROW_COUNT;
      done := done + n;
    END LOOP;
    IF done <> need THEN RAISE EXCEPTION 'changed txs: % of %', done, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  -- In the order of the unfenced queue, so that the two never deadlock.
  need := CASE WHEN all_ok THEN cardinality(i_lane) ELSE lanekeeper_count_rows(i_lane, ok) END;
  IF need > 0 THEN
    INSERT INTO managed_tx
      (lane_id, created_at, gas, tx_id, tx_type, request_id, fingerprint, to_address, value, requested_gas,
       max_fee, max_priority_fee, gas_price, data, state, sub_state, signed, nonce, token, updated_at,
       confirmed_at, tx_hash, inclusion, counted, event_seqs, reason, resubmits)
    SELECT t.*
    FROM unnest(i_lane, i_created, i_gas, i_tx, i_type, i_request, i_fingerprint, i_to, i_value, i_requested_gas,
                i_max_fee, i_max_priority_fee, i_gas_price, i_data, i_state, i_sub, i_signed, i_nonce,
                i_token, i_updated, i_confirmed, i_hash, i_inclusion, i_counted, i_seqs, i_reason, i_resubmits)
      AS t(lane_id, created_at, gas, tx_id, tx_type, request_id, fingerprint, to_address, value, requested_gas,
           max_fee, max_priority_fee, gas_price, data, state, sub_state, signed, nonce, token, updated_at,
           confirmed_at, tx_hash, inclusion, counted, event_seqs, reason, resubmits)
    WHERE all_ok OR t.lane_id = ANY (ok)
    ORDER BY t.lane_id, t.request_id COLLATE "C";
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'new txs: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(a_lane) ELSE lanekeeper_count_rows(a_lane, ok) END;
  IF need > 0 THEN
    INSERT INTO tx_attempt (lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw, first_sent_at)
    SELECT a.*
    FROM unnest(a_lane, a_nonce, a_gas, a_signed, a_tx, a_kind, a_hash, a_fees, a_raw, a_sent)
      AS a(lane_id, nonce, gas, signed_at, tx_id, kind, hash, fees, raw, first_sent_at)
    WHERE all_ok OR a.lane_id = ANY (ok);
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'attempts: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(m_lane) ELSE lanekeeper_count_rows(m_lane, ok) END;
  IF need > 0 THEN
    SELECT count(*) INTO STRICT n
    FROM unnest(m_lane, m_tx) AS m(lane_id, tx_id)
    JOIN managed_tx AS t ON t.tx_id = m.tx_id AND t.lane_id IS NOT DISTINCT FROM m.lane_id
    WHERE all_ok OR m.lane_id = ANY (ok);
    IF n <> need THEN RAISE EXCEPTION 'txs of attempts: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(s_lane) ELSE lanekeeper_count_rows(s_lane, ok) END;
  IF need > 0 THEN
    UPDATE tx_attempt AS a SET first_sent_at = coalesce(a.first_sent_at, s.at)
    FROM unnest(s_lane, s_hash, s_at) AS s(lane_id, hash, at)
    WHERE (all_ok OR s.lane_id = ANY (ok)) AND a.hash = s.hash AND a.lane_id IS NOT DISTINCT FROM s.lane_id;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'sent attempts: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(qr_lane) ELSE lanekeeper_count_rows(qr_lane, ok) END;
  IF need > 0 THEN
    DELETE FROM queued_tx AS x USING unnest(qr_lane, qr_tx) AS k(lane_id, tx_id)
    WHERE (all_ok OR k.lane_id = ANY (ok)) AND x.lane_id = k.lane_id AND x.tx_id = k.tx_id;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'queue rows removed: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  need := CASE WHEN all_ok THEN cardinality(qa_lane) ELSE lanekeeper_count_rows(qa_lane, ok) END;
  IF need > 0 THEN
    INSERT INTO queued_tx (lane_id, tx_id)
    SELECT k.lane_id, k.tx_id FROM unnest(qa_lane, qa_tx) AS k(lane_id, tx_id)
    JOIN managed_tx AS t ON t.tx_id = k.tx_id AND t.lane_id IS NOT DISTINCT FROM k.lane_id
    WHERE all_ok OR k.lane_id = ANY (ok);
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> need THEN RAISE EXCEPTION 'queue rows added: % of %', n, need USING ERRCODE = 'LK001'; END IF;
  END IF;

  INSERT INTO lane_event (lane_id, first_seq, at, token, count, node, body)
  SELECT w.lane_id, w.seq + 1, w.at, w.token, w.events, w.node, w.body
  FROM unnest(l_lane, l_seq, l_at, l_token, l_events, l_node, l_body)
    AS w(lane_id, seq, at, token, events, node, body)
  WHERE (all_ok OR w.lane_id = ANY (ok)) AND w.events > 0;
  RETURN ok;
END $$;

