-- Readable views, for people who query with psql: hex addresses, state names, times. The program does not read them.

CREATE VIEW lease_view AS
SELECT
  lane.chain_id,
  '0x' || encode(lane.signer, 'hex') AS signer,
  lease.owner AS keeper,
  lease.incarnation,
  lease.token,
  to_timestamp(nullif(lease.expires_at, 0) / 1000.0) AS expires_at, -- NULL: released
  lease.halted,
  to_timestamp(lease.updated_at / 1000.0) AS updated_at
FROM signer_lease AS lease
JOIN lane USING (lane_id)
WHERE lease.owner IS NOT NULL;        -- the row is created with its lane, before a node holds it

CREATE VIEW lane_view AS
SELECT
  lane.chain_id,
  '0x' || encode(lane.signer, 'hex') AS signer,
  lane.lane_id,
  lease.owner AS keeper,
  cursor.fencing_token AS token,
  cursor.next_nonce,
  cursor.floor_nonce,
  (SELECT count(*) FROM queued_tx AS queued WHERE queued.lane_id = lane.lane_id) AS queued,
  cursor.event_seq,
  cursor.paused,
  lease.halted,
  to_timestamp(cursor.updated_at / 1000.0) AS updated_at
FROM lane
JOIN signer_nonce_cursor AS cursor USING (lane_id)
JOIN signer_lease AS lease USING (lane_id);

CREATE VIEW tx_view AS
SELECT
  tx.tx_id,
  lane.chain_id,
  '0x' || encode(lane.signer, 'hex') AS signer,
  tx.request_id,
  tx.nonce,
  -- An amount without leading zero bytes may still begin with a zero digit; zero has no bytes.
  jsonb_build_object(
    'to', '0x' || encode(tx.to_address, 'hex'),
    'value', '0x' || coalesce(nullif(ltrim(encode(tx.value, 'hex'), '0'), ''), '0'),
    'data', '0x' || encode(tx.data, 'hex'),
    'gas', CASE WHEN tx.requested_gas IS NOT NULL THEN '0x' || coalesce(nullif(ltrim(encode(tx.requested_gas, 'hex'), '0'), ''), '0') END,
    'maxFeePerGas', CASE WHEN tx.max_fee IS NOT NULL THEN '0x' || coalesce(nullif(ltrim(encode(tx.max_fee, 'hex'), '0'), ''), '0') END,
    'maxPriorityFeePerGas', CASE WHEN tx.max_priority_fee IS NOT NULL THEN '0x' || coalesce(nullif(ltrim(encode(tx.max_priority_fee, 'hex'), '0'), ''), '0') END,
    'gasPrice', CASE WHEN tx.gas_price IS NOT NULL THEN '0x' || coalesce(nullif(ltrim(encode(tx.gas_price, 'hex'), '0'), ''), '0') END,
    'type', tx.tx_type
  ) AS payload,
  '0x' || encode(tx.tx_hash, 'hex') AS tx_hash,
  CASE tx.state
    WHEN 0 THEN 'CREATED'
    WHEN 1 THEN 'ALLOCATED'
    WHEN 2 THEN 'TRACKING'
    WHEN 3 THEN 'CONFIRMED'
    WHEN 4 THEN 'FAILED_FINAL'
    WHEN 5 THEN 'STUCK'
  END AS state,
  CASE tx.sub_state
    WHEN 0 THEN 'queued'
    WHEN 1 THEN 'waiting'
    WHEN 2 THEN 'signed'
    WHEN 3 THEN 'submitted'
    WHEN 4 THEN 'mined'
    WHEN 5 THEN 'reorged'
    WHEN 6 THEN 'rejected'
    WHEN 7 THEN 'reverted'
    WHEN 8 THEN 'underfunded'
    WHEN 9 THEN 'underpriced'
    WHEN 10 THEN 'foreignNonce'
    WHEN 11 THEN 'cancelled'
    WHEN 12 THEN 'signingFailed'
    WHEN 13 THEN 'feeCap'
    WHEN 14 THEN 'deepFork'
    WHEN 15 THEN 'foreignPending'
    WHEN 16 THEN 'refused'
  END AS sub_state,
  tx.reason,
  (
    SELECT to_timestamp(max(attempt.first_sent_at) / 1000.0)
    FROM tx_attempt AS attempt
    WHERE attempt.lane_id = tx.lane_id AND attempt.tx_id = tx.tx_id
      AND attempt.nonce = ANY (array_append(tx.past_nonces, tx.nonce))
  ) AS last_sent_at,
  -- The stored receipt: flags, tx hash, block hash, block number, gas, price.
  CASE WHEN tx.inclusion IS NOT NULL THEN jsonb_build_object(
    'transactionHash', '0x' || encode(substr(tx.inclusion, 2, 32), 'hex'),
    'blockHash', '0x' || encode(substr(tx.inclusion, 34, 32), 'hex'),
    'blockNumber', '0x' || coalesce(nullif(ltrim(encode(substr(tx.inclusion, 66, 8), 'hex'), '0'), ''), '0'),
    'gasUsed', '0x' || coalesce(nullif(ltrim(encode(substr(tx.inclusion, 74, 8), 'hex'), '0'), ''), '0'),
    'effectiveGasPrice', '0x' || coalesce(nullif(ltrim(encode(substr(tx.inclusion, 82, 16), 'hex'), '0'), ''), '0'),
    'status', get_byte(tx.inclusion, 0) & 1
  ) END AS receipt,
  CASE WHEN tx.inclusion IS NOT NULL THEN (
    WITH RECURSIVE walk (hash, parent_hash, number, depth) AS (
      SELECT header.hash, header.parent_hash, header.number, 0
      FROM chain_header AS header WHERE header.chain_id = lane.chain_id AND header.hash = tx.counted
      UNION ALL
      SELECT header.hash, header.parent_hash, header.number, walk.depth + 1
      FROM walk JOIN chain_header AS header
        ON header.chain_id = lane.chain_id AND header.hash = walk.parent_hash
      WHERE walk.hash <> substr(tx.inclusion, 34, 32) AND walk.depth < 1024
    )
    SELECT jsonb_agg(jsonb_build_object(
      'number', walk.number,
      'hash', '0x' || encode(walk.hash, 'hex'),
      'parentHash', '0x' || encode(walk.parent_hash, 'hex')
    ) ORDER BY walk.depth DESC)
    FROM walk
  ) END AS confirmations,
  to_timestamp(tx.confirmed_at / 1000.0) AS confirmed_at,
  tx.token,
  to_timestamp(tx.created_at / 1000.0) AS created_at,
  to_timestamp(tx.updated_at / 1000.0) AS updated_at
FROM managed_tx AS tx
JOIN lane USING (lane_id);
