-- A function that calls itself immutable and has a stable one inside is not inlined: it was parsed and planned anew
-- in every transaction, which was a seventh of what lending a nonce cost the database.
ALTER FUNCTION nonce_ms_1(timestamptz) STABLE;
