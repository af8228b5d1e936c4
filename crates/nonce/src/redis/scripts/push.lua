-- Gives Redis nonces to hand out, each once per stint. KEYS: state, free, stints, lent. ARGV[1]: the history of data
-- that is meant. ARGV[2]: 1 if the generation begins with this. ARGV[3]: nothing is ever lent below. Then pairs of
-- nonce and stint. Answers 1; 0 when something is lost; -1 when the server has another history by now.
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[1] then return -1 end
local state, free, stints, lent = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if ARGV[2] == '1' then
  local now = redis.call('TIME')
  redis.call('HSET', state, 'free', 0, 'stints', 0, 'lent', 0, 'low', -1, 'floor', 0,
    'used', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
end
local known = redis.call('HMGET', state, 'free', 'stints', 'lent', 'low', 'floor')
if tonumber(known[1]) ~= redis.call('ZCARD', free) or tonumber(known[2]) ~= redis.call('HLEN', stints)
  or tonumber(known[3]) ~= redis.call('HLEN', lent) then
  return 0
end
-- What is far below needs no memory: it is not taken again either.
local low, floor = tonumber(known[4]), math.max(tonumber(known[5]), tonumber(ARGV[3]))
if low >= 0 and low < floor then
  local to = math.min(floor, low + 1000)
  for nonce = low, to - 1 do redis.call('HDEL', stints, string.format('%.0f', nonce)) end
  low = to
end
for i = 4, #ARGV, 2 do
  local nonce, stint = ARGV[i], ARGV[i + 1]
  local before = redis.call('HGET', stints, nonce)
  if tonumber(nonce) >= floor and (not before or tonumber(before) < tonumber(stint)) then
    -- A generation may begin anywhere: what is given back later may be smaller than its first.
    if low < 0 or tonumber(nonce) < low then low = tonumber(nonce) end
    redis.call('HSET', stints, nonce, stint)
    redis.call('ZADD', free, nonce, nonce)
  end
end
redis.call('HSET', state, 'free', redis.call('ZCARD', free), 'stints', redis.call('HLEN', stints),
  'low', string.format('%.0f', low), 'floor', string.format('%.0f', floor))
-- A generation that nobody looks after for so many seconds is over, many leases ago. One that loses a key sooner
-- than another one shows that something is lost.
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, 3600) end
return 1
