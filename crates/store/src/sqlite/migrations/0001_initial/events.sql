-- The event log: one row per lane and turn, expanded on read. `position` is the feed across lanes:
-- one writer appends it inside the gate, so a later position never commits before an earlier one.
-- AUTOINCREMENT: a cursor stays valid even when everything before it was retired.

CREATE TABLE lane_event (
  position  INTEGER PRIMARY KEY AUTOINCREMENT,
  lane_id   INTEGER NOT NULL,
  first_seq INTEGER NOT NULL,
  count     INTEGER NOT NULL,
  at        INTEGER NOT NULL,
  node      TEXT    NOT NULL,
  token     INTEGER NOT NULL,
  body      BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX lane_event_seq ON lane_event (lane_id, first_seq);

-- Headers, once per chain, insert-only: a tx or event names its newest counted header, and its confirmations are found by
-- following the parents.
CREATE TABLE chain_header (
  chain_id    INTEGER NOT NULL,
  hash        BLOB    NOT NULL,
  parent_hash BLOB    NOT NULL,
  number      INTEGER NOT NULL,
  timestamp   INTEGER NOT NULL,
  PRIMARY KEY (chain_id, hash)
) STRICT, WITHOUT ROWID;

-- What identifies this store. One row.
CREATE TABLE store_identity (
  one        INTEGER PRIMARY KEY CHECK (one = 1),
  store      INTEGER NOT NULL,        -- random
  restores   INTEGER NOT NULL,        -- how many restores of a backup were declared
  suspicions INTEGER NOT NULL,        -- how often a node found the store older than what it had seen
  born       TEXT    NOT NULL DEFAULT '', -- the history in which the store was created
  cursor_tag BLOB    NOT NULL         -- part of every feed cursor: a cursor of another store, or of before a declared
                                      -- restore, is refused instead of skipping or repeating events
) STRICT;
INSERT INTO store_identity (one, store, restores, suspicions, cursor_tag) VALUES (1, random(), 0, 0, randomblob(4));
UPDATE store_identity SET born = printf('%016x.0.0.0', store);


-- Every declared restore of a backup, for operators.
CREATE TABLE store_restore (
  number      INTEGER PRIMARY KEY,    -- what `store_identity.restores` became
  declared_at INTEGER NOT NULL,
  reason      TEXT    NOT NULL
) STRICT;
