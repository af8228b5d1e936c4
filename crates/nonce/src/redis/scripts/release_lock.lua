-- Releases a lock if the owner still holds it. KEYS[1]: the lock. ARGV[1]: the owner.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
