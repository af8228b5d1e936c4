-- The reservation ledger: one row per lane, and one per nonce that was ever reserved or allocated to a block.

-- A lane whose nonces are reserved: bound to one scheme for ever.
CREATE TABLE nonce_lane (
  lane_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  chain_id bigint NOT NULL,
  signer bytea NOT NULL CHECK (octet_length(signer) = 20),
  scheme smallint NOT NULL CHECK (scheme BETWEEN 1 AND 5),
  -- No nonce from here on was ever reserved; there may be reservations above it, see nonce_top.
  next_nonce bigint NOT NULL CHECK (next_nonce >= 0),
  -- Rises with every new generation (scheme 3).
  generation bigint NOT NULL DEFAULT 0,
  -- The chain was once seen to have consumed every nonce below, or to have it in a mempool.
  chain_nonce bigint NOT NULL CHECK (chain_nonce >= 0),
  -- No nonce below is missing. Nonces missing from here to gaps_to were missing at gaps_at already, or were reserved
  -- since.
  gaps_from bigint NOT NULL,
  gaps_to bigint NOT NULL,
  gaps_at timestamptz NOT NULL,
  UNIQUE (chain_id, signer)
);

-- Every nonce that was ever reserved, and its present or last holder. (No foreign key: it would lock the lane's row for
-- every new one.)
CREATE TABLE nonce_reservation (
  lane_id integer NOT NULL,
  state smallint NOT NULL CHECK (state IN (0, 1, 2)), -- reserved, used, recyclable
  nonce bigint NOT NULL CHECK (nonce >= 0),
  expires_at timestamptz NOT NULL,
  -- The chain block that consumed it, while reorgs are watched for.
  closed_number bigint,
  closed_time bigint,
  holder uuid NOT NULL,
  tx_hash bytea,
  closed_hash bytea,
  closed_parent bytea,
  reason text,
  -- The block holder that may hand a recyclable nonce out; NULL: free for all.
  block_holder uuid,
  -- Distinguishes one allocation of a nonce to a block from the next: a hand-out under an older one is refused.
  allocation_id bigint NOT NULL DEFAULT 0,
  -- Two different transactions were named for it: either may be mined, so it is never recyclable.
  was_replaced boolean NOT NULL DEFAULT false,
  -- Used so deep in the chain that it is not watched any more. A used nonce that is not final was consumed a short
  -- while ago, or is used by its holder's mark alone.
  is_final boolean NOT NULL DEFAULT false,
  PRIMARY KEY (lane_id, nonce),
  CHECK ((closed_number IS NULL) = (closed_hash IS NULL)),
  CHECK (closed_number IS NULL OR state = 1),
  CHECK (state <> 2 OR NOT was_replaced),
  CHECK (NOT is_final OR (state = 1 AND closed_number IS NULL))
);

-- The smallest recyclable nonce.
CREATE INDEX nonce_recyclable ON nonce_reservation (lane_id, nonce) WHERE state = 2;
-- The same, outside blocks.
CREATE INDEX nonce_outside_blocks ON nonce_reservation (lane_id, nonce) WHERE state = 2 AND block_holder IS NULL;
CREATE INDEX nonce_in_block ON nonce_reservation (block_holder, nonce) WHERE state = 2 AND block_holder IS NOT NULL;
-- Reservations that the chain may be queried for, and those that a lane has open.
CREATE INDEX nonce_open ON nonce_reservation (lane_id, nonce) WHERE state <> 1 OR NOT is_final;

-- Block holders hand nonces of their allocation block out without calling the database first. In scheme 5 a block
-- holder is one process; in scheme 3 it is one generation of one Redis server, for all processes.
CREATE TABLE nonce_block_holder (
  token uuid PRIMARY KEY,
  lane_id integer NOT NULL,
  -- Nothing is handed out after this.
  leased_until timestamptz NOT NULL,
  -- The longest reservation that it may hand out.
  reservation_max_ms bigint NOT NULL CHECK (reservation_max_ms >= 0),
  -- The Redis server and its run; empty in scheme 5.
  server text NOT NULL,
  created_at timestamptz NOT NULL
);
CREATE INDEX nonce_block_holder_lane ON nonce_block_holder (lane_id);
CREATE SEQUENCE nonce_allocation;

