-- The feed: appends the new events of these lanes; without lanes: of all lanes that are behind. The head is locked by a
-- statement of its own, so that the next one sees all rows that were appended before: no event is skipped or repeated, and
-- positions become visible in their order. Returns the number of appended rows.
CREATE FUNCTION lanekeeper_feed(lanes bigint[]) RETURNS bigint LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT
  SET plan_cache_mode = force_custom_plan
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET jit = off AS $$
#variable_conflict use_column
DECLARE head bigint; behind bigint[]; n bigint; present text;
BEGIN
  -- Without the lock first: most often there is nothing to append, and nothing should be written.
  IF cardinality(lanes) = 0 THEN
    SELECT array_agg(c.lane_id) INTO behind FROM signer_nonce_cursor AS c
    LEFT JOIN lane_feed AS f ON f.lane_id = c.lane_id WHERE c.event_seq > coalesce(f.fed_seq, 0);
    IF behind IS NULL THEN RETURN 0; END IF;
  ELSE
    behind := lanes;
  END IF;

  -- In another history positions may have been assigned, read and lost: continue far above those, so that no reader skips
  -- the next ones.
  present := lanekeeper_history();
  SELECT h.position + CASE WHEN h.history IN ('', present) THEN 0 ELSE 1000000000 END
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
    UPDATE feed_head SET position = head + n, history = present WHERE one;
  END IF;
  RETURN n;
END $$;

