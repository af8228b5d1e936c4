-- Takes out everything that is not handed out, if nobody has borrowed for a while and no loan waits to be written
-- down. KEYS: state, free, stints, lent. ARGV[1]: the history of data that is meant. ARGV[2]: for how long nobody must
-- have borrowed, in milliseconds; 0: whoever has. Answers {1, nonce, stint, nonce, stint...}; {2} when it is in use; {0}
-- when something is lost; {-1} when the server has another history by now. The stints stay: nothing of this is pushed
-- again, and push.lua tells what was taken out here and is not free in the database.
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[1] then return {-1} end
local state, free, stints, lent = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known = redis.call('HMGET', state, 'free', 'stints', 'lent', 'used')
local loans = redis.call('HLEN', lent)
if tonumber(known[1]) ~= redis.call('ZCARD', free) or tonumber(known[2]) ~= redis.call('HLEN', stints)
  or tonumber(known[3]) ~= loans then
  return {0}
end
local idle = tonumber(ARGV[2])
if idle > 0 then
  local now = redis.call('TIME')
  local since = now[1] * 1000 + math.floor(now[2] / 1000) - (tonumber(known[4]) or 0)
  -- Below zero its clock was set back: that is no reason to wait for ever.
  if loans > 0 or math.abs(since) < idle then return {2} end
end
local answer = {1}
for i, nonce in ipairs(redis.call('ZRANGE', free, 0, -1)) do
  answer[2 * i], answer[2 * i + 1] = tonumber(nonce), tonumber(redis.call('HGET', stints, nonce))
end
redis.call('DEL', free)
redis.call('HSET', state, 'free', 0)
return answer
