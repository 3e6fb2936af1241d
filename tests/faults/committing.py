"""What the tests of ``release="commit"`` share."""

import warnings
from contextlib import contextmanager

from django.contrib.auth.models import Group

from distlock import Lock, LockError, ReleasedInTransaction, locks
from distlock.runtime.manager import manager
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.databases import ALIASES


def keeping(name, using, **more):
    return Lock(name, using=using, release="commit", **more)


def held_here(name):
    return [hold for hold in manager().all() if hold.lease.name.startswith(name)]


@contextmanager
def all_released(name):
    """Fail if something warns of a release inside a transaction, or stays held afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReleasedInTransaction)
        yield
    eventually(lambda: not held_here(name))


def free(other, name):
    """Whether someone else can take the lock now; a database that others may not ask is a no."""
    try:
        if locks["default"].database != ALIASES["sqlite"]:
            return other.tries(name)
        return other.lock(name).acquire(timeout=0.3)  # it would wait for the transaction
    except LockError:
        return False


def comes_free(other, name):
    return other.lock(name).acquire(timeout=PATIENCE)


def number(database, name):
    group = Group.objects.using(database).get(name__startswith=f"{name}:")
    return group, int(group.name.rpartition(":")[2])
