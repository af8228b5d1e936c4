-- Issues the next nonce of a lane. KEYS[1]: the counter, the next one to issue. ARGV[1]: nothing below this is
-- issued. ARGV[2]: where PostgreSQL says that the counter belongs, or nothing. ARGV[3]: how far ahead of that the
-- counter may be and still be right. Answers with nothing when the counter is lost and PostgreSQL must be asked.
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
