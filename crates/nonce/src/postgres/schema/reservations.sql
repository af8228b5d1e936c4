-- Reserving single nonces.
--
-- Plans of functions are pinned, here and in the other files. They are cached per session, and a plan that was made while
-- a table was empty would read all of it for ever after.

-- Deadlines are whole milliseconds, so that the reported deadline is the stored one.
CREATE FUNCTION nonce_deadline(timeout_ms bigint) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
  SELECT date_trunc('milliseconds', clock_timestamp()) + timeout_ms * interval '1 millisecond'
$$;

-- STABLE and not IMMUTABLE: an immutable function with a stable one inside is not inlined, but parsed and planned anew
-- in every transaction.
CREATE FUNCTION nonce_ms(at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT round(extract(epoch FROM at) * 1000)::bigint
$$;

-- The smallest nonce above all that were ever reserved or allocated to a block.
CREATE FUNCTION nonce_top(l nonce_lane) RETURNS bigint LANGUAGE plpgsql STABLE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE top bigint;
BEGIN
  SELECT nonce INTO top FROM nonce_reservation
  WHERE lane_id = l.lane_id ORDER BY lane_id DESC, nonce DESC LIMIT 1;
  RETURN greatest(l.next_nonce, top + 1);
END $$;

-- Creates the row of a new lane, which begins at the chain's nonce. A lane of the store in the same database belongs to
-- its keeper (scheme 4), whatever scheme calls: it has allocated nonces that are not recorded here.
CREATE FUNCTION nonce_create_lane(chain bigint, account bytea, caller_scheme smallint, at_least bigint)
  RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE has_keeper boolean := false;
BEGIN
  -- Found by name, because the ledger may also be in a database without a store.
  IF to_regclass('signer_nonce_cursor') IS NOT NULL THEN
    EXECUTE 'SELECT EXISTS (SELECT FROM lane JOIN signer_nonce_cursor USING (lane_id)'
      ' WHERE lane.chain_id = $1 AND lane.signer = $2)' INTO has_keeper USING chain, account;
  END IF;
  INSERT INTO nonce_lane (chain_id, signer, scheme, next_nonce, chain_nonce, gaps_from, gaps_to, gaps_at)
  VALUES (chain, account, CASE WHEN has_keeper THEN 4 ELSE caller_scheme END, at_least, at_least, at_least, at_least,
          clock_timestamp())
  ON CONFLICT (chain_id, signer) DO NOTHING;
END $$;

-- Returns the lane's row, locked, and creates it if it is new.
CREATE FUNCTION nonce_lock_lane(chain bigint, account bytea, caller_scheme smallint, at_least bigint) RETURNS nonce_lane
  LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane;
BEGIN
  SELECT * INTO l FROM nonce_lane WHERE chain_id = chain AND signer = account FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    PERFORM nonce_create_lane(chain, account, caller_scheme, at_least);
    SELECT * INTO STRICT l FROM nonce_lane WHERE chain_id = chain AND signer = account FOR NO KEY UPDATE;
  END IF;
  RETURN l;
END $$;

-- Reserves a recyclable nonce whose row is locked.
CREATE FUNCTION nonce_reserve_recyclable(lane integer, wanted_nonce bigint, new_holder uuid, deadline timestamptz)
  RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
  UPDATE nonce_reservation SET state = 0, holder = new_holder, expires_at = deadline, tx_hash = NULL, reason = NULL
  WHERE lane_id = lane AND nonce = wanted_nonce
$$;

-- Others used the account: nonces that the chain consumed meanwhile are inserted as recyclable and are not reserved, so
-- that the sweep finds out what consumed them, and so that one that is not consumed in the end leaves no gap.
CREATE FUNCTION nonce_insert_skipped(lane integer, low bigint, high bigint)
  RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder, reason)
  SELECT lane, 2, s, clock_timestamp(), '00000000-0000-0000-0000-000000000000', 'the chain went past it'
  FROM generate_series(low, high - 1) AS s
  ON CONFLICT DO NOTHING
$$;

-- Reserves the smallest recyclable nonce, or the next one, under the lane's row lock. For a lane of another scheme only
-- that scheme is returned.
CREATE FUNCTION nonce_reserve_next(
  chain bigint, account bytea, caller_scheme smallint, new_holder uuid, at_least bigint, timeout_ms bigint, skipped_max bigint,
  OUT bound smallint, OUT reserved bigint, OUT expires_ms bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; deadline timestamptz;
BEGIN
  SELECT * INTO l FROM nonce_lane WHERE chain_id = chain AND signer = account FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    PERFORM nonce_create_lane(chain, account, caller_scheme, at_least);
    SELECT * INTO STRICT l FROM nonce_lane WHERE chain_id = chain AND signer = account FOR NO KEY UPDATE;
  END IF;
  bound := l.scheme;
  IF l.scheme <> caller_scheme THEN RETURN; END IF;
  deadline := nonce_deadline(timeout_ms);
  expires_ms := nonce_ms(deadline);

  SELECT nonce INTO reserved FROM nonce_reservation
  WHERE lane_id = l.lane_id AND state = 2 AND nonce >= at_least ORDER BY nonce LIMIT 1 FOR NO KEY UPDATE;
  IF FOUND THEN
    PERFORM nonce_reserve_recyclable(l.lane_id, reserved, new_holder, deadline);
    UPDATE nonce_lane SET chain_nonce = at_least WHERE lane_id = l.lane_id AND chain_nonce < at_least;
    RETURN;
  END IF;

  reserved := nonce_top(l);
  IF reserved < at_least THEN
    PERFORM nonce_insert_skipped(l.lane_id, greatest(reserved, at_least - skipped_max), at_least);
    reserved := at_least;
  END IF;
  -- Under the lane's lock no other call inserts, except in scheme 2, where Redis issues nonces.
  LOOP
    INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder)
    VALUES (l.lane_id, 0, reserved, deadline, new_holder) ON CONFLICT DO NOTHING;
    EXIT WHEN FOUND;
    reserved := greatest(reserved + 1, nonce_top(l));
  END LOOP;
  UPDATE nonce_lane SET next_nonce = reserved + 1, chain_nonce = greatest(chain_nonce, at_least)
  WHERE lane_id = l.lane_id;
END $$;

-- The smallest nonce at which an external counter of this lane may stand. Creates the lane.
CREATE FUNCTION nonce_query_next(
  chain bigint, account bytea, caller_scheme smallint, at_least bigint, OUT bound smallint, OUT next bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane;
BEGIN
  SELECT * INTO l FROM nonce_lane WHERE chain_id = chain AND signer = account;
  IF NOT FOUND THEN
    PERFORM nonce_create_lane(chain, account, caller_scheme, at_least);
    SELECT * INTO STRICT l FROM nonce_lane WHERE chain_id = chain AND signer = account;
  END IF;
  bound := l.scheme;
  next := greatest(nonce_top(l), l.chain_nonce, at_least);
END $$;

-- Reserves a nonce that Redis issued, under the unique key and without the lane's lock. Where another one is recyclable,
-- that one is reserved, and the issued one is recyclable in its place. Nothing reserved: the issued one is taken, is
-- consumed on chain, or is so far ahead that its counter must be wrong; the counter belongs at `next`. Without an issued
-- nonce only a recyclable one is reserved. `has_free`: the next caller need not issue.
CREATE FUNCTION nonce_reserve_issued(
  chain bigint, account bytea, caller_scheme smallint, new_holder uuid, at_least bigint, timeout_ms bigint, skipped_max bigint,
  issued bigint, ahead_max bigint, OUT bound smallint, OUT reserved bigint, OUT expires_ms bigint, OUT next bigint,
  OUT has_free boolean
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; deadline timestamptz; low bigint; top bigint; is_sound boolean;
BEGIN
  SELECT * INTO l FROM nonce_lane WHERE chain_id = chain AND signer = account;
  IF NOT FOUND THEN
    PERFORM nonce_create_lane(chain, account, caller_scheme, at_least);
    SELECT * INTO STRICT l FROM nonce_lane WHERE chain_id = chain AND signer = account;
  END IF;
  bound := l.scheme;
  IF l.scheme <> caller_scheme THEN RETURN; END IF;
  deadline := nonce_deadline(timeout_ms);
  expires_ms := nonce_ms(deadline);
  low := greatest(at_least, l.chain_nonce);
  top := nonce_top(l);
  is_sound := coalesce(issued >= low AND issued - greatest(top, low) < ahead_max, false);
  has_free := false;
  -- The chain's nonce is recorded about once per chain block; no caller waits for that.
  IF at_least > l.chain_nonce THEN
    PERFORM 1 FROM nonce_lane WHERE lane_id = l.lane_id FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE nonce_lane SET chain_nonce = at_least WHERE lane_id = l.lane_id AND chain_nonce < at_least;
    END IF;
  END IF;

  -- A concurrent caller may have locked the smallest one; then the next one is taken.
  SELECT nonce INTO reserved FROM nonce_reservation
  WHERE lane_id = l.lane_id AND state = 2 AND nonce >= at_least
  ORDER BY nonce LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    PERFORM nonce_reserve_recyclable(l.lane_id, reserved, new_holder, deadline);
    IF is_sound THEN
      INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder, reason)
      VALUES (l.lane_id, 2, issued, deadline, '00000000-0000-0000-0000-000000000000',
        'issued while a smaller one was free')
      ON CONFLICT DO NOTHING;
    END IF;
    has_free := EXISTS (
      SELECT 1 FROM nonce_reservation WHERE lane_id = l.lane_id AND state = 2 AND nonce >= at_least);
    RETURN;
  END IF;

  IF top < at_least THEN
    PERFORM nonce_insert_skipped(l.lane_id, greatest(top, at_least - skipped_max), at_least);
  END IF;
  IF is_sound THEN
    INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder)
    VALUES (l.lane_id, 0, issued, deadline, new_holder) ON CONFLICT DO NOTHING;
    IF FOUND THEN reserved := issued; RETURN; END IF;
  END IF;
  next := greatest(nonce_top(l), low);
END $$;

-- Finds nonces that were issued and never reserved, because the caller died in between: missing below the top, and
-- missing already when the lane was scanned a grace period ago. They become recyclable under the unique key; a caller
-- that is merely slow finds its nonce taken. Scans so many lanes at a time, in order; returns the last one, or NULL when
-- all were scanned.
CREATE FUNCTION nonce_close_gaps(
  caller_scheme smallint, after_lane integer, lanes_max integer, scan_max bigint, skipped_max bigint, grace_ms bigint,
  OUT last_lane integer, OUT closed bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; top bigint; n bigint; seen integer := 0;
BEGIN
  closed := 0;
  FOR l IN SELECT * FROM nonce_lane WHERE lane_id > after_lane ORDER BY lane_id LIMIT lanes_max LOOP
    seen := seen + 1;
    last_lane := l.lane_id;
    CONTINUE WHEN l.scheme <> caller_scheme;
    top := nonce_top(l);
    CONTINUE WHEN top <= l.gaps_from;
    -- Another process may scan the same lane: one is enough.
    SELECT * INTO l FROM nonce_lane WHERE lane_id = last_lane FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    IF l.gaps_to > l.gaps_from THEN
      CONTINUE WHEN l.gaps_at + grace_ms * interval '1 millisecond' > clock_timestamp();
      INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder, reason)
      SELECT l.lane_id, 2, s, clock_timestamp(), '00000000-0000-0000-0000-000000000000', 'issued and never reserved'
      FROM generate_series(greatest(l.gaps_from, l.chain_nonce - skipped_max), l.gaps_to - 1) AS s
      ON CONFLICT DO NOTHING;
      GET DIAGNOSTICS n = ROW_COUNT;
      closed := closed + n;
    END IF;
    UPDATE nonce_lane
    SET gaps_from = l.gaps_to, gaps_to = greatest(l.gaps_to, least(top, l.gaps_to + scan_max)),
        gaps_at = clock_timestamp(), next_nonce = greatest(next_nonce, l.gaps_to)
    WHERE lane_id = l.lane_id;
  END LOOP;
  IF seen < lanes_max THEN last_lane := NULL; END IF;
END $$;

