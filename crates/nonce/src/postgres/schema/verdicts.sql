-- The next page of reservations for which the chain should be queried. A nonce that its holder marked as used is among
-- them until the chain has shown it: its transaction may be dropped, or be another one than the holder believes.
CREATE FUNCTION nonce_list_watched(caller_scheme smallint, after_lane integer, after_nonce bigint, page_max integer)
RETURNS TABLE (
  lane_id integer, chain_id bigint, signer bytea, state smallint, nonce bigint, holder uuid, tx_hash bytea,
  expires_ms bigint, reason text, closed_number bigint, closed_time bigint, closed_hash bytea,
  closed_parent bytea, was_replaced boolean
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT r.lane_id, l.chain_id, l.signer, r.state, r.nonce, r.holder, r.tx_hash, nonce_ms(r.expires_at),
    r.reason, r.closed_number, r.closed_time, r.closed_hash, r.closed_parent, r.was_replaced
  FROM nonce_reservation AS r JOIN nonce_lane AS l ON l.lane_id = r.lane_id AND l.scheme = caller_scheme
  WHERE (r.lane_id, r.nonce) > (after_lane, after_nonce)
    AND (r.state <> 1 OR NOT r.is_final)
    AND CASE r.state
          WHEN 0 THEN r.tx_hash IS NOT NULL OR r.expires_at <= clock_timestamp()
          WHEN 1 THEN true
          ELSE r.nonce < l.chain_nonce END
  ORDER BY r.lane_id, r.nonce LIMIT page_max;
END $$;

-- Those of the next open reservations that are overdue: never submitted, and expired. Apart from the others that are
-- watched, since those may be many and a forgotten nonce stops its lane. No index leads to them alone: it would cost every
-- reservation and every mark an entry. `examined_max` rows are read, and `edge_lane`, `edge_nonce` is the last of them, if
-- there are that many; a row without a lane has only these.
CREATE FUNCTION nonce_list_overdue(
  caller_scheme smallint, after_lane integer, after_nonce bigint, examined_max integer, page_max integer
) RETURNS TABLE (
  lane_id integer, chain_id bigint, signer bytea, state smallint, nonce bigint, holder uuid, tx_hash bytea,
  expires_ms bigint, reason text, closed_number bigint, closed_time bigint, closed_hash bytea,
  closed_parent bytea, was_replaced boolean, edge_lane integer, edge_nonce bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH examined AS MATERIALIZED (
    SELECT r.lane_id, r.nonce, r.state = 0 AND r.tx_hash IS NULL AND r.expires_at <= clock_timestamp() AS is_overdue
    FROM nonce_reservation AS r
    WHERE (r.lane_id, r.nonce) > (after_lane, after_nonce) AND (r.state <> 1 OR NOT r.is_final)
    ORDER BY r.lane_id, r.nonce LIMIT examined_max
  ), edge AS (
    SELECT x.lane_id, x.nonce FROM examined AS x ORDER BY x.lane_id, x.nonce OFFSET examined_max - 1 LIMIT 1
  ), overdue AS (
    SELECT x.lane_id, x.nonce, l.chain_id, l.signer
    FROM examined AS x JOIN nonce_lane AS l ON l.lane_id = x.lane_id AND l.scheme = caller_scheme
    WHERE x.is_overdue ORDER BY x.lane_id, x.nonce LIMIT page_max
  )
  SELECT r.lane_id, o.chain_id, o.signer, r.state, r.nonce, r.holder, r.tx_hash, nonce_ms(r.expires_at), r.reason,
    r.closed_number, r.closed_time, r.closed_hash, r.closed_parent, r.was_replaced, edge.lane_id, edge.nonce
  FROM (SELECT 1) AS always
  LEFT JOIN edge ON true
  LEFT JOIN (overdue AS o JOIN nonce_reservation AS r ON r.lane_id = o.lane_id AND r.nonce = o.nonce) ON true
  ORDER BY r.lane_id, r.nonce;
END $$;

-- Applies verdicts of the chain, each only if the reservation is unchanged since it was read. `verdict`: 0 recyclable,
-- 1 used, 2 reopened, 3 final. A submitted one never becomes recyclable here. Returns how many were applied.
CREATE FUNCTION nonce_apply_verdicts(
  caller_scheme smallint, chains bigint[], signers bytea[], nonces bigint[], holders uuid[], states smallint[],
  hashes bytea[], closed bytea[], verdicts smallint[], used_by bytea[], numbers bigint[], blocks bytea[],
  parents bytea[], times bigint[], new_reason text
) RETURNS bigint LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE n bigint;
BEGIN
  -- In order, so that two calls for the same reservations never deadlock.
  PERFORM 1 FROM nonce_reservation AS r
  JOIN nonce_lane AS l ON l.lane_id = r.lane_id AND l.scheme = caller_scheme
  JOIN unnest(chains, signers, nonces) AS w(chain_id, signer, nonce)
    ON w.chain_id = l.chain_id AND w.signer = l.signer AND w.nonce = r.nonce
  ORDER BY r.lane_id, r.nonce FOR NO KEY UPDATE OF r;

  UPDATE nonce_reservation AS r
  SET state = CASE w.verdict WHEN 0 THEN 2 WHEN 2 THEN 0 ELSE 1 END,
      reason = CASE w.verdict WHEN 0 THEN new_reason ELSE r.reason END,
      tx_hash = coalesce(w.used_by, r.tx_hash),
      -- A reorg may reopen it: then either transaction may be mined.
      was_replaced = r.was_replaced OR coalesce(w.used_by <> r.tx_hash, false),
      is_final = w.verdict = 3,
      closed_number = w.number, closed_time = w.at, closed_hash = w.block, closed_parent = w.parent
  FROM nonce_lane AS l, unnest(
    chains, signers, nonces, holders, states, hashes, closed, verdicts, used_by, numbers, blocks, parents, times
  ) AS w(chain_id, signer, nonce, holder, state, hash, closed, verdict, used_by, number, block, parent, at)
  WHERE l.chain_id = w.chain_id AND l.signer = w.signer AND l.scheme = caller_scheme
    AND r.lane_id = l.lane_id AND r.nonce = w.nonce
    AND r.holder = w.holder AND r.state = w.state AND r.tx_hash IS NOT DISTINCT FROM w.hash
    AND r.closed_hash IS NOT DISTINCT FROM w.closed
    AND CASE w.verdict
          WHEN 0 THEN r.state = 0 AND r.tx_hash IS NULL AND r.expires_at <= clock_timestamp()
          WHEN 1 THEN true
          ELSE r.state = 1 AND r.closed_hash IS NOT NULL END;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;

