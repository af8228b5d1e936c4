-- Applies a holder's mark, by the rules of domain::Reservation::mark. `kind`: 0 submitted, 1 used, 2 recyclable. `hash`:
-- of 2, the transaction for which the chain was checked. `verdict`: 0 applied, 1 not reserved, 2 not the holder, 3 is used,
-- 4 is recyclable, 7 another transaction was named since the chain was checked, 8 two transactions were named.
CREATE FUNCTION nonce_mark(
  chain bigint, account bytea, caller_scheme smallint, wanted_nonce bigint, new_holder uuid, kind smallint, hash bytea, new_reason text,
  OUT bound smallint, OUT verdict smallint, OUT state smallint, OUT nonce bigint, OUT holder uuid,
  OUT tx_hash bytea, OUT expires_ms bigint, OUT reason text, OUT was_replaced boolean
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE l nonce_lane; r nonce_reservation;
BEGIN
  SELECT * INTO l FROM nonce_lane AS x WHERE x.chain_id = chain AND x.signer = account;
  verdict := 1;
  bound := coalesce(l.scheme, caller_scheme);
  IF l.lane_id IS NULL OR l.scheme <> caller_scheme THEN RETURN; END IF;
  SELECT * INTO r FROM nonce_reservation AS x
  WHERE x.lane_id = l.lane_id AND x.nonce = wanted_nonce FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN; END IF;

  verdict := CASE
    WHEN r.holder <> new_holder THEN 2
    WHEN r.state = 0 AND kind = 2 AND r.was_replaced THEN 8
    WHEN r.state = 0 AND kind = 2 AND r.tx_hash IS DISTINCT FROM hash THEN 7
    WHEN r.state = 0 THEN 0
    WHEN r.state = 1 AND kind IN (0, 1) AND coalesce(r.tx_hash, hash) = hash THEN 0
    WHEN r.state = 1 THEN 3
    WHEN kind = 2 THEN 0
    ELSE 4 END;
  IF verdict = 0 AND (r.state = 0 OR (r.state = 1 AND r.tx_hash IS NULL)) THEN
    UPDATE nonce_reservation AS x
    SET state = CASE WHEN r.state = 0 THEN kind ELSE 1 END,
        tx_hash = coalesce(hash, x.tx_hash), reason = coalesce(new_reason, x.reason),
        was_replaced = x.was_replaced OR coalesce(x.tx_hash <> hash, false)
    WHERE x.lane_id = l.lane_id AND x.nonce = wanted_nonce
    RETURNING * INTO r;
  END IF;
  state := r.state; nonce := r.nonce; holder := r.holder; tx_hash := r.tx_hash; reason := r.reason;
  expires_ms := nonce_ms(r.expires_at); was_replaced := r.was_replaced;
END $$;

-- Writes a batch, in its order. `kind`: 0 submitted, 1 used, 2 recyclable, 3 handed out. `tokens`: of 3, the block holder
-- that handed it out; of 2, the block that it should return to (NULL: free for all). `verdict`: 0 applied, 1 not reserved,
-- 2 not the holder, 3 is used, 4 is recyclable, 5 not in this token's block any more, 6 in the block of a holder that may
-- have handed it out without having written that yet, 7 another transaction was named since the chain was checked (of 2,
-- `hashes` has the one that was checked), 8 two transactions were named. `is_in_block`: through this entry.
CREATE FUNCTION nonce_write(
  caller_scheme smallint, chains bigint[], signers bytea[], nonces bigint[], holders uuid[], kinds smallint[],
  hashes bytea[], reasons text[], tokens uuid[], allocation_ids bigint[], deadlines bigint[]
) RETURNS TABLE (
  bound smallint, verdict smallint, state smallint, nonce bigint, holder uuid, tx_hash bytea, expires_ms bigint,
  reason text, is_in_block boolean, was_replaced boolean
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE r nonce_reservation; e record;
BEGIN
  -- Block holders before nonces, and both in order, so that no two calls deadlock.
  PERFORM 1 FROM nonce_block_holder AS x WHERE x.token = ANY (tokens) ORDER BY x.token FOR KEY SHARE;
  PERFORM 1 FROM nonce_reservation AS x
  JOIN nonce_lane AS l ON l.lane_id = x.lane_id AND l.scheme = caller_scheme
  JOIN (SELECT DISTINCT * FROM unnest(chains, signers, nonces) AS d(chain_id, signer, nonce)) AS w
    ON w.chain_id = l.chain_id AND w.signer = l.signer AND w.nonce = x.nonce
  ORDER BY x.lane_id, x.nonce FOR NO KEY UPDATE OF x;

  FOR e IN
    SELECT w.*, l.lane_id, l.scheme
    FROM unnest(chains, signers, nonces, holders, kinds, hashes, reasons, tokens, allocation_ids, deadlines)
      WITH ORDINALITY
      AS w(chain_id, signer, nonce, new_holder, kind, hash, new_reason, token, allocation_id, deadline, number)
    LEFT JOIN nonce_lane AS l ON l.chain_id = w.chain_id AND l.signer = w.signer
    ORDER BY w.number
  LOOP
    bound := coalesce(e.scheme, caller_scheme);
    verdict := 1; is_in_block := false; nonce := e.nonce;
    state := NULL; holder := NULL; tx_hash := NULL; expires_ms := NULL; reason := NULL;
    was_replaced := NULL;
    r := NULL;
    IF bound = caller_scheme THEN
      SELECT * INTO r FROM nonce_reservation AS x WHERE x.lane_id = e.lane_id AND x.nonce = e.nonce;
    END IF;
    IF r.lane_id IS NULL THEN RETURN NEXT; CONTINUE; END IF;
    IF e.kind = 3 THEN
      verdict := CASE WHEN r.holder = e.new_holder THEN 0
        WHEN r.allocation_id = e.allocation_id AND (r.block_holder = e.token AND r.state = 2 OR r.state = 0 AND r.holder = e.token) THEN 0
        ELSE 5 END;
      IF verdict = 0 AND r.holder <> e.new_holder THEN
        UPDATE nonce_reservation AS x
        SET state = 0, holder = e.new_holder, tx_hash = NULL, reason = NULL, block_holder = NULL,
            expires_at = to_timestamp(e.deadline / 1000.0)
        WHERE x.lane_id = e.lane_id AND x.nonce = e.nonce RETURNING * INTO r;
      END IF;
    ELSE
      verdict := CASE
        WHEN r.holder <> e.new_holder AND r.state = 2 AND r.block_holder IS NOT NULL THEN 6
        WHEN r.holder <> e.new_holder THEN 2
        WHEN r.state = 0 AND e.kind = 2 AND r.was_replaced THEN 8
        WHEN r.state = 0 AND e.kind = 2 AND r.tx_hash IS DISTINCT FROM e.hash THEN 7
        WHEN r.state = 0 THEN 0
        WHEN r.state = 1 AND e.kind IN (0, 1) AND coalesce(r.tx_hash, e.hash) = e.hash THEN 0
        WHEN r.state = 1 THEN 3
        WHEN e.kind = 2 THEN 0
        ELSE 4 END;
      IF verdict = 0 AND (r.state = 0 OR (r.state = 1 AND r.tx_hash IS NULL)) THEN
        is_in_block := r.state = 0 AND e.kind = 2 AND e.token IS NOT NULL AND EXISTS (
          SELECT 1 FROM nonce_block_holder AS k
          WHERE k.token = e.token AND k.lane_id = e.lane_id AND k.leased_until > clock_timestamp());
        UPDATE nonce_reservation AS x
        SET state = CASE WHEN r.state = 0 THEN e.kind ELSE 1 END,
            tx_hash = coalesce(e.hash, x.tx_hash), reason = coalesce(e.new_reason, x.reason),
            was_replaced = x.was_replaced OR coalesce(x.tx_hash <> e.hash, false),
            block_holder = CASE WHEN is_in_block THEN e.token END,
            allocation_id = CASE WHEN is_in_block THEN e.allocation_id ELSE x.allocation_id END
        WHERE x.lane_id = e.lane_id AND x.nonce = e.nonce RETURNING * INTO r;
      END IF;
    END IF;
    state := r.state; holder := r.holder; tx_hash := r.tx_hash; reason := r.reason;
    expires_ms := nonce_ms(r.expires_at); was_replaced := r.was_replaced;
    RETURN NEXT;
  END LOOP;
END $$;

