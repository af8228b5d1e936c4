-- Gives Redis nonces to hand out, each once per stint. KEYS: state, free, stints, lent. ARGV[1]: the history of data
-- that is meant. ARGV[2]: 1 if the generation begins with this. ARGV[3]: nothing is ever lent below. Then pairs of
-- nonce and stint. Answers {1, nonce, stint, nonce, stint...}; {0} when something is lost; {-1} when the server has
-- another history by now.
--
-- The pairs in the answer are those that were given before and are neither free nor lent. Each left in one of two ways:
-- its loan was forgotten, so the database had written it down or refused it before, and keeps it under this stint no
-- more; or drain.lua took it out. What it still keeps under this stint is the second, and nobody came to free it.
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[1] then return {-1} end
local state, free, stints, lent = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if ARGV[2] == '1' then
  local now = redis.call('TIME')
  redis.call('HSET', state, 'free', 0, 'stints', 0, 'lent', 0, 'low', ARGV[3],
    'used', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
end
local known = redis.call('HMGET', state, 'free', 'stints', 'lent', 'low')
if tonumber(known[1]) ~= redis.call('ZCARD', free) or tonumber(known[2]) ~= redis.call('HLEN', stints)
  or tonumber(known[3]) ~= redis.call('HLEN', lent) then
  return {0}
end
-- What is far below needs no memory: it is not taken again either. Nothing else is refused, however low it is: what an
-- older generation lent may come back to this one. What is free has its stint in any case.
local low, to = tonumber(known[4]), tonumber(ARGV[3])
if low < to then
  to = math.min(to, low + 1000)
  for n = low, to - 1 do
    local nonce = string.format('%.0f', n)
    if not redis.call('ZSCORE', free, nonce) then redis.call('HDEL', stints, nonce) end
  end
  low = to
end
local answer = {1}
for i = 4, #ARGV, 2 do
  local nonce, stint = ARGV[i], ARGV[i + 1]
  local before = redis.call('HGET', stints, nonce)
  if before == stint then
    if not redis.call('ZSCORE', free, nonce) and redis.call('HEXISTS', lent, nonce) == 0 then
      answer[#answer + 1] = tonumber(nonce)
      answer[#answer + 1] = tonumber(stint)
    end
  elseif tonumber(nonce) >= low and (not before or tonumber(before) < tonumber(stint)) then
    redis.call('HSET', stints, nonce, stint)
    redis.call('ZADD', free, nonce, nonce)
  end
end
redis.call('HSET', state, 'free', redis.call('ZCARD', free), 'stints', redis.call('HLEN', stints),
  'low', string.format('%.0f', low))
-- A generation that nobody looks after for so many seconds is over, many leases ago. One that loses a key sooner
-- than another one shows that something is lost.
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, 3600) end
return answer
