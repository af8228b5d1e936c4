-- What holders say is held against what they said before, and against the chain.

-- Two different transactions were named for it: either may be mined, so it is never free. (A reservation from before
-- this step does not know of what it was first.)
ALTER TABLE nonce_reservation ADD COLUMN was_replaced boolean NOT NULL DEFAULT false;
ALTER TABLE nonce_reservation ADD CHECK (state <> 2 OR NOT was_replaced);

-- Used so deep in the chain that nobody looks any more. What is used and not buried was closed by the chain a short
-- while ago, or is used by its holder's word alone.
--
-- Old rows have it by default, so that the table is not written anew; then it is taken from those that the chain has not
-- gone past, as far as is known, and from those that are open.
ALTER TABLE nonce_reservation ADD COLUMN is_buried boolean NOT NULL DEFAULT true;
ALTER TABLE nonce_reservation ALTER COLUMN is_buried SET DEFAULT false;
UPDATE nonce_reservation AS r SET is_buried = false FROM nonce_lane AS l
WHERE l.lane_id = r.lane_id AND (r.state <> 1 OR r.closed_number IS NOT NULL OR r.nonce >= l.chain_nonce);
ALTER TABLE nonce_reservation ADD CHECK (NOT is_buried OR (state = 1 AND closed_number IS NULL));

-- What the chain may be asked about, and what a lane has open.
DROP INDEX nonce_open;
CREATE INDEX nonce_open ON nonce_reservation (lane_id, nonce) WHERE state <> 1 OR NOT is_buried;

-- Takes what a holder says, by the rules of domain::Reservation::mark. `what`: 0 submitted, 1 used,
-- 2 recyclable. `hash`: of 2, the transaction that the chain was asked about. `verdict`: 0 taken, 1 not lent, 2 not
-- the holder, 3 is used, 4 is free, 7 another transaction was named since the chain was asked, 8 two were named.
CREATE FUNCTION nonce_mark_2(
  chain bigint, who bytea, wanted smallint, which bigint, whom uuid, what smallint, hash bytea, why text,
  OUT bound smallint, OUT verdict smallint, OUT state smallint, OUT nonce bigint, OUT holder uuid,
  OUT tx_hash bytea, OUT expires_ms bigint, OUT reason text, OUT was_replaced boolean
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
    WHEN r.state = 0 AND what = 2 AND r.was_replaced THEN 8
    WHEN r.state = 0 AND what = 2 AND r.tx_hash IS DISTINCT FROM hash THEN 7
    WHEN r.state = 0 THEN 0
    WHEN r.state = 1 AND what IN (0, 1) AND coalesce(r.tx_hash, hash) = hash THEN 0
    WHEN r.state = 1 THEN 3
    WHEN what = 2 THEN 0
    ELSE 4 END;
  IF verdict = 0 AND (r.state = 0 OR (r.state = 1 AND r.tx_hash IS NULL)) THEN
    UPDATE nonce_reservation AS x
    SET state = CASE WHEN r.state = 0 THEN what ELSE 1 END,
        tx_hash = coalesce(hash, x.tx_hash), reason = coalesce(why, x.reason),
        was_replaced = x.was_replaced OR coalesce(x.tx_hash <> hash, false)
    WHERE x.lane_id = l.lane_id AND x.nonce = which
    RETURNING * INTO r;
  END IF;
  state := r.state; nonce := r.nonce; holder := r.holder; tx_hash := r.tx_hash; reason := r.reason;
  expires_ms := nonce_ms_1(r.expires_at); was_replaced := r.was_replaced;
END $$;

-- Writes down a batch, in its order. `what`: 0 submitted, 1 used, 2 recyclable, 3 handed out. `tokens`: of 3, under
-- which keeper it was handed out; of 2, who wants to keep it (nobody: it is free for all). `verdict`: 0 taken, 1 not
-- lent, 2 not the holder, 3 is used, 4 is free, 5 not under this token any more, 6 kept by somebody who may have
-- handed it out and not written it down yet, 7 another transaction was named since the chain was asked (of 2,
-- `hashes` has the one that it was asked about), 8 two transactions were named. `is_kept`: by this entry.
CREATE FUNCTION nonce_write_2(
  wanted smallint, chains bigint[], signers bytea[], nonces bigint[], holders uuid[], whats smallint[],
  hashes bytea[], reasons text[], tokens uuid[], stints bigint[], deadlines bigint[]
) RETURNS TABLE (
  bound smallint, verdict smallint, state smallint, nonce bigint, holder uuid, tx_hash bytea, expires_ms bigint,
  reason text, is_kept boolean, was_replaced boolean
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
    was_replaced := NULL;
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
        WHEN r.state = 0 AND e.what = 2 AND r.was_replaced THEN 8
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
            was_replaced = x.was_replaced OR coalesce(x.tx_hash <> e.hash, false),
            keeper = CASE WHEN is_kept THEN e.token END,
            stint = CASE WHEN is_kept THEN e.stint ELSE x.stint END
        WHERE x.lane_id = e.lane_id AND x.nonce = e.nonce RETURNING * INTO r;
      END IF;
    END IF;
    state := r.state; holder := r.holder; tx_hash := r.tx_hash; reason := r.reason;
    expires_ms := nonce_ms_1(r.expires_at); was_replaced := r.was_replaced;
    RETURN NEXT;
  END LOOP;
END $$;

-- The next page of what the chain should be asked about. What its holder calls used is one of them, until the chain
-- has shown it: its transaction may be dropped, or not be what he thinks.
CREATE FUNCTION nonce_watch_2(wanted smallint, after_lane integer, after_nonce bigint, page_max integer)
RETURNS TABLE (
  lane_id integer, chain_id bigint, signer bytea, state smallint, nonce bigint, holder uuid, tx_hash bytea,
  expires_ms bigint, reason text, closed_number bigint, closed_time bigint, closed_hash bytea,
  closed_parent bytea, was_replaced boolean
) LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT r.lane_id, l.chain_id, l.signer, r.state, r.nonce, r.holder, r.tx_hash, nonce_ms_1(r.expires_at),
    r.reason, r.closed_number, r.closed_time, r.closed_hash, r.closed_parent, r.was_replaced
  FROM nonce_reservation AS r JOIN nonce_lane AS l ON l.lane_id = r.lane_id AND l.scheme = wanted
  WHERE (r.lane_id, r.nonce) > (after_lane, after_nonce)
    AND (r.state <> 1 OR NOT r.is_buried)
    AND CASE r.state
          WHEN 0 THEN r.tx_hash IS NOT NULL OR r.expires_at <= clock_timestamp()
          WHEN 1 THEN true
          ELSE r.nonce < l.chain_nonce END
  ORDER BY r.lane_id, r.nonce LIMIT page_max;
END $$;

-- Takes the chain's verdicts, each only if the reservation is still as it was seen. `verdict`: 0 free, 1 used,
-- 2 reopened, 3 buried. A submitted one is never free by this. Answers with how many counted.
CREATE FUNCTION nonce_settle_2(
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
      -- A fork may open it again: then either may be mined.
      was_replaced = r.was_replaced OR coalesce(w.used_by <> r.tx_hash, false),
      is_buried = w.verdict = 3,
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
