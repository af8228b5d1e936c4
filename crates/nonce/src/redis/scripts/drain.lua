-- Removes all unissued nonces if the generation is idle and no reservation waits to be recorded.
-- KEYS: state, free, allocations, reserved. ARGV[1]: the expected replication id. ARGV[2]: for how long no nonce must have
-- been issued, in milliseconds; 0: drain in any case. Answers {1, nonce, allocation id, ...}; {2} when it is in use; {0}
-- when state is lost; {-1} when the server has another data set by now. The allocation ids stay: drained nonces are not
-- pushed again, and push.lua reports those that were drained here and are not free in the database.
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[1] then return {-1} end
local state, free, allocations, reserved = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known = redis.call('HMGET', state, 'free', 'allocations', 'reserved', 'used')
local reservations = redis.call('HLEN', reserved)
if tonumber(known[1]) ~= redis.call('ZCARD', free) or tonumber(known[2]) ~= redis.call('HLEN', allocations)
  or tonumber(known[3]) ~= reservations then
  return {0}
end
local idle = tonumber(ARGV[2])
if idle > 0 then
  local now = redis.call('TIME')
  local since = now[1] * 1000 + math.floor(now[2] / 1000) - (tonumber(known[4]) or 0)
  -- A negative value means that the clock was set back, which must not block the drain forever.
  if reservations > 0 or math.abs(since) < idle then return {2} end
end
local answer = {1}
for i, nonce in ipairs(redis.call('ZRANGE', free, 0, -1)) do
  answer[2 * i], answer[2 * i + 1] = tonumber(nonce), tonumber(redis.call('HGET', allocations, nonce))
end
redis.call('DEL', free)
redis.call('HSET', state, 'free', 0)
return answer
