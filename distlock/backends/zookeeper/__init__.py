"""Locks that live in ZooKeeper.

lock             the backend
contender        one claim that contends for its lock: the protocol
grants           the leases of this process, and how their loss is learned
watches          watches on single nodes
tree             the nodes: their paths and data
reader           reports: who holds and waits; clean-up of nodes
store            the records that recipes are built on
changes          one change of a directory of records: the protocol
record_nodes     the nodes of records: their paths and data
record_reader    reads the records of a directory, all as they were at one moment
record_sessions  what records are bound to
client           the connection, the session, and when it is over
connection       kazoo's connection, which our requests go over, too
handler          how kazoo runs in a process
requests         replies to requests
options          ``OPTIONS`` in kazoo's words
"""

from distlock.backends.zookeeper.lock import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]
