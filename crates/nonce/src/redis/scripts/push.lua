-- Adds nonces that Redis may issue, each once per allocation id. KEYS: state, free, allocations, reserved. ARGV[1]: the
-- expected replication id. ARGV[2]: 1 to create the generation. ARGV[3]: nothing below is ever reserved. Then pairs of
-- nonce and allocation id. Answers {1, nonce, allocation id, ...}; {0} when state is lost; {-1} when the server has another
-- data set by now.
--
-- The pairs in the answer were pushed before and are neither free nor reserved. Each left in one of two ways: its
-- reservation was removed, so the database had recorded or refused it before and no longer has it in the block under this
-- id; or drain.lua removed it. A nonce that is still in the block under this id is the second case and was never freed.
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') ~= ARGV[1] then return {-1} end
local state, free, allocations, reserved = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if ARGV[2] == '1' then
  local now = redis.call('TIME')
  redis.call('HSET', state, 'free', 0, 'allocations', 0, 'reserved', 0, 'low', ARGV[3],
    'used', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
end
local known = redis.call('HMGET', state, 'free', 'allocations', 'reserved', 'low')
if tonumber(known[1]) ~= redis.call('ZCARD', free) or tonumber(known[2]) ~= redis.call('HLEN', allocations)
  or tonumber(known[3]) ~= redis.call('HLEN', reserved) then
  return {0}
end
-- Allocation ids far below the chain's nonce are dropped: those nonces are not pushed again. Nothing else is refused, however
-- low it is: a nonce of an older generation may be recycled into this one. A free nonce keeps its allocation id.
local low, to = tonumber(known[4]), tonumber(ARGV[3])
if low < to then
  to = math.min(to, low + 1000)
  for n = low, to - 1 do
    local nonce = string.format('%.0f', n)
    if not redis.call('ZSCORE', free, nonce) then redis.call('HDEL', allocations, nonce) end
  end
  low = to
end
local answer = {1}
for i = 4, #ARGV, 2 do
  local nonce, allocation = ARGV[i], ARGV[i + 1]
  local before = redis.call('HGET', allocations, nonce)
  if before == allocation then
    if not redis.call('ZSCORE', free, nonce) and redis.call('HEXISTS', reserved, nonce) == 0 then
      answer[#answer + 1] = tonumber(nonce)
      answer[#answer + 1] = tonumber(allocation)
    end
  elseif tonumber(nonce) >= low and (not before or tonumber(before) < tonumber(allocation)) then
    redis.call('HSET', allocations, nonce, allocation)
    redis.call('ZADD', free, nonce, nonce)
  end
end
redis.call('HSET', state, 'free', redis.call('ZCARD', free), 'allocations', redis.call('HLEN', allocations),
  'low', string.format('%.0f', low))
-- A generation without maintenance expires after so many seconds, many leases later. If one key expires before the others,
-- the scripts detect the loss.
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, 3600) end
return answer
