"""A MultiLock of two locks, on two backends."""

import pytest

from distlock import Lock, locks
from distlock.recipes import MultiLock
from tests.contract.actor_process import actors
from tests.kinds import KINDS, ONE_LEASE, SESSION
from tests.recipes.multilock.users import Used


@pytest.fixture(params=KINDS)
def kind(request):
    """The kind of the backend ``default``; the backend ``near`` lives in this process."""
    return request.param


@pytest.fixture(params=["thread", "task"])
def role(request):
    """What uses the lock."""
    return request.param


@pytest.fixture
def mixed(kind, backend_settings, configured):
    """Two backends, of which the first is of the kind under test."""
    options = {"OPTIONS": {"session_timeout": SESSION}} if kind in ONE_LEASE else {}
    configured(backend_settings(kind, **options) | backend_settings("local", alias="near"))


@pytest.fixture
def two_local(backend_settings, settings):
    """Two backends in this process."""
    settings.DISTLOCK = backend_settings("local") | backend_settings("local", alias="near")
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def actor(loop):
    """``actor("thread")``: an actor; see actors()."""
    with actors(loop) as make:
        yield make


@pytest.fixture
def third(actor):
    """Somebody else."""
    return actor("thread")


@pytest.fixture
def first(name):
    """The lock that is taken first."""
    return Lock(f"{name}:z")


@pytest.fixture
def second(name):
    """The lock that is taken second: on another backend, by a name that sorts before the first."""
    return Lock(f"{name}:a", using="near")


@pytest.fixture
def both(actor, role, first, second):
    """Both locks, given in the wrong order."""
    return Used(actor(role), MultiLock(second, first))
