-- Removes recorded reservations of many lanes at once. KEYS: pairs of state and reserved, one per generation. ARGV: triples
-- of the number of the pair, from 1, the nonce, and the entry as it was reserved: the nonce may have another holder by now.
-- Only entries that are removed here lower the count, so that a loss is still detected.
local gone, all = {}, 0
for i = 1, #ARGV, 3 do
  local pair, nonce, entry = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
  local reserved = KEYS[2 * pair]
  if redis.call('HGET', reserved, nonce) == entry then gone[pair] = (gone[pair] or 0) + redis.call('HDEL', reserved, nonce) end
end
for pair, count in pairs(gone) do
  local state = KEYS[2 * pair - 1]
  all = all + count
  if count > 0 and redis.call('EXISTS', state) == 1 then redis.call('HINCRBY', state, 'reserved', -count) end
end
return all
