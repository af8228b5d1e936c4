-- Lanes, who keeps them, and the nodes that may. Times are ms since 1970.

CREATE TABLE lane (
  lane_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- every key leads with this instead of an address
  chain_id bigint NOT NULL,
  signer   bytea  NOT NULL,
  UNIQUE (chain_id, signer)
);

-- The heartbeat. Renewals write this row and never wait for the gate. It is made together with its
-- lane, under token 0 and without an owner, so that acquiring is only ever an update.
CREATE TABLE signer_lease (
  lane_id     bigint PRIMARY KEY,
  token       bigint NOT NULL,
  renew_seq   bigint NOT NULL,
  expires_at  bigint NOT NULL,        -- by the database's clock; 0: given back
  updated_at  bigint NOT NULL,
  history     bigint NOT NULL,        -- the server's history under which the lane was last settled
  incarnation uuid,
  owner       text COLLATE "C",       -- NULL: nobody ever held it
  halted      text                    -- why nobody may have the lane until an operator decides
) WITH (fillfactor = 50);

-- The lane row. Every gate batch and every change of hands writes it: that is the fence.
CREATE TABLE signer_nonce_cursor (
  lane_id       bigint  PRIMARY KEY,
  next_nonce    bigint  NOT NULL,
  floor_nonce   bigint  NOT NULL,     -- no open tx has a nonce below it
  event_seq     bigint  NOT NULL,
  last_batch    bigint  NOT NULL,     -- counts the lane's commits
  fencing_token bigint  NOT NULL,
  updated_at    bigint  NOT NULL,
  grant_id      uuid    NOT NULL,
  paused        boolean NOT NULL,
  busy          boolean NOT NULL      -- floor_nonce < next_nonce: open txs hold nonces
) WITH (fillfactor = 50);
-- What a surviving node looks for. `busy` changes rarely, so the gate's updates stay inside their page.
CREATE INDEX signer_nonce_cursor_busy ON signer_nonce_cursor (lane_id) WHERE busy;

-- One row per life of a node. A replaced life stays, so that it learns of its end.
CREATE TABLE node (
  row_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  started_at  bigint  NOT NULL,
  seen_at     bigint  NOT NULL,
  beats       bigint  NOT NULL,       -- a number that stands still is a node that does
  incarnation uuid    NOT NULL UNIQUE,
  draining    boolean NOT NULL,
  replaced    boolean NOT NULL,
  name        text COLLATE "C" NOT NULL,
  advertise   text
) WITH (fillfactor = 50);
CREATE INDEX node_name ON node (name);
