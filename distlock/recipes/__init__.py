"""Coordination primitives that are built on locks.

multilock   MultiLock: several locks at once, all of them or none
parts       the locks that are held together, and how they are left
"""

from __future__ import annotations

from distlock.recipes.multilock import MultiLock

__all__ = ["MultiLock"]
