-- What the fence and the heartbeat count, in the form that the cluster's store has them.

ALTER TABLE signer_nonce_cursor DROP COLUMN last_batch;
ALTER TABLE signer_nonce_cursor ADD COLUMN last_batch INTEGER NOT NULL DEFAULT 0; -- +1 in every gate

ALTER TABLE node ADD COLUMN beats INTEGER NOT NULL DEFAULT 0;

ALTER TABLE signer_lease ADD COLUMN halted TEXT; -- why nobody may have the lane until an operator decides
