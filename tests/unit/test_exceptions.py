"""Every failure has a name of its own, and the name tells how to catch it."""

import copy
import pickle

import pytest

import distlock
from distlock import (
    Cancelled,
    Holder,
    LockBusy,
    LockDeadlock,
    LockError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
    NotPermitted,
    NotSupported,
    Owner,
    StaleToken,
    ValueNotAgreed,
)

ALL = [
    Cancelled,
    LockBusy,
    LockDeadlock,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
    NotPermitted,
    NotSupported,
    StaleToken,
    ValueNotAgreed,
]


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_a_lock_error(error):
    assert issubclass(error, LockError)


def test_a_lock_timeout_is_a_timeout_error():
    assert issubclass(LockTimeout, TimeoutError)


def test_who_has_waited_in_vain_has_found_it_busy():
    assert issubclass(LockTimeout, LockBusy)
    assert not issubclass(LockBusy, TimeoutError)


@pytest.mark.parametrize("kind", [LockBusy, LockTimeout])
def test_a_busy_error_takes_the_holder_through_pickle(kind):
    """Celery sends errors from one process to another."""
    error = kind("lock 'a' is held")
    error.holder = Holder(Owner("key", "web-1", 812, "main"), 7, description="report")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), again.holder) == (str(error), error.holder)
        assert again.holder.owner.host == "web-1"


def test_a_lock_not_held_is_a_runtime_error():
    assert issubclass(LockNotHeld, RuntimeError)


def test_an_unavailable_backend_never_reads_as_held_by_someone_else():
    assert not issubclass(LockUnavailable, (LockBusy, TimeoutError))


def test_a_lost_lock_never_reads_as_one_that_was_not_held():
    assert not issubclass(LockLost, LockNotHeld)


@pytest.mark.parametrize(
    "name",
    [
        "Lock",
        "locks",
        "Holder",
        "LockBusy",
        "LockError",
        "LockTimeout",
        "LockNotHeld",
        "LockLost",
        "LockUnavailable",
        "LockDeadlock",
        "NotPermitted",
        "NotSupported",
        "ValueNotAgreed",
    ],
)
def test_the_package_offers_the_name(name):
    assert name in distlock.__all__
    assert hasattr(distlock, name)
