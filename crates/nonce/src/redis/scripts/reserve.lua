-- Allocates and reserves the smallest nonce. KEYS: state, free, allocations, reserved. ARGV[1]: the expected replication id.
-- ARGV[2]: the lowest nonce that may be reserved. ARGV[3]: the holder. ARGV[4]: the expiry. Answers {1, nonce, allocation
-- id, how many are left}; {2} when there is none; {0} when state is lost; {-1} when the server has another data set by now.
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[1] then return {-1} end
local state, free, allocations, reserved = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known = redis.call('HMGET', state, 'free', 'allocations', 'reserved')
local count = redis.call('ZCARD', free)
if tonumber(known[1]) ~= count or tonumber(known[2]) ~= redis.call('HLEN', allocations)
  or tonumber(known[3]) ~= redis.call('HLEN', reserved) then
  return {0}
end
local nonce = redis.call('ZRANGEBYSCORE', free, ARGV[2], '+inf', 'LIMIT', 0, 1)[1]
if not nonce then return {2} end
local allocation = redis.call('HGET', allocations, nonce)
redis.call('ZREM', free, nonce)
redis.call('HSET', reserved, nonce, ARGV[3] .. ' ' .. allocation .. ' ' .. ARGV[4])
local now = redis.call('TIME')
redis.call('HSET', state, 'free', count - 1, 'reserved', redis.call('HLEN', reserved),
  'used', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
if tonumber(known[3]) == 0 then redis.call('EXPIRE', reserved, 3600) end -- a new key; see push.lua
return {1, tonumber(nonce), tonumber(allocation), redis.call('ZCOUNT', free, ARGV[2], '+inf')}
