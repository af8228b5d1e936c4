-- Keepers: whoever hands nonces out without asking first. In scheme 5 one process, from its memory; in scheme 3
-- one life of one Redis (a generation), for all processes. What is kept is free (state 2) and names its keeper:
-- nobody else lends it. What was handed out is written down afterwards, in batches, under the keeper's token.
--
-- A token whose lease is over is never renewed. What it kept may have been handed out to somebody who was not
-- written down: it is reserved by the token itself until the last such loan is overdue, and then it is for the
-- sweep to ask the chain.

CREATE TABLE nonce_keeper (
  token uuid PRIMARY KEY,
  lane_id integer NOT NULL,
  -- Nothing is handed out after this.
  leased_until timestamptz NOT NULL,
  -- No loan lasts longer.
  loan_ms bigint NOT NULL CHECK (loan_ms >= 0),
  -- Which life of which Redis; empty in scheme 5.
  server text NOT NULL,
  made_at timestamptz NOT NULL
);
CREATE INDEX nonce_keeper_lane ON nonce_keeper (lane_id);

-- Who keeps a free one; nothing: everybody may lend it.
ALTER TABLE nonce_reservation ADD COLUMN keeper uuid;
-- Tells one keeping of a nonce from the next: what was handed out under an older one is not written down.
ALTER TABLE nonce_reservation ADD COLUMN stint bigint NOT NULL DEFAULT 0;
CREATE SEQUENCE nonce_stint;
-- Free for all.
CREATE INDEX nonce_loose ON nonce_reservation (lane_id, nonce) WHERE state = 2 AND keeper IS NULL;
CREATE INDEX nonce_kept ON nonce_reservation (keeper, nonce) WHERE state = 2 AND keeper IS NOT NULL;

-- Ends a keeper that is locked. What it may have handed out stays reserved, by its token.
CREATE FUNCTION nonce_keeper_end_1(k nonce_keeper) RETURNS void LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  -- Whoever writes under the token has a share of this, and comes before us.
  PERFORM 1 FROM nonce_keeper WHERE token = k.token FOR UPDATE;
  UPDATE nonce_reservation AS r
  SET state = 0, holder = k.token, tx_hash = NULL, reason = NULL, keeper = NULL,
      expires_at = date_trunc('milliseconds', k.leased_until + (k.loan_ms + 1) * interval '1 millisecond')
  FROM (
    SELECT lane_id, nonce FROM nonce_reservation WHERE keeper = k.token AND state = 2 ORDER BY nonce
    FOR NO KEY UPDATE
  ) AS w
  WHERE r.lane_id = w.lane_id AND r.nonce = w.nonce;
  DELETE FROM nonce_keeper WHERE token = k.token;
END $$;

-- Ends keepers whose lease is over; `lane` for one lane only.
CREATE FUNCTION nonce_reap_1(wanted smallint, lane integer, keepers_max integer) RETURNS bigint
  LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE k nonce_keeper; n bigint := 0;
BEGIN
  FOR k IN SELECT x.* FROM nonce_keeper AS x JOIN nonce_lane AS l ON l.lane_id = x.lane_id AND l.scheme = wanted
    WHERE x.leased_until < clock_timestamp() AND (lane IS NULL OR x.lane_id = lane)
    ORDER BY x.token LIMIT keepers_max FOR UPDATE OF x SKIP LOCKED
  LOOP
    PERFORM nonce_keeper_end_1(k);
    n := n + 1;
  END LOOP;
  RETURN n;
END $$;

-- The lane's row, locked; made if it is new.
CREATE FUNCTION nonce_locked_lane_1(chain bigint, who bytea, wanted smallint, at_least bigint) RETURNS nonce_lane
  LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane;
BEGIN
  SELECT * INTO l FROM nonce_lane WHERE chain_id = chain AND signer = who FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    PERFORM nonce_make_lane_1(chain, who, wanted, at_least);
    SELECT * INTO STRICT l FROM nonce_lane WHERE chain_id = chain AND signer = who FOR NO KEY UPDATE;
  END IF;
  RETURN l;
END $$;

-- Gives a keeper the smallest nonces that are free for all, then new ones (at most `fresh_max`), and renews its
-- lease. What the chain went `passed` is free for all again: the keeper names what it has not handed out, for
-- what it has handed out may not be written down yet. `is_new`: the token begins with this. Nothing
-- taken and `is_live` false: its lease was over, and so is the token.
CREATE FUNCTION nonce_take_1(
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
  SET leased_until = clock_timestamp() + lease_ms * interval '1 millisecond',
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

-- Lends one nonce that nobody keeps, for when a keeper cannot be asked. The others stay with their keeper.
CREATE FUNCTION nonce_lend_loose_1(
  chain bigint, who bytea, wanted smallint, whom uuid, at_least bigint, timeout_ms bigint, skipped_max bigint,
  OUT bound smallint, OUT lent bigint, OUT expires_ms bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; deadline timestamptz;
BEGIN
  l := nonce_locked_lane_1(chain, who, wanted, at_least);
  bound := l.scheme;
  IF l.scheme <> wanted THEN RETURN; END IF;
  PERFORM nonce_reap_1(wanted, l.lane_id, 100);
  deadline := nonce_deadline_1(timeout_ms);
  expires_ms := nonce_ms_1(deadline);
  UPDATE nonce_lane SET chain_nonce = at_least WHERE lane_id = l.lane_id AND chain_nonce < at_least;
  SELECT nonce INTO lent FROM nonce_reservation
  WHERE lane_id = l.lane_id AND state = 2 AND keeper IS NULL AND nonce >= at_least
  ORDER BY nonce LIMIT 1 FOR NO KEY UPDATE;
  IF FOUND THEN
    PERFORM nonce_relend_1(l.lane_id, lent, whom, deadline);
    RETURN;
  END IF;
  lent := nonce_top_1(l);
  IF lent < at_least THEN
    PERFORM nonce_skip_1(l.lane_id, greatest(lent, at_least - skipped_max), at_least);
    lent := at_least;
  END IF;
  INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder)
  VALUES (l.lane_id, 0, lent, deadline, whom);
  UPDATE nonce_lane SET next_nonce = lent + 1 WHERE lane_id = l.lane_id;
END $$;

-- The generation of a lane, for a process that reaches this server. Its lease is renewed if it is this server's
-- and its state there is not `broken`; otherwise the next one begins, with the proposed token, unless the present
-- one is so young that its maker may still be at work, or two masters would take turns too often.
CREATE FUNCTION nonce_generation_1(
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
    k.leased_until := clock_timestamp() + lease_ms * interval '1 millisecond';
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
    SET leased_until = clock_timestamp() + lease_ms * interval '1 millisecond',
        loan_ms = greatest(x.loan_ms, longest_ms)
    WHERE x.token = k.token RETURNING * INTO k;
  END IF;
  token := k.token; server := k.server; loan_ms := k.loan_ms;
  now_ms := nonce_ms_1(clock_timestamp());
END $$;

-- Writes down a batch, in its order. `what`: 0 submitted, 1 used, 2 recyclable, 3 handed out. `tokens`: of 3, under
-- which keeper it was handed out; of 2, who wants to keep it (nobody: it is free for all). `verdict`: 0 taken, 1 not
-- lent, 2 not the holder, 3 is used, 4 is free, 5 not under this token any more, 6 kept by somebody who may have
-- handed it out and not written it down yet, 7 another transaction was named since the chain was asked (of 2,
-- `hashes` has the one that it was asked about). `is_kept`: by this entry.
CREATE FUNCTION nonce_write_1(
  wanted smallint, chains bigint[], signers bytea[], nonces bigint[], holders uuid[], whats smallint[],
  hashes bytea[], reasons text[], tokens uuid[], stints bigint[], deadlines bigint[]
) RETURNS TABLE (
  bound smallint, verdict smallint, state smallint, nonce bigint, holder uuid, tx_hash bytea, expires_ms bigint,
  reason text, is_kept boolean
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE r nonce_reservation; e record;
BEGIN
  -- Keepers before nonces, and both in order, so that no two ever wait crosswise.
  PERFORM 1 FROM nonce_keeper AS x WHERE x.token = ANY (tokens) ORDER BY x.token FOR KEY SHARE;
  PERFORM 1 FROM nonce_reservation AS x
  JOIN nonce_lane AS l ON l.lane_id = x.lane_id AND l.scheme = wanted
  JOIN (SELECT DISTINCT * FROM unnest(chains, signers, nonces) AS d(chain_id, signer, nonce)) AS w
    ON w.chain_id = l.chain_id AND w.signer = l.signer AND w.nonce = x.nonce
  ORDER BY x.lane_id, x.nonce FOR NO KEY UPDATE OF x;

  FOR e IN
    SELECT w.*, l.lane_id, l.scheme
    FROM unnest(chains, signers, nonces, holders, whats, hashes, reasons, tokens, stints, deadlines)
      WITH ORDINALITY
      AS w(chain_id, signer, nonce, whom, what, hash, why, token, stint, deadline, number)
    LEFT JOIN nonce_lane AS l ON l.chain_id = w.chain_id AND l.signer = w.signer
    ORDER BY w.number
  LOOP
    bound := coalesce(e.scheme, wanted);
    verdict := 1; is_kept := false; nonce := e.nonce;
    state := NULL; holder := NULL; tx_hash := NULL; expires_ms := NULL; reason := NULL;
    r := NULL;
    IF bound = wanted THEN
      SELECT * INTO r FROM nonce_reservation AS x WHERE x.lane_id = e.lane_id AND x.nonce = e.nonce;
    END IF;
    IF r.lane_id IS NULL THEN RETURN NEXT; CONTINUE; END IF;
    IF e.what = 3 THEN
      verdict := CASE WHEN r.holder = e.whom THEN 0
        WHEN r.stint = e.stint AND (r.keeper = e.token AND r.state = 2 OR r.state = 0 AND r.holder = e.token) THEN 0
        ELSE 5 END;
      IF verdict = 0 AND r.holder <> e.whom THEN
        UPDATE nonce_reservation AS x
        SET state = 0, holder = e.whom, tx_hash = NULL, reason = NULL, keeper = NULL,
            expires_at = to_timestamp(e.deadline / 1000.0)
        WHERE x.lane_id = e.lane_id AND x.nonce = e.nonce RETURNING * INTO r;
      END IF;
    ELSE
      verdict := CASE
        WHEN r.holder <> e.whom AND r.state = 2 AND r.keeper IS NOT NULL THEN 6
        WHEN r.holder <> e.whom THEN 2
        WHEN r.state = 0 AND e.what = 2 AND r.tx_hash IS DISTINCT FROM e.hash THEN 7
        WHEN r.state = 0 THEN 0
        WHEN r.state = 1 AND e.what IN (0, 1) AND coalesce(r.tx_hash, e.hash) = e.hash THEN 0
        WHEN r.state = 1 THEN 3
        WHEN e.what = 2 THEN 0
        ELSE 4 END;
      IF verdict = 0 AND (r.state = 0 OR (r.state = 1 AND r.tx_hash IS NULL)) THEN
        is_kept := r.state = 0 AND e.what = 2 AND e.token IS NOT NULL AND EXISTS (
          SELECT 1 FROM nonce_keeper AS k
          WHERE k.token = e.token AND k.lane_id = e.lane_id AND k.leased_until > clock_timestamp());
        UPDATE nonce_reservation AS x
        SET state = CASE WHEN r.state = 0 THEN e.what ELSE 1 END,
            tx_hash = coalesce(e.hash, x.tx_hash), reason = coalesce(e.why, x.reason),
            keeper = CASE WHEN is_kept THEN e.token END,
            stint = CASE WHEN is_kept THEN e.stint ELSE x.stint END
        WHERE x.lane_id = e.lane_id AND x.nonce = e.nonce RETURNING * INTO r;
      END IF;
    END IF;
    state := r.state; holder := r.holder; tx_hash := r.tx_hash; reason := r.reason;
    expires_ms := nonce_ms_1(r.expires_at);
    RETURN NEXT;
  END LOOP;
END $$;

-- Frees what a keeper says it has not handed out, and ends it when it keeps nothing any more. What else it keeps
-- stays until its lease is over.
CREATE FUNCTION nonce_put_back_1(whose uuid, unused bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  PERFORM 1 FROM nonce_keeper WHERE token = whose FOR UPDATE;
  IF NOT FOUND THEN RETURN; END IF;
  UPDATE nonce_reservation AS r SET keeper = NULL, reason = coalesce(r.reason, 'set aside and never lent')
  FROM (
    SELECT lane_id, nonce FROM nonce_reservation
    WHERE keeper = whose AND state = 2 AND nonce = ANY (unused) ORDER BY nonce FOR NO KEY UPDATE
  ) AS w
  WHERE r.lane_id = w.lane_id AND r.nonce = w.nonce;
  DELETE FROM nonce_keeper
  WHERE token = whose AND NOT EXISTS (SELECT 1 FROM nonce_reservation WHERE keeper = whose AND state = 2);
END $$;

-- What a keeper keeps, page by page.
CREATE FUNCTION nonce_kept_1(whose uuid, after_nonce bigint, page_max integer)
RETURNS TABLE (nonce bigint, stint bigint) LANGUAGE plpgsql STABLE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT r.nonce, r.stint FROM nonce_reservation AS r
  WHERE r.keeper = whose AND r.state = 2 AND r.nonce > after_nonce ORDER BY r.nonce LIMIT page_max;
END $$;

-- The smallest nonce above all that were ever lent, as far as it is written down.
CREATE FUNCTION nonce_top_lent_1(l nonce_lane) RETURNS bigint LANGUAGE plpgsql STABLE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE r nonce_reservation;
BEGIN
  FOR r IN SELECT * FROM nonce_reservation WHERE lane_id = l.lane_id ORDER BY lane_id DESC, nonce DESC LOOP
    IF r.state <> 2 OR r.keeper IS NULL OR r.holder <> r.keeper THEN RETURN r.nonce + 1; END IF;
  END LOOP;
  SELECT min(nonce) INTO r.nonce FROM nonce_reservation WHERE lane_id = l.lane_id;
  RETURN coalesce(r.nonce, l.next_nonce);
END $$;
