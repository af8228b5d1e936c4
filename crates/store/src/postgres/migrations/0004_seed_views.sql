-- The three tables in the shape that the first design documents gave them, for people who look
-- with SQL. Nothing in the program reads these.

CREATE VIEW seed_signer_lease AS
SELECT
  '0x' || encode(lane.signer, 'hex') AS signer,
  lease.owner AS owner_node,
  lease.token AS fencing_token,
  to_timestamp(lease.expires_at / 1000.0) AS expires_at,
  to_timestamp(lease.updated_at / 1000.0) AS updated_at
FROM signer_lease AS lease
JOIN lane USING (lane_id)
WHERE lease.owner IS NOT NULL;        -- the row is made with its lane, before anybody holds it

CREATE VIEW seed_signer_nonce_cursor AS
SELECT
  '0x' || encode(lane.signer, 'hex') AS signer,
  cursor.next_nonce AS next_nonce,
  cursor.fencing_token AS fencing_token,
  to_timestamp(cursor.updated_at / 1000.0) AS updated_at
FROM signer_nonce_cursor AS cursor
JOIN lane USING (lane_id);

CREATE VIEW seed_managed_tx AS
SELECT
  tx.tx_id AS tx_id,
  '0x' || encode(lane.signer, 'hex') AS signer,
  tx.request_id AS request_id,
  tx.nonce AS nonce,
  -- An amount without leading zero bytes may still begin with a zero digit; zero has no byte.
  jsonb_build_object(
    'to', '0x' || encode(tx.to_address, 'hex'),
    'value', '0x' || coalesce(nullif(ltrim(encode(tx.value, 'hex'), '0'), ''), '0'),
    'data', '0x' || encode(tx.data, 'hex'),
    'gas', CASE WHEN tx.gas_asked IS NOT NULL THEN '0x' || coalesce(nullif(ltrim(encode(tx.gas_asked, 'hex'), '0'), ''), '0') END,
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
  END AS sub_state,
  (
    SELECT to_timestamp(max(attempt.first_sent_at) / 1000.0)
    FROM tx_attempt AS attempt
    WHERE attempt.lane_id = tx.lane_id AND attempt.tx_id = tx.tx_id
      AND attempt.nonce = ANY (array_append(tx.past_nonces, tx.nonce))
  ) AS last_submit_at,
  NULL::timestamptz AS next_resubmit_at, -- one claim per lane head instead of one per tx
  -- The places are those of the receipt's stored form: flags, tx, block, height, gas, price.
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
  tx.token AS fencing_token,
  to_timestamp(tx.created_at / 1000.0) AS created_at,
  to_timestamp(tx.updated_at / 1000.0) AS updated_at
FROM managed_tx AS tx
JOIN lane USING (lane_id);
