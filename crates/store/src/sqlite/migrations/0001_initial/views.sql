-- Readable views, for people who query with SQL: hex addresses, state names, times. The program does not read them.

CREATE VIEW lease_view AS
SELECT
  lane.chain_id,
  '0x' || lower(hex(lane.signer)) AS signer,
  lease.owner AS keeper,
  lease.token,
  strftime('%Y-%m-%dT%H:%M:%fZ', nullif(lease.expires_at, 0) / 1000.0, 'unixepoch') AS expires_at, -- NULL: released
  lease.halted,
  strftime('%Y-%m-%dT%H:%M:%fZ', lease.updated_at / 1000.0, 'unixepoch') AS updated_at
FROM signer_lease AS lease
JOIN lane USING (lane_id)
WHERE lease.owner IS NOT NULL;        -- the row is created with its lane, before a node holds it

CREATE VIEW lane_view AS
SELECT
  lane.chain_id,
  '0x' || lower(hex(lane.signer)) AS signer,
  lane.lane_id,
  lease.owner AS keeper,
  cursor.fencing_token AS token,
  cursor.next_nonce,
  (SELECT count(*) FROM queued_tx AS queued WHERE queued.lane_id = lane.lane_id) AS queued,
  cursor.event_seq,
  cursor.paused,
  lease.halted,
  strftime('%Y-%m-%dT%H:%M:%fZ', cursor.updated_at / 1000.0, 'unixepoch') AS updated_at
FROM lane
JOIN signer_nonce_cursor AS cursor USING (lane_id)
JOIN signer_lease AS lease USING (lane_id);

CREATE VIEW tx_view AS
SELECT
  lower(
    substr(hex(tx.tx_id), 1, 8) || '-' || substr(hex(tx.tx_id), 9, 4) || '-'
    || substr(hex(tx.tx_id), 13, 4) || '-' || substr(hex(tx.tx_id), 17, 4) || '-'
    || substr(hex(tx.tx_id), 21, 12)
  ) AS tx_id,
  lane.chain_id,
  '0x' || lower(hex(lane.signer)) AS signer,
  tx.request_id,
  tx.nonce,
  -- An amount without leading zero bytes may still begin with a zero digit; zero has no bytes.
  json_object(
    'to', iif(tx.to_address IS NULL, NULL, '0x' || lower(hex(tx.to_address))),
    'value', '0x' || coalesce(nullif(ltrim(lower(hex(tx.value)), '0'), ''), '0'),
    'data', '0x' || lower(hex(tx.data)),
    'gas', '0x' || coalesce(nullif(ltrim(lower(hex(tx.requested_gas)), '0'), ''), iif(tx.requested_gas IS NULL, NULL, '0')),
    'maxFeePerGas', '0x' || coalesce(nullif(ltrim(lower(hex(tx.max_fee)), '0'), ''), iif(tx.max_fee IS NULL, NULL, '0')),
    'maxPriorityFeePerGas', '0x' || coalesce(nullif(ltrim(lower(hex(tx.max_priority_fee)), '0'), ''), iif(tx.max_priority_fee IS NULL, NULL, '0')),
    'gasPrice', '0x' || coalesce(nullif(ltrim(lower(hex(tx.gas_price)), '0'), ''), iif(tx.gas_price IS NULL, NULL, '0')),
    'type', tx.tx_type
  ) AS payload,
  iif(tx.tx_hash IS NULL, NULL, '0x' || lower(hex(tx.tx_hash))) AS tx_hash,
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
    SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(attempt.first_sent_at) / 1000.0, 'unixepoch')
    FROM tx_attempt AS attempt WHERE attempt.tx_id = tx.tx_id
  ) AS last_sent_at,
  -- The stored receipt: flags, tx hash, block hash, block number, gas, price.
  CASE WHEN tx.inclusion IS NOT NULL THEN json_object(
    'transactionHash', '0x' || lower(hex(substr(tx.inclusion, 2, 32))),
    'blockHash', '0x' || lower(hex(substr(tx.inclusion, 34, 32))),
    'blockNumber', '0x' || coalesce(nullif(ltrim(lower(hex(substr(tx.inclusion, 66, 8))), '0'), ''), '0'),
    'gasUsed', '0x' || coalesce(nullif(ltrim(lower(hex(substr(tx.inclusion, 74, 8))), '0'), ''), '0'),
    'effectiveGasPrice', '0x' || coalesce(nullif(ltrim(lower(hex(substr(tx.inclusion, 82, 16))), '0'), ''), '0'),
    'status', iif(substr(hex(tx.inclusion), 2, 1) IN ('1', '3', '5', '7'), 1, 0)
  ) END AS receipt,
  (
    WITH RECURSIVE walk (hash, parent_hash, number, depth) AS (
      SELECT hash, parent_hash, number, 0
      FROM chain_header WHERE chain_id = lane.chain_id AND hash = tx.counted
      UNION ALL
      SELECT header.hash, header.parent_hash, header.number, walk.depth + 1
      FROM walk JOIN chain_header AS header
        ON header.chain_id = lane.chain_id AND header.hash = walk.parent_hash
      WHERE walk.hash <> substr(tx.inclusion, 34, 32) AND walk.depth < 1024
    )
    SELECT json_group_array(json_object(
      'number', number,
      'hash', '0x' || lower(hex(hash)),
      'parentHash', '0x' || lower(hex(parent_hash))
    ) ORDER BY depth DESC)
    FROM walk WHERE tx.inclusion IS NOT NULL
    HAVING count(*) > 0
  ) AS confirmations,
  strftime('%Y-%m-%dT%H:%M:%fZ', tx.confirmed_at / 1000.0, 'unixepoch') AS confirmed_at,
  tx.token,
  strftime('%Y-%m-%dT%H:%M:%fZ', tx.created_at / 1000.0, 'unixepoch') AS created_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', tx.updated_at / 1000.0, 'unixepoch') AS updated_at
FROM managed_tx AS tx
JOIN lane USING (lane_id);
