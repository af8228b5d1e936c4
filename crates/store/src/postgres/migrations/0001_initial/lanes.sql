-- Lanes, their keepers, and the nodes. Times are ms since 1970.

CREATE TABLE lane (
  lane_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- every key leads with this instead of an address
  chain_id bigint NOT NULL,
  signer   bytea  NOT NULL,
  UNIQUE (chain_id, signer)
);

-- The lease. Renewals write this row and never wait for the gate. It is created together with its lane, under token 0
-- and without an owner, so that acquiring is always an update.
CREATE TABLE signer_lease (
  lane_id     bigint PRIMARY KEY,
  token       bigint NOT NULL,
  renew_seq   bigint NOT NULL,
  expires_at  bigint NOT NULL,        -- by the database's clock; 0: released
  updated_at  bigint NOT NULL,
  incarnation uuid,
  owner       text COLLATE "C",       -- NULL: never held
  history     text COLLATE "C" NOT NULL, -- the store's history when the lane was last reconciled with its chain
  accepted    text COLLATE "C",       -- the history in which an operator accepted its loss; NULL: reconciled since
  halted      text                    -- why no node may keep the lane until an operator decides
) WITH (fillfactor = 50);

-- The lane row. Every gate batch and every takeover writes it: that is the fence.
CREATE TABLE signer_nonce_cursor (
  lane_id       bigint  PRIMARY KEY,
  next_nonce    bigint  NOT NULL,
  floor_nonce   bigint  NOT NULL,     -- no open tx has a nonce below it
  event_seq     bigint  NOT NULL,
  batch_seq     bigint  NOT NULL,     -- counts the lane's commits
  fencing_token bigint  NOT NULL,
  updated_at    bigint  NOT NULL,
  grant_id      uuid    NOT NULL,
  paused        boolean NOT NULL,
  busy          boolean NOT NULL,     -- floor_nonce < next_nonce: open txs hold nonces
  open_cost     bytea   NOT NULL DEFAULT '', -- what the open txs can cost that a keeper has seen
  head_wait     bytea   NOT NULL DEFAULT '', -- what the lowest unmined tx waits for, and since how long
  newest_final  bytea   NOT NULL DEFAULT '', -- the newest block with a final result to watch for reorgs
  has_finals    boolean NOT NULL DEFAULT false -- newest_final is not empty
) WITH (fillfactor = 50);
-- Lanes with work, for nodes that take over. `busy` changes rarely, so the gate's updates stay inside their page.
CREATE INDEX signer_nonce_cursor_busy ON signer_nonce_cursor (lane_id) WHERE busy;
-- Lanes whose final results must be watched, for the time in which no node keeps them. It changes as rarely.
CREATE INDEX signer_nonce_cursor_finals ON signer_nonce_cursor (lane_id) WHERE has_finals;

-- One row per incarnation of a node. A replaced incarnation stays, so that it learns that it was replaced.
CREATE TABLE node (
  row_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  started_at  bigint  NOT NULL,
  seen_at     bigint  NOT NULL,
  heartbeats  bigint  NOT NULL,       -- a number that does not rise is a node that has stopped
  incarnation uuid    NOT NULL UNIQUE,
  draining    boolean NOT NULL,
  replaced    boolean NOT NULL,
  name        text COLLATE "C" NOT NULL,
  advertise   text
) WITH (fillfactor = 50);
CREATE INDEX node_name ON node (name);

