-- For people who query with psql: hex addresses, state names, times. The program does not read it.
CREATE VIEW reservation_view AS
SELECT
  lane.chain_id,
  '0x' || encode(lane.signer, 'hex') AS signer,
  r.nonce,
  CASE r.state WHEN 0 THEN 'RESERVED' WHEN 1 THEN 'USED' WHEN 2 THEN 'RECYCLABLE' END AS state,
  CASE lane.scheme
    WHEN 1 THEN 'row-lock'
    WHEN 2 THEN 'redis-issue'
    WHEN 3 THEN 'redis-reserve'
    WHEN 4 THEN 'lane'
    WHEN 5 THEN 'segment'
  END AS scheme,
  r.holder,
  '0x' || encode(r.tx_hash, 'hex') AS tx_hash,
  r.expires_at,
  r.closed_number AS block_number,    -- while reorgs are watched for
  '0x' || encode(r.closed_hash, 'hex') AS block_hash,
  r.is_final,
  r.was_replaced,
  r.block_holder,                     -- the holder of the allocation block that it is in
  r.reason
FROM nonce_reservation AS r
JOIN nonce_lane AS lane USING (lane_id);
