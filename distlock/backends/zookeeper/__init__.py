"""Locks that live in ZooKeeper.

lock             the backend
contender        one claim that contends for its lock: the protocol
tree             the nodes: paths, data; reports: who holds and waits; clean-up
store            the records that recipes are built on, and their sessions
changes          one change of a directory of records: the protocol
records          the nodes of records: paths, data, reading all as they were at one moment
client           the connection, the session, and when it is over; the leases of this process, and
                 how their loss is learned
connection       kazoo's connection, which our requests go over, too
requests         requests, the replies to them, and watches on single nodes
options          ``OPTIONS`` in kazoo's words, and how kazoo runs in a process
"""

from distlock.backends.zookeeper.lock import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]
