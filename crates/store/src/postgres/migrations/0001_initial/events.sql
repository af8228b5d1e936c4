-- The event log: one row per lane and turn, expanded on read. The gate orders events per lane only, since a counter that
-- all lanes share would make them wait for each other.

CREATE TABLE lane_event (
  lane_id   bigint  NOT NULL,
  first_seq bigint  NOT NULL,
  at        bigint  NOT NULL,
  token     bigint  NOT NULL,
  count     integer NOT NULL,
  node      text    NOT NULL,
  body      bytea   NOT NULL,
  PRIMARY KEY (lane_id, first_seq)
);

-- The feed across lanes, appended after the gate: positions are assigned under the lock of one row, so a later position
-- never becomes visible before an earlier one.
CREATE TABLE event_feed (
  position  bigint PRIMARY KEY,
  lane_id   bigint NOT NULL,
  first_seq bigint NOT NULL,          -- the events first_seq..=last_seq of the lane, in one or more rows
  last_seq  bigint NOT NULL
);

-- The feed position of an event, for the events of one tx; and no event is in the feed twice.
CREATE UNIQUE INDEX event_feed_lane ON event_feed (lane_id, first_seq);

-- How far each lane is in the feed.
CREATE TABLE lane_feed (
  lane_id bigint PRIMARY KEY,
  fed_seq bigint NOT NULL
) WITH (fillfactor = 50);

-- The last assigned position, and the history in which it was assigned (empty: none yet). One row.
CREATE TABLE feed_head (
  one      boolean PRIMARY KEY CHECK (one),
  position bigint NOT NULL,
  history  text COLLATE "C" NOT NULL
) WITH (fillfactor = 50);
INSERT INTO feed_head (one, position, history) VALUES (true, 0, '');

-- Headers, once per chain, insert-only: a tx or event names its newest counted header, and its confirmations are found by
-- following the parents.
CREATE TABLE chain_header (
  chain_id    bigint NOT NULL,
  number      bigint NOT NULL,
  timestamp   bigint NOT NULL,
  hash        bytea  NOT NULL,
  parent_hash bytea  NOT NULL,
  PRIMARY KEY (chain_id, hash)
);

-- What identifies this store. One row.
CREATE TABLE store_identity (
  one        boolean PRIMARY KEY CHECK (one),
  database   bigint NOT NULL,         -- random: distinguishes the databases of one server
  restores   bigint NOT NULL,         -- how many restores of a backup were declared
  suspicions bigint NOT NULL,         -- how often a node found the store older than what it had seen
  born       text COLLATE "C" NOT NULL DEFAULT '', -- the history in which the store was created
  cursor_tag bytea  NOT NULL          -- part of every feed cursor: a cursor of another store, or of before a declared
                                      -- restore, is refused instead of skipping or repeating events
);
-- The first bytes of a version 4 uuid are random.
INSERT INTO store_identity (one, database, restores, suspicions, cursor_tag)
VALUES (true, ('x' || encode(substr(uuid_send(gen_random_uuid()), 1, 4) || substr(uuid_send(gen_random_uuid()), 1, 4), 'hex'))::bit(64)::bigint,
  0, 0, substr(uuid_send(gen_random_uuid()), 1, 4));


-- Every declared restore of a backup, for operators.
CREATE TABLE store_restore (
  number      bigint PRIMARY KEY,     -- what `store_identity.restores` became
  declared_at timestamptz NOT NULL,
  reason      text NOT NULL
);
