"""Coordination primitives that are built on locks, and on the records of a backend's store.

semaphore   Semaphore: at most so many at a time
rwlock      RWLock: many readers, or one writer
multilock   MultiLock: several locks at once, all of them or none
parts       the locks that are held together, and how they are left
"""

from __future__ import annotations

from distlock.recipes.multilock import MultiLock
from distlock.recipes.rwlock import RWLock
from distlock.recipes.semaphore import Semaphore

__all__ = ["MultiLock", "RWLock", "Semaphore"]
