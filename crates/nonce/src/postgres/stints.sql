-- What a keeper gives back is named with its stint, so that it may be given back twice, late, and by several at once.

-- Frees what a keeper has not handed out, and ends it when it keeps nothing any more. What else it keeps stays until its
-- lease is over. `stints`: of which keeping each is. The keeper may have given it back and taken it again since, and have
-- handed it out: that is another stint.
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
