-- Several processes look after one keeper: what one of them does late, twice or with other settings harms no other.

-- Frees what a keeper has not handed out, and ends it when it keeps nothing any more. What else it keeps stays until
-- its lease is over. `stints`: of which keeping each is. The keeper may have given it back and taken it again since,
-- and have handed it out: that is another stint.
CREATE FUNCTION nonce_put_back_2(whose uuid, unused bigint[], stints bigint[]) RETURNS void
  LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  PERFORM 1 FROM nonce_keeper WHERE token = whose FOR UPDATE;
  IF NOT FOUND THEN RETURN; END IF;
  UPDATE nonce_reservation AS r SET keeper = NULL, reason = coalesce(r.reason, 'set aside and never lent')
  FROM (
    SELECT x.lane_id, x.nonce FROM nonce_reservation AS x
    JOIN unnest(unused, stints) AS u(nonce, stint) ON u.nonce = x.nonce AND u.stint = x.stint
    WHERE x.keeper = whose AND x.state = 2 ORDER BY x.nonce FOR NO KEY UPDATE OF x
  ) AS w
  WHERE r.lane_id = w.lane_id AND r.nonce = w.nonce;
  DELETE FROM nonce_keeper
  WHERE token = whose AND NOT EXISTS (SELECT 1 FROM nonce_reservation WHERE keeper = whose AND state = 2);
END $$;

-- A lease is never shortened: the processes that share a keeper may have been promised leases of different lengths, and
-- each trusts its own. These two take the place of what was there, so that a program from before this step renews in
-- the same way.

-- Gives a keeper the smallest nonces that are free for all, then new ones (at most `fresh_max`), and renews its
-- lease. What the chain went `passed` is free for all again: the keeper names what it has not handed out, for
-- what it has handed out may not be written down yet. `is_new`: the token begins with this. Nothing
-- taken and `is_live` false: its lease was over, and so is the token.
CREATE OR REPLACE FUNCTION nonce_take_1(
  chain bigint, who bytea, wanted smallint, whose uuid, is_new boolean, lease_ms bigint, longest_ms bigint,
  at_least bigint, take_max bigint, fresh_max bigint, skipped_max bigint, passed bigint[],
  OUT bound smallint, OUT is_live boolean, OUT now_ms bigint, OUT loan_ms bigint, OUT nonces bigint[], OUT stint bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; k nonce_keeper; low bigint; high bigint;
BEGIN
  l := nonce_locked_lane_1(chain, who, wanted, at_least);
  bound := l.scheme;
  is_live := false;
  IF l.scheme <> wanted THEN RETURN; END IF;
  PERFORM nonce_reap_1(wanted, l.lane_id, 100);
  IF is_new THEN
    INSERT INTO nonce_keeper (token, lane_id, leased_until, loan_ms, server, made_at)
    VALUES (whose, l.lane_id, clock_timestamp(), longest_ms, '', clock_timestamp()) ON CONFLICT DO NOTHING;
  END IF;
  UPDATE nonce_keeper AS x
  SET leased_until = greatest(x.leased_until, clock_timestamp() + lease_ms * interval '1 millisecond'),
      loan_ms = greatest(x.loan_ms, longest_ms)
  WHERE x.token = whose AND x.lane_id = l.lane_id RETURNING * INTO k;
  IF NOT FOUND THEN RETURN; END IF;
  is_live := true;
  now_ms := nonce_ms_1(clock_timestamp());
  loan_ms := k.loan_ms;
  stint := nextval('nonce_stint');
  UPDATE nonce_lane SET chain_nonce = at_least WHERE lane_id = l.lane_id AND chain_nonce < at_least;
  UPDATE nonce_reservation SET keeper = NULL WHERE keeper = whose AND state = 2 AND nonce = ANY (passed);

  WITH picked AS (
    SELECT nonce FROM nonce_reservation
    WHERE lane_id = l.lane_id AND state = 2 AND keeper IS NULL AND nonce >= at_least
    ORDER BY nonce LIMIT take_max FOR NO KEY UPDATE SKIP LOCKED
  ), taken AS (
    UPDATE nonce_reservation AS r SET keeper = whose, stint = nonce_take_1.stint
    FROM picked WHERE r.lane_id = l.lane_id AND r.nonce = picked.nonce RETURNING r.nonce
  ) SELECT coalesce(array_agg(nonce ORDER BY nonce), '{}') INTO nonces FROM taken;

  fresh_max := least(fresh_max, take_max - cardinality(nonces));
  IF fresh_max > 0 THEN
    low := nonce_top_1(l);
    IF low < at_least THEN
      PERFORM nonce_skip_1(l.lane_id, greatest(low, at_least - skipped_max), at_least);
      low := at_least;
    END IF;
    high := low + fresh_max;
    INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder, keeper, stint)
    SELECT l.lane_id, 2, s, clock_timestamp(), whose, whose, nonce_take_1.stint
    FROM generate_series(low, high - 1) AS s;
    UPDATE nonce_lane SET next_nonce = high WHERE lane_id = l.lane_id;
    nonces := nonces || ARRAY(SELECT generate_series(low, high - 1));
  END IF;
END $$;

-- The generation of a lane, for a process that reaches this server. Its lease is renewed if it is this server's
-- and its state there is not `broken`; otherwise the next one begins, with the proposed token, unless the present
-- one is so young that its maker may still be at work, or two masters would take turns too often.
CREATE OR REPLACE FUNCTION nonce_generation_1(
  chain bigint, who bytea, wanted smallint, at_least bigint, proposed uuid, at_server text, broken uuid,
  lease_ms bigint, longest_ms bigint, patience_ms bigint,
  OUT bound smallint, OUT token uuid, OUT server text, OUT is_new boolean, OUT now_ms bigint, OUT loan_ms bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; k nonce_keeper; made timestamptz := clock_timestamp();
BEGIN
  l := nonce_locked_lane_1(chain, who, wanted, at_least);
  bound := l.scheme;
  is_new := false;
  IF l.scheme <> wanted THEN RETURN; END IF;
  PERFORM nonce_reap_1(wanted, l.lane_id, 100);
  SELECT * INTO k FROM nonce_keeper AS x WHERE x.lane_id = l.lane_id FOR NO KEY UPDATE;
  IF FOUND AND (k.server <> at_server OR k.token = broken)
     AND k.made_at + patience_ms * interval '1 millisecond' < clock_timestamp() THEN
    -- Somebody may trust the old lease for as long as was ever granted.
    k.leased_until := greatest(k.leased_until, clock_timestamp() + lease_ms * interval '1 millisecond');
    PERFORM nonce_keeper_end_1(k);
    k := NULL;
  END IF;
  IF k.token IS NULL THEN
    is_new := true;
    INSERT INTO nonce_keeper (token, lane_id, leased_until, loan_ms, server, made_at)
    VALUES (proposed, l.lane_id, made, longest_ms, at_server, made) RETURNING * INTO k;
    UPDATE nonce_lane SET generation = generation + 1 WHERE lane_id = l.lane_id;
  END IF;
  IF k.server = at_server AND k.token IS DISTINCT FROM broken THEN
    UPDATE nonce_keeper AS x
    SET leased_until = greatest(x.leased_until, clock_timestamp() + lease_ms * interval '1 millisecond'),
        loan_ms = greatest(x.loan_ms, longest_ms)
    WHERE x.token = k.token RETURNING * INTO k;
  END IF;
  token := k.token; server := k.server; loan_ms := k.loan_ms;
  now_ms := nonce_ms_1(clock_timestamp());
END $$;
