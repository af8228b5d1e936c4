-- Allocation blocks. A nonce in a block is recyclable (state 2) and names its block holder: no other caller reserves it. A
-- hand-out is written afterwards, in batches, under the block holder's token.
--
-- A token whose lease is over is never renewed. Nonces of its block may have been handed out without having been written:
-- they are reserved by the token itself until the last such reservation has expired, and then the sweep queries the chain.

-- Ends a block holder whose row is locked. Nonces that it may have handed out stay reserved, by its token.
CREATE FUNCTION nonce_end_block_holder(k nonce_block_holder) RETURNS void LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  -- A writer under the token has a share lock on this row, and finishes first.
  PERFORM 1 FROM nonce_block_holder WHERE token = k.token FOR UPDATE;
  UPDATE nonce_reservation AS r
  SET state = 0, holder = k.token, tx_hash = NULL, reason = NULL, block_holder = NULL,
      expires_at = date_trunc('milliseconds', k.leased_until + (k.reservation_max_ms + 1) * interval '1 millisecond')
  FROM (
    SELECT lane_id, nonce FROM nonce_reservation WHERE block_holder = k.token AND state = 2 ORDER BY nonce
    FOR NO KEY UPDATE
  ) AS w
  WHERE r.lane_id = w.lane_id AND r.nonce = w.nonce;
  DELETE FROM nonce_block_holder WHERE token = k.token;
END $$;

-- Ends block holders whose lease is over; `lane`: of one lane only.
CREATE FUNCTION nonce_end_expired_block_holders(caller_scheme smallint, lane integer, holders_max integer) RETURNS bigint
  LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE k nonce_block_holder; n bigint := 0;
BEGIN
  FOR k IN SELECT x.* FROM nonce_block_holder AS x JOIN nonce_lane AS l ON l.lane_id = x.lane_id AND l.scheme = caller_scheme
    WHERE x.leased_until < clock_timestamp() AND (lane IS NULL OR x.lane_id = lane)
    ORDER BY x.token LIMIT holders_max FOR UPDATE OF x SKIP LOCKED
  LOOP
    PERFORM nonce_end_block_holder(k);
    n := n + 1;
  END LOOP;
  RETURN n;
END $$;

-- Allocates the smallest nonces that are free for all to a block, then new ones (at most `fresh_max`), and renews the
-- holder's lease. Nonces that the chain has `passed` become free for all again: the holder names those that it has not
-- handed out, because a hand-out may not have been written yet. `is_new`: the token begins with this call. Nothing
-- allocated and `is_live` false: its lease was over, and the token is void.
--
-- A lease is never shortened: processes that share a block holder may have been granted leases of different lengths, and
-- each trusts its own.
CREATE FUNCTION nonce_take_block(
  chain bigint, account bytea, caller_scheme smallint, holder_token uuid, is_new boolean, lease_ms bigint, new_max_ms bigint,
  at_least bigint, take_max bigint, fresh_max bigint, skipped_max bigint, passed bigint[],
  OUT bound smallint, OUT is_live boolean, OUT now_ms bigint, OUT reservation_max_ms bigint, OUT nonces bigint[], OUT allocation_id bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; k nonce_block_holder; low bigint; high bigint;
BEGIN
  l := nonce_lock_lane(chain, account, caller_scheme, at_least);
  bound := l.scheme;
  is_live := false;
  IF l.scheme <> caller_scheme THEN RETURN; END IF;
  PERFORM nonce_end_expired_block_holders(caller_scheme, l.lane_id, 100);
  IF is_new THEN
    INSERT INTO nonce_block_holder (token, lane_id, leased_until, reservation_max_ms, server, created_at)
    VALUES (holder_token, l.lane_id, clock_timestamp(), new_max_ms, '', clock_timestamp()) ON CONFLICT DO NOTHING;
  END IF;
  UPDATE nonce_block_holder AS x
  SET leased_until = greatest(x.leased_until, clock_timestamp() + lease_ms * interval '1 millisecond'),
      reservation_max_ms = greatest(x.reservation_max_ms, new_max_ms)
  WHERE x.token = holder_token AND x.lane_id = l.lane_id RETURNING * INTO k;
  IF NOT FOUND THEN RETURN; END IF;
  is_live := true;
  now_ms := nonce_ms(clock_timestamp());
  reservation_max_ms := k.reservation_max_ms;
  allocation_id := nextval('nonce_allocation');
  UPDATE nonce_lane SET chain_nonce = at_least WHERE lane_id = l.lane_id AND chain_nonce < at_least;
  UPDATE nonce_reservation SET block_holder = NULL WHERE block_holder = holder_token AND state = 2 AND nonce = ANY (passed);

  WITH picked AS (
    SELECT nonce FROM nonce_reservation
    WHERE lane_id = l.lane_id AND state = 2 AND block_holder IS NULL AND nonce >= at_least
    ORDER BY nonce LIMIT take_max FOR NO KEY UPDATE SKIP LOCKED
  ), taken AS (
    UPDATE nonce_reservation AS r SET block_holder = holder_token, allocation_id = nonce_take_block.allocation_id
    FROM picked WHERE r.lane_id = l.lane_id AND r.nonce = picked.nonce RETURNING r.nonce
  ) SELECT coalesce(array_agg(nonce ORDER BY nonce), '{}') INTO nonces FROM taken;

  fresh_max := least(fresh_max, take_max - cardinality(nonces));
  IF fresh_max > 0 THEN
    low := nonce_top(l);
    IF low < at_least THEN
      PERFORM nonce_insert_skipped(l.lane_id, greatest(low, at_least - skipped_max), at_least);
      low := at_least;
    END IF;
    high := low + fresh_max;
    INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder, block_holder, allocation_id)
    SELECT l.lane_id, 2, s, clock_timestamp(), holder_token, holder_token, nonce_take_block.allocation_id
    FROM generate_series(low, high - 1) AS s;
    UPDATE nonce_lane SET next_nonce = high WHERE lane_id = l.lane_id;
    nonces := nonces || ARRAY(SELECT generate_series(low, high - 1));
  END IF;
END $$;

-- Reserves one nonce outside all blocks, for when a block holder cannot be reached. Blocks are left alone.
CREATE FUNCTION nonce_reserve_outside_blocks(
  chain bigint, account bytea, caller_scheme smallint, new_holder uuid, at_least bigint, timeout_ms bigint, skipped_max bigint,
  OUT bound smallint, OUT reserved bigint, OUT expires_ms bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; deadline timestamptz;
BEGIN
  l := nonce_lock_lane(chain, account, caller_scheme, at_least);
  bound := l.scheme;
  IF l.scheme <> caller_scheme THEN RETURN; END IF;
  PERFORM nonce_end_expired_block_holders(caller_scheme, l.lane_id, 100);
  deadline := nonce_deadline(timeout_ms);
  expires_ms := nonce_ms(deadline);
  UPDATE nonce_lane SET chain_nonce = at_least WHERE lane_id = l.lane_id AND chain_nonce < at_least;
  SELECT nonce INTO reserved FROM nonce_reservation
  WHERE lane_id = l.lane_id AND state = 2 AND block_holder IS NULL AND nonce >= at_least
  ORDER BY nonce LIMIT 1 FOR NO KEY UPDATE;
  IF FOUND THEN
    PERFORM nonce_reserve_recyclable(l.lane_id, reserved, new_holder, deadline);
    RETURN;
  END IF;
  reserved := nonce_top(l);
  IF reserved < at_least THEN
    PERFORM nonce_insert_skipped(l.lane_id, greatest(reserved, at_least - skipped_max), at_least);
    reserved := at_least;
  END IF;
  INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder)
  VALUES (l.lane_id, 0, reserved, deadline, new_holder);
  UPDATE nonce_lane SET next_nonce = reserved + 1 WHERE lane_id = l.lane_id;
END $$;

-- The generation of a lane, for a process that reaches this Redis server. Its lease is renewed if it belongs to this
-- server and its state there is not `broken`; otherwise the next one begins, with the proposed token, unless the present
-- one is so young that its creator may still be at work, or two masters would alternate too often.
CREATE FUNCTION nonce_renew_generation(
  chain bigint, account bytea, caller_scheme smallint, at_least bigint, proposed uuid, at_server text, broken uuid,
  lease_ms bigint, new_max_ms bigint, min_age_ms bigint,
  OUT bound smallint, OUT token uuid, OUT server text, OUT is_new boolean, OUT now_ms bigint, OUT reservation_max_ms bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; k nonce_block_holder; created timestamptz := clock_timestamp();
BEGIN
  l := nonce_lock_lane(chain, account, caller_scheme, at_least);
  bound := l.scheme;
  is_new := false;
  IF l.scheme <> caller_scheme THEN RETURN; END IF;
  PERFORM nonce_end_expired_block_holders(caller_scheme, l.lane_id, 100);
  SELECT * INTO k FROM nonce_block_holder AS x WHERE x.lane_id = l.lane_id FOR NO KEY UPDATE;
  IF FOUND AND (k.server <> at_server OR k.token = broken)
     AND k.created_at + min_age_ms * interval '1 millisecond' < clock_timestamp() THEN
    -- A process may trust the old lease for as long as it was ever granted.
    k.leased_until := greatest(k.leased_until, clock_timestamp() + lease_ms * interval '1 millisecond');
    PERFORM nonce_end_block_holder(k);
    k := NULL;
  END IF;
  IF k.token IS NULL THEN
    is_new := true;
    INSERT INTO nonce_block_holder (token, lane_id, leased_until, reservation_max_ms, server, created_at)
    VALUES (proposed, l.lane_id, created, new_max_ms, at_server, created) RETURNING * INTO k;
    UPDATE nonce_lane SET generation = generation + 1 WHERE lane_id = l.lane_id;
  END IF;
  IF k.server = at_server AND k.token IS DISTINCT FROM broken THEN
    UPDATE nonce_block_holder AS x
    SET leased_until = greatest(x.leased_until, clock_timestamp() + lease_ms * interval '1 millisecond'),
        reservation_max_ms = greatest(x.reservation_max_ms, new_max_ms)
    WHERE x.token = k.token RETURNING * INTO k;
  END IF;
  token := k.token; server := k.server; reservation_max_ms := k.reservation_max_ms;
  now_ms := nonce_ms(clock_timestamp());
END $$;

-- Frees nonces that a block holder has not handed out, and ends it when its block is empty. The rest of the block stays
-- until its lease is over. `allocation_ids`: of which allocation each is. The holder may have returned it since, allocated
-- it again and handed it out: that is another allocation.
CREATE FUNCTION nonce_return_unused(holder_token uuid, unused bigint[], allocation_ids bigint[]) RETURNS void
  LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  PERFORM 1 FROM nonce_block_holder WHERE token = holder_token FOR UPDATE;
  IF NOT FOUND THEN RETURN; END IF;
  UPDATE nonce_reservation AS r SET block_holder = NULL, reason = coalesce(r.reason, 'allocated in a block and never reserved')
  FROM (
    SELECT x.lane_id, x.nonce FROM nonce_reservation AS x
    JOIN unnest(unused, allocation_ids) AS u(nonce, allocation_id) ON u.nonce = x.nonce AND u.allocation_id = x.allocation_id
    WHERE x.block_holder = holder_token AND x.state = 2 ORDER BY x.nonce FOR NO KEY UPDATE OF x
  ) AS w
  WHERE r.lane_id = w.lane_id AND r.nonce = w.nonce;
  DELETE FROM nonce_block_holder
  WHERE token = holder_token AND NOT EXISTS (SELECT 1 FROM nonce_reservation WHERE block_holder = holder_token AND state = 2);
END $$;

-- The first nonces of a block.
CREATE FUNCTION nonce_list_block(holder_token uuid, page_max integer)
RETURNS TABLE (nonce bigint, allocation_id bigint) LANGUAGE plpgsql STABLE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT r.nonce, r.allocation_id FROM nonce_reservation AS r
  WHERE r.block_holder = holder_token AND r.state = 2 ORDER BY r.nonce LIMIT page_max;
END $$;

-- The smallest nonce above all that were ever reserved, as far as it is written.
CREATE FUNCTION nonce_top_reserved(l nonce_lane) RETURNS bigint LANGUAGE plpgsql STABLE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE r nonce_reservation;
BEGIN
  FOR r IN SELECT * FROM nonce_reservation WHERE lane_id = l.lane_id ORDER BY lane_id DESC, nonce DESC LOOP
    IF r.state <> 2 OR r.block_holder IS NULL OR r.holder <> r.block_holder THEN RETURN r.nonce + 1; END IF;
  END LOOP;
  SELECT min(nonce) INTO r.nonce FROM nonce_reservation WHERE lane_id = l.lane_id;
  RETURN coalesce(r.nonce, l.next_nonce);
END $$;

