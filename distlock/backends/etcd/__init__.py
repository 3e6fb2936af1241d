"""Locks that live in etcd.

client       requests with failover, leases, watches: it knows no locks
watches      watches on keys, over one stream
connections  HTTP connections to one member
errors       what etcd's errors mean
kv           etcd's words: requests and replies
options      ``OPTIONS``, checked
"""
