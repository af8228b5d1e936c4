-- Txs and their attempts. An accepted tx costs two rows and six index entries. No index mentions
-- `state`; `open` and `signed` change once each.

CREATE TABLE managed_tx (
  row_id           INTEGER PRIMARY KEY,
  tx_id            BLOB    NOT NULL,  -- 16 bytes, time-ordered
  lane_id          INTEGER NOT NULL,
  nonce            INTEGER,           -- NULL before it has one, and after it lost one
  state            INTEGER NOT NULL,
  sub_state        INTEGER,
  open             INTEGER NOT NULL,  -- 1 until it is final
  signed           INTEGER NOT NULL,  -- 1 while it has an attempt
  token            INTEGER NOT NULL,
  created_at       INTEGER NOT NULL,
  updated_at       INTEGER NOT NULL,
  confirmed_at     INTEGER,
  request_id       TEXT    NOT NULL,
  fingerprint      BLOB    NOT NULL,
  tx_hash          BLOB,
  counted          BLOB,
  event_seqs       BLOB    NOT NULL,
  reason           TEXT,
  resubmits        INTEGER NOT NULL DEFAULT 0, -- how often it was sent again because it was not mined in time
  inclusion        BLOB,
  gas              INTEGER NOT NULL,
  -- The payload, amounts big-endian without leading zeros. `data` may be large: it comes last.
  to_address       BLOB,
  value            BLOB    NOT NULL,
  requested_gas    BLOB,
  max_fee          BLOB,
  max_priority_fee BLOB,
  gas_price        BLOB,
  tx_type          INTEGER,
  data             BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX managed_tx_id ON managed_tx (tx_id);
CREATE UNIQUE INDEX managed_tx_request ON managed_tx (lane_id, request_id);
CREATE UNIQUE INDEX managed_tx_nonce ON managed_tx (lane_id, nonce);
-- Open work, however many finished rows there are: txs in flight (signed = 1), txs that wait for their signature
-- (signed = 0), and which nonces are held.
CREATE INDEX managed_tx_open ON managed_tx (lane_id, signed, nonce) WHERE open = 1;
-- Txs without a nonce, for lists: those that wait for one, lost it, or ended without one.
CREATE INDEX managed_tx_without_nonce ON managed_tx (lane_id, tx_id) WHERE nonce IS NULL;

CREATE TABLE tx_attempt (
  row_id        INTEGER PRIMARY KEY,  -- rises with every attempt: oldest first
  hash          BLOB    NOT NULL,
  tx_id         BLOB    NOT NULL,
  lane_id       INTEGER NOT NULL,
  kind          INTEGER NOT NULL,
  nonce         INTEGER NOT NULL,
  gas           INTEGER NOT NULL,
  fees          BLOB    NOT NULL,
  signed_at     INTEGER NOT NULL,
  first_sent_at INTEGER,
  raw           BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX tx_attempt_hash ON tx_attempt (hash);
CREATE INDEX tx_attempt_tx ON tx_attempt (tx_id);

-- Txs that wait for a nonce.
CREATE TABLE queued_tx (
  lane_id INTEGER NOT NULL,
  tx_id   BLOB    NOT NULL,
  PRIMARY KEY (lane_id, tx_id)
) STRICT, WITHOUT ROWID;

