"""Locks that live in etcd.

lock         the backend
contender    one claim that contends for its lock: the protocol, and the wait
leases       the leases of this process, and renewing them
lock_keys    the keys of locks, what they say, and reports: who holds and waits
store        records for recipes
client       requests with failover, leases, watches: it knows no locks
watches      watches on keys, over one stream
connections  HTTP connections to one member
messages     etcd's words: requests, replies, and what its errors mean
options      ``OPTIONS``, checked
"""

from distlock.backends.etcd.lock import EtcdBackend

__all__ = ["EtcdBackend"]
