"""Arguments that look right and are not: each is refused by name, or means what it says."""

import enum
import threading

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured

from distlock import Lock, State, locks
from distlock.types.owners import current_owner


class Kind(str, enum.Enum):  # noqa: UP042 - Django projects are full of these
    STOCK = "stock"


def test_a_name_that_is_an_enumeration_is_its_value():
    assert Lock(Kind.STOCK).name == "stock"


@pytest.mark.parametrize("seconds", [10**400, 1e300, 4e9, 1e9 + 1])
def test_what_no_database_can_count_is_refused(seconds):
    for argument in ("lease", "at_least"):
        with pytest.raises(ValueError, match=f"^{argument} must be (at most|finite)"):
            Lock("stock", **{argument: seconds})


@pytest.mark.parametrize("seconds", [1e300, 1e9 + 1])
def test_so_is_a_default_lease(settings, seconds):
    settings.DISTLOCK = {
        "default": {"BACKEND": "distlock.backends.local.LocalBackend", "LEASE": seconds}
    }
    with pytest.raises(ImproperlyConfigured, match="LEASE must be at most"):
        _ = locks["default"]


def test_a_long_lease_can_be_looked_at():
    with Lock("stock", lease=1e9) as lock:
        assert lock.info().until.year > 2050


def test_a_timeout_beyond_all_floats_is_refused_by_name():
    with pytest.raises(OverflowError, match="timeout"):
        Lock("stock", timeout=10**400)


class Asynchronous:
    async def __call__(self):
        return (await Lock("stock").ainfo()).state


def synchronous():
    return Lock("stock").info().state


@pytest.mark.parametrize("function", [Asynchronous(), sync_to_async(synchronous)])
async def test_what_is_awaited_runs_under_its_lock(function):
    assert await Lock("stock")(function)() is State.HELD


@pytest.mark.parametrize("name", ["a\0b", "half \ud800", "two\nlines"])
def test_a_thread_may_have_any_name(name):
    labels = []
    thread = threading.Thread(target=lambda: labels.append(current_owner().thread), name=name)
    thread.start()
    thread.join()
    assert labels[0].isprintable()
    labels[0].encode()
