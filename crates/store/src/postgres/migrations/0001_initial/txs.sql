-- Txs and their attempts. An accepted tx costs two rows and five index entries, plus its share of an
-- event row. No index and no predicate mentions columns that change with the state (`state`, `signed`), so
-- that a state change is an update inside its page. Open work is found by the lane row's `floor_nonce` and
-- by `queued_tx`.

CREATE TABLE managed_tx (
  -- Written once. The payload's amounts are big-endian without leading zeros.
  lane_id          bigint   NOT NULL,
  created_at       bigint   NOT NULL,
  gas              bigint   NOT NULL,
  tx_id            uuid     NOT NULL, -- time-ordered
  tx_type          smallint,
  request_id       text COLLATE "C" NOT NULL,
  fingerprint      bytea    NOT NULL,
  to_address       bytea,
  value            bytea    NOT NULL,
  requested_gas    bytea,
  max_fee          bytea,
  max_priority_fee bytea,
  gas_price        bytea,
  data             bytea    NOT NULL,
  -- Changing. These columns stand together at the end, so that an update logs the row's tail only.
  state            smallint NOT NULL,
  sub_state        smallint,
  signed           boolean  NOT NULL, -- true once it has an attempt
  resubmits        integer,           -- how often it was sent again because it was not mined in time; NULL: never
  nonce            bigint,            -- NULL before it has one, and after it lost one
  token            bigint   NOT NULL,
  updated_at       bigint   NOT NULL,
  confirmed_at     bigint,
  past_nonces      bigint[],          -- nonces that it had before: its attempts are found there too
  tx_hash          bytea,
  inclusion        bytea,
  counted          bytea,
  event_seqs       bytea    NOT NULL,
  reason           text
) WITH (fillfactor = 35);
-- 35: a block's receipts change all rows of a page in one transaction, and the new rows are longer.
-- The gate's errors name these indexes.
CREATE UNIQUE INDEX managed_tx_id ON managed_tx (tx_id);
CREATE UNIQUE INDEX managed_tx_request ON managed_tx (lane_id, request_id);
-- Only rows with a nonce (the others differ anyway): so that no plan looks for a request of a large lane by its lane
-- alone, which seems cheap where most lanes are small.
CREATE UNIQUE INDEX managed_tx_nonce ON managed_tx (lane_id, nonce) WHERE nonce IS NOT NULL;
-- Txs without a nonce, for lists: those that wait for one, lost it, or ended without one. A tx that is accepted with its
-- nonce has no entry here, its state changes do not touch it, and a change of its nonce is in an index already.
CREATE INDEX managed_tx_without_nonce ON managed_tx (lane_id, tx_id) WHERE nonce IS NULL;

-- Attempts, found by the nonces of their tx. Only `first_sent_at` ever changes.
CREATE TABLE tx_attempt (
  row_id        bigint GENERATED ALWAYS AS IDENTITY, -- rises with every attempt of a lane: oldest first
  lane_id       bigint   NOT NULL,
  nonce         bigint   NOT NULL,
  gas           bigint   NOT NULL,
  signed_at     bigint   NOT NULL,
  tx_id         uuid     NOT NULL,
  kind          smallint NOT NULL,
  hash          bytea    NOT NULL,
  fees          bytea    NOT NULL,
  raw           bytea    NOT NULL,
  first_sent_at bigint
) WITH (fillfactor = 45);
CREATE UNIQUE INDEX tx_attempt_hash ON tx_attempt (hash);
CREATE INDEX tx_attempt_nonce ON tx_attempt (lane_id, nonce);

-- Every open tx without a nonce.
CREATE TABLE queued_tx (
  lane_id bigint NOT NULL,
  tx_id   uuid   NOT NULL,
  PRIMARY KEY (lane_id, tx_id)
);

