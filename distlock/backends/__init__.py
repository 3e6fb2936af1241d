"""The places where locks can live.

base            the contract of a backend, and its capabilities
local           in the memory of one process; the shortest backend
database        in a table of a Django database
zookeeper       in ZooKeeper
etcd            in etcd
store           the contract of a record store
reading         which of them are read, and those of many names together
local_store     the records of one process
shared          semaphores and read/write locks: a backend over the records of another one
seats           what their records say, and whose turn it is
seat_requests   the way to a seat: the session of the process, a look, the queue, a grant
recipe_records  what recipes do with records: change them by a plan, be a member
settings        an entry of the ``DISTLOCK`` setting, checked
background      threads: what tasks ask, and taking back what may be granted to nobody
open_transactions  those of the callers, how they end, and that of atomic()
"""
