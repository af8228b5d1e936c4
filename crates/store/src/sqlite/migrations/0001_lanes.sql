-- Lanes, who keeps them, and the nodes that may.

CREATE TABLE lane (
  lane_id  INTEGER PRIMARY KEY,       -- every key leads with this instead of an address
  chain_id INTEGER NOT NULL,
  signer   BLOB    NOT NULL,
  UNIQUE (chain_id, signer)
) STRICT;

-- The heartbeat. Renewals write this row and never wait for the gate.
CREATE TABLE signer_lease (
  lane_id     INTEGER PRIMARY KEY,
  owner       TEXT    NOT NULL,
  incarnation BLOB    NOT NULL,
  token       INTEGER NOT NULL,
  renew_seq   INTEGER NOT NULL,
  expires_at  INTEGER NOT NULL,       -- ms since 1970 by the store's clock; 0: given back
  updated_at  INTEGER NOT NULL
) STRICT;

-- The lane row. Every gate batch and every change of hands writes it: that is the fence.
CREATE TABLE signer_nonce_cursor (
  lane_id       INTEGER PRIMARY KEY,
  next_nonce    INTEGER NOT NULL,
  event_seq     INTEGER NOT NULL,
  fencing_token INTEGER NOT NULL,
  grant_id      BLOB    NOT NULL,
  last_batch    BLOB,
  paused        INTEGER NOT NULL,
  updated_at    INTEGER NOT NULL
) STRICT;

-- One row per life of a node. A replaced life stays, so that it learns of its end.
CREATE TABLE node (
  row_id      INTEGER PRIMARY KEY,
  name        TEXT    NOT NULL,
  incarnation BLOB    NOT NULL UNIQUE,
  advertise   TEXT,
  started_at  INTEGER NOT NULL,
  seen_at     INTEGER NOT NULL,
  draining    INTEGER NOT NULL,
  replaced    INTEGER NOT NULL
) STRICT;
CREATE INDEX node_name ON node (name);
