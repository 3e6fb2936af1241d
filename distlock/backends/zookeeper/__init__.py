"""Locks that live in ZooKeeper."""

from distlock.backends.zookeeper.backend import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]
