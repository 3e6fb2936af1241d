"""Owners, their claims, and backends that speak another dialect than their engine's own."""

import itertools
import os

from distlock.backends.database import DatabaseBackend
from distlock.backends.database.mariadb import MySQL
from distlock.types.lease import Claim, Owner

_serials = itertools.count(1)


class WithoutReturning(DatabaseBackend):
    """Speaks to MariaDB as to MySQL."""

    def __init__(self, alias, params):
        super().__init__(alias, params)
        self.pool.dialect_for = lambda wrapper: MySQL()


def speaking(dialect):
    """Return the backend class that speaks a dialect; None is the engine's own."""
    return {None: DatabaseBackend, "mysql": WithoutReturning}[dialect]


def someone(key=None):
    """Return a new owner."""
    key = key or f"test:{os.getpid()}:{next(_serials)}"
    return Owner(key, "host", os.getpid(), "thread")


def claim(name, owner=None, duration=30.0, **more):
    """Return a claim, of a new owner unless one is given."""
    return Claim(name, owner or someone(), duration, **more)
