"""Every failure has a name of its own, and the name tells how to catch it."""

import pytest

import distlock
from distlock import (
    Cancelled,
    LockDeadlock,
    LockError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
    NotPermitted,
    NotSupported,
    StaleToken,
    ValueNotAgreed,
)

ALL = [
    Cancelled,
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


def test_a_lock_not_held_is_a_runtime_error():
    assert issubclass(LockNotHeld, RuntimeError)


def test_an_unavailable_backend_never_reads_as_held_by_someone_else():
    assert not issubclass(LockUnavailable, (LockTimeout, TimeoutError))


def test_a_lost_lock_never_reads_as_one_that_was_not_held():
    assert not issubclass(LockLost, LockNotHeld)


@pytest.mark.parametrize(
    "name",
    [
        "Lock",
        "locks",
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
