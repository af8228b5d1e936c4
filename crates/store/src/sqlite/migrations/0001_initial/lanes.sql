-- Lanes, their keepers, and the nodes. Times are ms since 1970.

CREATE TABLE lane (
  lane_id  INTEGER PRIMARY KEY,       -- every key leads with this instead of an address
  chain_id INTEGER NOT NULL,
  signer   BLOB    NOT NULL,
  UNIQUE (chain_id, signer)
) STRICT;

-- The lease. It is created together with its lane, under token 0 and without an owner.
CREATE TABLE signer_lease (
  lane_id     INTEGER PRIMARY KEY,
  owner       TEXT,                   -- NULL: never held
  incarnation BLOB,
  token       INTEGER NOT NULL,
  renew_seq   INTEGER NOT NULL,
  expires_at  INTEGER NOT NULL,       -- by the store's clock; 0: released
  updated_at  INTEGER NOT NULL,
  history     TEXT    NOT NULL,       -- the store's history when the lane was last reconciled with its chain
  accepted    TEXT,                   -- the history in which an operator accepted its loss; NULL: reconciled since
  halted      TEXT                    -- why no node may keep the lane until an operator decides
) STRICT;

-- The lane row. Every gate batch and every takeover writes it: that is the fence.
CREATE TABLE signer_nonce_cursor (
  lane_id       INTEGER PRIMARY KEY,
  next_nonce    INTEGER NOT NULL,
  event_seq     INTEGER NOT NULL,
  fencing_token INTEGER NOT NULL,
  grant_id      BLOB    NOT NULL,
  batch_seq     INTEGER NOT NULL DEFAULT 0, -- counts the lane's commits
  paused        INTEGER NOT NULL,
  open_cost     BLOB    NOT NULL DEFAULT x'', -- what the open txs can cost that a keeper has seen
  head_wait     BLOB    NOT NULL DEFAULT x'', -- what the lowest unmined tx waits for, and since how long
  newest_final  BLOB    NOT NULL DEFAULT x'', -- the newest block with a final result to watch for reorgs
  updated_at    INTEGER NOT NULL
) STRICT;

-- One row per incarnation of a node. A replaced incarnation stays, so that it learns that it was replaced.
CREATE TABLE node (
  row_id      INTEGER PRIMARY KEY,
  name        TEXT    NOT NULL,
  incarnation BLOB    NOT NULL UNIQUE,
  advertise   TEXT,
  started_at  INTEGER NOT NULL,
  seen_at     INTEGER NOT NULL,
  draining    INTEGER NOT NULL,
  replaced    INTEGER NOT NULL,
  heartbeats  INTEGER NOT NULL
) STRICT;
CREATE INDEX node_name ON node (name);

