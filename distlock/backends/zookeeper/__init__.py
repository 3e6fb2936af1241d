"""Locks that live in ZooKeeper."""

from distlock.backends.zookeeper.lock import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]
