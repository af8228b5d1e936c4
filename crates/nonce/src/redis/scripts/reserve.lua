-- Issues and reserves the smallest nonce. KEYS: state, free, stints, lent. ARGV[1]: the history of data that is meant.
-- ARGV[2]: nothing below this. ARGV[3]: for whom. ARGV[4]: until when. Answers {1, nonce, stint, how many are left};
-- {2} when there is none; {0} when something is lost; {-1} when the server has another history by now.
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[1] then return {-1} end
local state, free, stints, lent = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known = redis.call('HMGET', state, 'free', 'stints', 'lent')
local count = redis.call('ZCARD', free)
if tonumber(known[1]) ~= count or tonumber(known[2]) ~= redis.call('HLEN', stints)
  or tonumber(known[3]) ~= redis.call('HLEN', lent) then
  return {0}
end
local nonce = redis.call('ZRANGEBYSCORE', free, ARGV[2], '+inf', 'LIMIT', 0, 1)[1]
if not nonce then return {2} end
local stint = redis.call('HGET', stints, nonce)
redis.call('ZREM', free, nonce)
redis.call('HSET', lent, nonce, ARGV[3] .. ' ' .. stint .. ' ' .. ARGV[4])
local now = redis.call('TIME')
redis.call('HSET', state, 'free', count - 1, 'lent', redis.call('HLEN', lent),
  'used', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
if tonumber(known[3]) == 0 then redis.call('EXPIRE', lent, 3600) end -- made anew; see push.lua
return {1, tonumber(nonce), tonumber(stint), redis.call('ZCOUNT', free, ARGV[2], '+inf')}
