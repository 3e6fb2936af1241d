"""Locks that live in etcd.

lock         the backend
contender    one claim that contends for its lock: the protocol, and the wait
holding      what becomes of a hold: renewed, left, broken
leases       the leases of this process
lock_keys    the keys of locks, and what they say
reader       reports: who holds and waits
store        records for recipes
client       requests with failover, leases, watches: it knows no locks
watches      watches on keys, over one stream
connections  HTTP connections to one member
errors       what etcd's errors mean
kv           etcd's words: requests and replies
options      ``OPTIONS``, checked
"""

from distlock.backends.etcd.lock import EtcdBackend

__all__ = ["EtcdBackend"]
