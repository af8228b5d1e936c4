-- Forgets loans that are written down, of many lanes at once. KEYS: pairs of state and lent, one for each generation.
-- ARGV: triples of the number of the pair, from 1, the nonce, and the loan as it was reserved: the nonce may be lent to
-- the next one by now. Only what is removed here lowers the count, so that a loss still shows.
local gone, all = {}, 0
for i = 1, #ARGV, 3 do
  local pair, nonce, loan = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
  local lent = KEYS[2 * pair]
  if redis.call('HGET', lent, nonce) == loan then gone[pair] = (gone[pair] or 0) + redis.call('HDEL', lent, nonce) end
end
for pair, count in pairs(gone) do
  local state = KEYS[2 * pair - 1]
  all = all + count
  if count > 0 and redis.call('EXISTS', state) == 1 then redis.call('HINCRBY', state, 'lent', -count) end
end
return all
