"""The places where locks can live.

base            the contract of a backend, and its capabilities
local           in the memory of one process; the shortest backend
database        in a table of a Django database
zookeeper       in ZooKeeper
etcd            in etcd
store           the contract of a record store
reading         many directories read together, for lists
local_store     the records of one process
settings        an entry of the ``DISTLOCK`` setting, checked
background      threads: what tasks ask, and taking back what may be granted to nobody
open_transactions  those of the callers, how they end, and that of atomic()
"""
