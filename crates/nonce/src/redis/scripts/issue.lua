-- Allocates the next nonce of a lane. KEYS[1]: the counter, the next nonce to allocate. ARGV[1]: the lowest nonce that may
-- be allocated. ARGV[2]: the counter's value according to PostgreSQL, or empty. ARGV[3]: how far ahead of that value the
-- counter may be and still be accepted. Answers false when the counter is lost and PostgreSQL must be queried.
local counter = tonumber(redis.call('GET', KEYS[1]) or '')
local known = tonumber(ARGV[2])
if known and (not counter or counter < known or counter - known >= tonumber(ARGV[3])) then
  counter = known
end
if not counter then
  return false
end
local nonce = math.max(counter, tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%.0f', nonce + 1))
return nonce
