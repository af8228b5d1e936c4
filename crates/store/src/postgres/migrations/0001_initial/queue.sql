-- The queue: the only unfenced write of txs. Inserts new requests with a queue row each. Returns the tx of every
-- request in the order given, also when another node inserted it at the same time: the result is read by a later inner
-- statement than the one that waited for it.
--
-- A halted lane raises LK002, and a lane that is not reconciled with its chain yet LK003: a client should retry the
-- second after a while.
CREATE FUNCTION lanekeeper_queue(
  chains bigint[], signers bytea[], i_created bigint[], i_gas bigint[], i_tx uuid[], i_type smallint[],
  i_request text[], i_fingerprint bytea[], i_to bytea[], i_value bytea[], i_requested_gas bytea[],
  i_max_fee bytea[], i_max_priority_fee bytea[], i_gas_price bytea[], i_data bytea[], i_state smallint[],
  i_sub smallint[], i_seqs bytea[]
) RETURNS SETOF managed_tx LANGUAGE plpgsql VOLATILE
  SET search_path FROM CURRENT
  SET plan_cache_mode = force_generic_plan
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET jit = off AS $$
#variable_conflict use_column
DECLARE refused record;
BEGIN
  -- A lane that has lost commits, or may have, must not accept a request again that was executed. One that does not exist
  -- yet takes it, so that a keeper finds the lane; it is compared with the chain before it allocates a nonce.
  SELECT l.halted INTO refused
  FROM unnest(chains, signers, i_request) AS w(chain_id, signer, request_id)
  JOIN lane ON lane.chain_id = w.chain_id AND lane.signer = w.signer
  JOIN signer_lease AS l ON l.lane_id = lane.lane_id
  LEFT JOIN managed_tx AS tx ON tx.lane_id = lane.lane_id AND tx.request_id = w.request_id
  WHERE (l.halted IS NOT NULL OR l.history <> (SELECT lanekeeper_history())) AND tx.tx_id IS NULL
  LIMIT 1;
  IF FOUND AND refused.halted IS NOT NULL THEN
    RAISE EXCEPTION '%', refused.halted USING ERRCODE = 'LK002';
  ELSIF FOUND THEN
    RAISE EXCEPTION 'the database''s history changed, and the lane is not reconciled with its chain yet'
      USING ERRCODE = 'LK003';
  END IF;

  IF EXISTS (
    SELECT FROM unnest(chains, signers) AS w(chain_id, signer)
    LEFT JOIN lane ON lane.chain_id = w.chain_id AND lane.signer = w.signer
    WHERE lane.lane_id IS NULL
  ) THEN
    PERFORM lanekeeper_create_lanes(chains, signers);
  END IF;

  WITH new AS (
    INSERT INTO managed_tx
      (lane_id, created_at, gas, tx_id, tx_type, request_id, fingerprint, to_address, value, requested_gas,
       max_fee, max_priority_fee, gas_price, data, state, sub_state, signed, token, updated_at, event_seqs)
    SELECT lane.lane_id, t.created_at, t.gas, t.tx_id, t.tx_type, t.request_id, t.fingerprint, t.to_address,
           t.value, t.requested_gas, t.max_fee, t.max_priority_fee, t.gas_price, t.data, t.state, t.sub_state,
           false, 0, t.created_at, t.event_seqs
    FROM unnest(chains, signers, i_created, i_gas, i_tx, i_type, i_request, i_fingerprint, i_to, i_value,
                i_requested_gas, i_max_fee, i_max_priority_fee, i_gas_price, i_data, i_state, i_sub, i_seqs)
      AS t(chain_id, signer, created_at, gas, tx_id, tx_type, request_id, fingerprint, to_address, value,
           requested_gas, max_fee, max_priority_fee, gas_price, data, state, sub_state, event_seqs)
    JOIN lane ON lane.chain_id = t.chain_id AND lane.signer = t.signer
    ORDER BY lane.lane_id, t.request_id COLLATE "C"
    ON CONFLICT (lane_id, request_id) DO NOTHING
    RETURNING lane_id, tx_id
  )
  INSERT INTO queued_tx (lane_id, tx_id) SELECT new.lane_id, new.tx_id FROM new;

  RETURN QUERY
    SELECT tx.* FROM unnest(chains, signers, i_request) WITH ORDINALITY AS k(chain_id, signer, request_id, n)
    JOIN lane ON lane.chain_id = k.chain_id AND lane.signer = k.signer
    JOIN managed_tx AS tx ON tx.lane_id = lane.lane_id AND tx.request_id = k.request_id
    ORDER BY k.n;
END $$;

