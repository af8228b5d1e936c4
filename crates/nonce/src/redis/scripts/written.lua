-- Forgets loans that are written down. KEYS: state, lent. ARGV: pairs of nonce and loan, each as it was reserved: the
-- nonce may be lent to the next one by now. Only what is removed here lowers the count, so that a loss still shows.
local gone = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[2], ARGV[i]) == ARGV[i + 1] then gone = gone + redis.call('HDEL', KEYS[2], ARGV[i]) end
end
if gone > 0 and redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HINCRBY', KEYS[1], 'lent', -gone) end
return gone
