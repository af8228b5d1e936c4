-- The books of lent nonces. The number in a function's name is its version: a rolling deploy installs the next
-- one beside it.
--
-- Plans are pinned. They are cached per session, and one that was made while a table was empty would read the
-- whole of it for ever after.

-- A lane whose nonces are lent: bound to one scheme for ever.
CREATE TABLE nonce_lane (
  lane_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  chain_id bigint NOT NULL,
  signer bytea NOT NULL CHECK (octet_length(signer) = 20),
  scheme smallint NOT NULL CHECK (scheme BETWEEN 1 AND 5),
  -- Every nonce from here on was never lent; there may be reservations above it, see nonce_top_1.
  next_nonce bigint NOT NULL CHECK (next_nonce >= 0),
  -- Rises with every change of hands, where a scheme has such.
  generation bigint NOT NULL DEFAULT 0,
  -- The chain was once seen to have consumed everything below, or to have it in a pool.
  chain_nonce bigint NOT NULL CHECK (chain_nonce >= 0),
  -- No nonce below is missing. What is missing from here to holes_to was missing at holes_at already, or
  -- was reserved since.
  holes_from bigint NOT NULL,
  holes_to bigint NOT NULL,
  holes_at timestamptz NOT NULL,
  UNIQUE (chain_id, signer)
);

-- Every nonce that was ever lent, and the one it is, or was last, lent to. (No foreign key: it would lock the
-- lane's row for every new one.)
CREATE TABLE nonce_reservation (
  lane_id integer NOT NULL,
  state smallint NOT NULL CHECK (state IN (0, 1, 2)), -- reserved, used, recyclable
  nonce bigint NOT NULL CHECK (nonce >= 0),
  expires_at timestamptz NOT NULL,
  -- The block that closed it, while forks are watched for.
  closed_number bigint,
  closed_time bigint,
  holder uuid NOT NULL,
  tx_hash bytea,
  closed_hash bytea,
  closed_parent bytea,
  reason text,
  PRIMARY KEY (lane_id, nonce),
  CHECK ((closed_number IS NULL) = (closed_hash IS NULL)),
  CHECK (closed_number IS NULL OR state = 1)
);

-- The smallest free one.
CREATE INDEX nonce_free ON nonce_reservation (lane_id, nonce) WHERE state = 2;
-- What the chain may be asked about, and what a lane has open.
CREATE INDEX nonce_open ON nonce_reservation (lane_id, nonce) WHERE state <> 1 OR closed_number IS NOT NULL;

-- Deadlines are whole milliseconds, so that what is told is what is kept.
CREATE FUNCTION nonce_deadline_1(timeout_ms bigint) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
  SELECT date_trunc('milliseconds', clock_timestamp()) + timeout_ms * interval '1 millisecond'
$$;

CREATE FUNCTION nonce_ms_1(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT round(extract(epoch FROM at) * 1000)::bigint
$$;

-- The smallest nonce above all that were ever lent.
CREATE FUNCTION nonce_top_1(l nonce_lane) RETURNS bigint LANGUAGE plpgsql STABLE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE top bigint;
BEGIN
  SELECT nonce INTO top FROM nonce_reservation
  WHERE lane_id = l.lane_id ORDER BY lane_id DESC, nonce DESC LIMIT 1;
  RETURN greatest(l.next_nonce, top + 1);
END $$;

-- Makes the row of a lane that is new: it begins where the chain stands. A lane of the store beside these books
-- is its keeper's (scheme 4), whoever asks: it has dealt nonces of which nothing is known here.
CREATE FUNCTION nonce_make_lane_1(chain bigint, who bytea, wanted smallint, at_least bigint)
  RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE is_kept boolean := false;
BEGIN
  -- Found by name, because books may also be without such a store.
  IF to_regclass('signer_nonce_cursor') IS NOT NULL THEN
    EXECUTE 'SELECT EXISTS (SELECT FROM lane JOIN signer_nonce_cursor USING (lane_id)'
      ' WHERE lane.chain_id = $1 AND lane.signer = $2)' INTO is_kept USING chain, who;
  END IF;
  INSERT INTO nonce_lane (chain_id, signer, scheme, next_nonce, chain_nonce, holes_from, holes_to, holes_at)
  VALUES (chain, who, CASE WHEN is_kept THEN 4 ELSE wanted END, at_least, at_least, at_least, at_least,
          clock_timestamp())
  ON CONFLICT (chain_id, signer) DO NOTHING;
END $$;

-- Lends a reservation that is locked and free.
CREATE FUNCTION nonce_relend_1(lane integer, which bigint, whom uuid, deadline timestamptz)
  RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
  UPDATE nonce_reservation SET state = 0, holder = whom, expires_at = deadline, tx_hash = NULL, reason = NULL
  WHERE lane_id = lane AND nonce = which
$$;

-- Others used the account: what they used is written down as free and is not lent, so that the sweep finds out by
-- whom, and so that what is not consumed in the end leaves no gap.
CREATE FUNCTION nonce_skip_1(lane integer, low bigint, high bigint)
  RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder, reason)
  SELECT lane, 2, s, clock_timestamp(), '00000000-0000-0000-0000-000000000000', 'the chain went past it'
  FROM generate_series(low, high - 1) AS s
  ON CONFLICT DO NOTHING
$$;

-- Lends the smallest free nonce, or the next one, under the lane's row lock. A lane of another scheme answers
-- with that scheme alone.
CREATE FUNCTION nonce_lend_1(
  chain bigint, who bytea, wanted smallint, whom uuid, at_least bigint, timeout_ms bigint, skipped_max bigint,
  OUT bound smallint, OUT lent bigint, OUT expires_ms bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; deadline timestamptz;
BEGIN
  SELECT * INTO l FROM nonce_lane WHERE chain_id = chain AND signer = who FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    PERFORM nonce_make_lane_1(chain, who, wanted, at_least);
    SELECT * INTO STRICT l FROM nonce_lane WHERE chain_id = chain AND signer = who FOR NO KEY UPDATE;
  END IF;
  bound := l.scheme;
  IF l.scheme <> wanted THEN RETURN; END IF;
  deadline := nonce_deadline_1(timeout_ms);
  expires_ms := nonce_ms_1(deadline);

  SELECT nonce INTO lent FROM nonce_reservation
  WHERE lane_id = l.lane_id AND state = 2 AND nonce >= at_least ORDER BY nonce LIMIT 1 FOR NO KEY UPDATE;
  IF FOUND THEN
    PERFORM nonce_relend_1(l.lane_id, lent, whom, deadline);
    UPDATE nonce_lane SET chain_nonce = at_least WHERE lane_id = l.lane_id AND chain_nonce < at_least;
    RETURN;
  END IF;

  lent := nonce_top_1(l);
  IF lent < at_least THEN
    PERFORM nonce_skip_1(l.lane_id, greatest(lent, at_least - skipped_max), at_least);
    lent := at_least;
  END IF;
  -- Under one lane's lock nobody else inserts, except where another issuer does (scheme 2).
  LOOP
    INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder)
    VALUES (l.lane_id, 0, lent, deadline, whom) ON CONFLICT DO NOTHING;
    EXIT WHEN FOUND;
    lent := greatest(lent + 1, nonce_top_1(l));
  END LOOP;
  UPDATE nonce_lane SET next_nonce = lent + 1, chain_nonce = greatest(chain_nonce, at_least)
  WHERE lane_id = l.lane_id;
END $$;

-- Where a lane's counter must stand at least. Makes the lane.
CREATE FUNCTION nonce_next_1(
  chain bigint, who bytea, wanted smallint, at_least bigint, OUT bound smallint, OUT next bigint
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane;
BEGIN
  SELECT * INTO l FROM nonce_lane WHERE chain_id = chain AND signer = who;
  IF NOT FOUND THEN
    PERFORM nonce_make_lane_1(chain, who, wanted, at_least);
    SELECT * INTO STRICT l FROM nonce_lane WHERE chain_id = chain AND signer = who;
  END IF;
  bound := l.scheme;
  next := greatest(nonce_top_1(l), l.chain_nonce, at_least);
END $$;

-- Reserves a nonce that somebody else issued, under the unique key and without the lane's lock. Where one is
-- free, that one is lent, and the issued one is free in its place. Nothing lent: the issued one is taken, is
-- consumed on chain, or is so far ahead that its issuer cannot be right; its counter belongs at `next`. With
-- nothing issued only a free one is lent. `has_free`: the next caller need not issue.
CREATE FUNCTION nonce_reserve_1(
  chain bigint, who bytea, wanted smallint, whom uuid, at_least bigint, timeout_ms bigint, skipped_max bigint,
  issued bigint, ahead_max bigint, OUT bound smallint, OUT lent bigint, OUT expires_ms bigint, OUT next bigint,
  OUT has_free boolean
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE l nonce_lane; deadline timestamptz; low bigint; top bigint; is_sound boolean;
BEGIN
  SELECT * INTO l FROM nonce_lane WHERE chain_id = chain AND signer = who;
  IF NOT FOUND THEN
    PERFORM nonce_make_lane_1(chain, who, wanted, at_least);
    SELECT * INTO STRICT l FROM nonce_lane WHERE chain_id = chain AND signer = who;
  END IF;
  bound := l.scheme;
  IF l.scheme <> wanted THEN RETURN; END IF;
  deadline := nonce_deadline_1(timeout_ms);
  expires_ms := nonce_ms_1(deadline);
  low := greatest(at_least, l.chain_nonce);
  top := nonce_top_1(l);
  is_sound := coalesce(issued >= low AND issued - greatest(top, low) < ahead_max, false);
  has_free := false;
  -- Once per block somebody writes down where the chain stands; nobody waits for it.
  IF at_least > l.chain_nonce THEN
    PERFORM 1 FROM nonce_lane WHERE lane_id = l.lane_id FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE nonce_lane SET chain_nonce = at_least WHERE lane_id = l.lane_id AND chain_nonce < at_least;
    END IF;
  END IF;

  -- Whoever takes the smallest at this moment has it; the next one is the smallest for us.
  SELECT nonce INTO lent FROM nonce_reservation
  WHERE lane_id = l.lane_id AND state = 2 AND nonce >= at_least
  ORDER BY nonce LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    PERFORM nonce_relend_1(l.lane_id, lent, whom, deadline);
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
    PERFORM nonce_skip_1(l.lane_id, greatest(top, at_least - skipped_max), at_least);
  END IF;
  IF is_sound THEN
    INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder)
    VALUES (l.lane_id, 0, issued, deadline, whom) ON CONFLICT DO NOTHING;
    IF FOUND THEN lent := issued; RETURN; END IF;
  END IF;
  next := greatest(nonce_top_1(l), low);
END $$;

-- Finds nonces that were issued and never reserved, because whoever asked for them died in between: missing
-- below the top, and missing already when the lane was looked at a grace ago. They are free under the unique
-- key; whoever is merely slow finds his taken. Goes through the lanes in order, so many at a time; answers with
-- the last one, or with nothing when all were seen.
CREATE FUNCTION nonce_holes_1(
  wanted smallint, after_lane integer, lanes_max integer, scan_max bigint, skipped_max bigint, grace_ms bigint,
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
    CONTINUE WHEN l.scheme <> wanted;
    top := nonce_top_1(l);
    CONTINUE WHEN top <= l.holes_from;
    -- Another process may look at the same lane: one of us is enough.
    SELECT * INTO l FROM nonce_lane WHERE lane_id = last_lane FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    IF l.holes_to > l.holes_from THEN
      CONTINUE WHEN l.holes_at + grace_ms * interval '1 millisecond' > clock_timestamp();
      INSERT INTO nonce_reservation (lane_id, state, nonce, expires_at, holder, reason)
      SELECT l.lane_id, 2, s, clock_timestamp(), '00000000-0000-0000-0000-000000000000', 'issued and never reserved'
      FROM generate_series(greatest(l.holes_from, l.chain_nonce - skipped_max), l.holes_to - 1) AS s
      ON CONFLICT DO NOTHING;
      GET DIAGNOSTICS n = ROW_COUNT;
      closed := closed + n;
    END IF;
    UPDATE nonce_lane
    SET holes_from = l.holes_to, holes_to = greatest(l.holes_to, least(top, l.holes_to + scan_max)),
        holes_at = clock_timestamp(), next_nonce = greatest(next_nonce, l.holes_to)
    WHERE lane_id = l.lane_id;
  END LOOP;
  IF seen < lanes_max THEN last_lane := NULL; END IF;
END $$;

-- Takes what a holder says, by the rules of domain::Reservation::mark. `what`: 0 submitted, 1 used,
-- 2 recyclable. `hash`: of 2, the transaction that the chain was asked about. `verdict`: 0 taken, 1 not lent, 2 not
-- the holder, 3 is used, 4 is free, 7 another transaction was named since the chain was asked.
CREATE FUNCTION nonce_mark_1(
  chain bigint, who bytea, wanted smallint, which bigint, whom uuid, what smallint, hash bytea, why text,
  OUT bound smallint, OUT verdict smallint, OUT state smallint, OUT nonce bigint, OUT holder uuid,
  OUT tx_hash bytea, OUT expires_ms bigint, OUT reason text
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE l nonce_lane; r nonce_reservation;
BEGIN
  SELECT * INTO l FROM nonce_lane AS x WHERE x.chain_id = chain AND x.signer = who;
  verdict := 1;
  bound := coalesce(l.scheme, wanted);
  IF l.lane_id IS NULL OR l.scheme <> wanted THEN RETURN; END IF;
  SELECT * INTO r FROM nonce_reservation AS x
  WHERE x.lane_id = l.lane_id AND x.nonce = which FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN; END IF;

  verdict := CASE
    WHEN r.holder <> whom THEN 2
    WHEN r.state = 0 AND what = 2 AND r.tx_hash IS DISTINCT FROM hash THEN 7
    WHEN r.state = 0 THEN 0
    WHEN r.state = 1 AND what IN (0, 1) AND coalesce(r.tx_hash, hash) = hash THEN 0
    WHEN r.state = 1 THEN 3
    WHEN what = 2 THEN 0
    ELSE 4 END;
  IF verdict = 0 AND (r.state = 0 OR (r.state = 1 AND r.tx_hash IS NULL)) THEN
    UPDATE nonce_reservation AS x
    SET state = CASE WHEN r.state = 0 THEN what ELSE 1 END,
        tx_hash = coalesce(hash, x.tx_hash), reason = coalesce(why, x.reason)
    WHERE x.lane_id = l.lane_id AND x.nonce = which
    RETURNING * INTO r;
  END IF;
  state := r.state; nonce := r.nonce; holder := r.holder; tx_hash := r.tx_hash; reason := r.reason;
  expires_ms := nonce_ms_1(r.expires_at);
END $$;

-- The next page of what the chain should be asked about.
CREATE FUNCTION nonce_watch_1(wanted smallint, after_lane integer, after_nonce bigint, page_max integer)
RETURNS TABLE (
  lane_id integer, chain_id bigint, signer bytea, state smallint, nonce bigint, holder uuid, tx_hash bytea,
  expires_ms bigint, reason text, closed_number bigint, closed_time bigint, closed_hash bytea,
  closed_parent bytea
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT r.lane_id, l.chain_id, l.signer, r.state, r.nonce, r.holder, r.tx_hash, nonce_ms_1(r.expires_at),
    r.reason, r.closed_number, r.closed_time, r.closed_hash, r.closed_parent
  FROM nonce_reservation AS r JOIN nonce_lane AS l ON l.lane_id = r.lane_id AND l.scheme = wanted
  WHERE (r.lane_id, r.nonce) > (after_lane, after_nonce)
    AND (r.state <> 1 OR r.closed_number IS NOT NULL)
    AND CASE r.state
          WHEN 0 THEN r.tx_hash IS NOT NULL OR r.expires_at <= clock_timestamp()
          WHEN 1 THEN true
          ELSE r.nonce < l.chain_nonce END
  ORDER BY r.lane_id, r.nonce LIMIT page_max;
END $$;

-- Takes the chain's verdicts, each only if the reservation is still as it was seen. `verdict`: 0 free, 1 used,
-- 2 reopened, 3 buried. A submitted one is never free by this. Answers with how many counted.
CREATE FUNCTION nonce_settle_1(
  wanted smallint, chains bigint[], signers bytea[], nonces bigint[], holders uuid[], states smallint[],
  hashes bytea[], closed bytea[], verdicts smallint[], used_by bytea[], numbers bigint[], blocks bytea[],
  parents bytea[], times bigint[], why text
) RETURNS bigint LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE n bigint;
BEGIN
  -- In order, so that two who settle the same ones never wait crosswise.
  PERFORM 1 FROM nonce_reservation AS r
  JOIN nonce_lane AS l ON l.lane_id = r.lane_id AND l.scheme = wanted
  JOIN unnest(chains, signers, nonces) AS w(chain_id, signer, nonce)
    ON w.chain_id = l.chain_id AND w.signer = l.signer AND w.nonce = r.nonce
  ORDER BY r.lane_id, r.nonce FOR NO KEY UPDATE OF r;

  UPDATE nonce_reservation AS r
  SET state = CASE w.verdict WHEN 0 THEN 2 WHEN 2 THEN 0 ELSE 1 END,
      reason = CASE w.verdict WHEN 0 THEN why ELSE r.reason END,
      tx_hash = coalesce(w.used_by, r.tx_hash),
      closed_number = w.number, closed_time = w.at, closed_hash = w.block, closed_parent = w.parent
  FROM nonce_lane AS l, unnest(
    chains, signers, nonces, holders, states, hashes, closed, verdicts, used_by, numbers, blocks, parents, times
  ) AS w(chain_id, signer, nonce, holder, state, hash, closed, verdict, used_by, number, block, parent, at)
  WHERE l.chain_id = w.chain_id AND l.signer = w.signer AND l.scheme = wanted
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
