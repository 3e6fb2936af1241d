"""Backends that are about to be mistreated, and people who use them."""

import pytest
from django.db import connections

from distlock import locks
from tests.contract.actor_process import actors
from tests.contract.watch import cleaned_up, eventually
from tests.databases import ALIASES, DATABASES


@pytest.fixture
def answer_limit():
    """Seconds that a database gets for an answer."""
    return 10


@pytest.fixture
def renew():
    """Seconds between two renewals of a lease, None for a third of its length."""
    return None


#: Lets leases that outlast a pause be renewed often all the same.
EAGER = pytest.mark.parametrize("renew", [0.3], ids=["eager"])


@pytest.fixture
def using(kind, answer_limit, renew, backend_settings, settings):
    """The alias of the backend under test."""
    options = {"timeout": answer_limit} if kind in DATABASES else {}
    entry = {} if renew is None else {"RENEW": renew}
    settings.DISTLOCK = backend_settings(kind, OPTIONS=options, **entry)
    yield "default"
    # The server is back by now: what could not be left is left, and disturbs no other test.
    eventually(cleaned_up)
    locks.close_all()


@pytest.fixture
def database(kind, using):
    """The alias of the database that the locks are in."""
    yield ALIASES[kind]
    connections[ALIASES[kind]].close()


@pytest.fixture
def actor(using, loop):
    """``actor("thread")``: an actor; see actors()."""
    with actors(loop) as make:
        yield make


@pytest.fixture
def other(actor):
    """Someone in another process, who wants the lock."""
    return actor("process")


def renewed(lock, meanwhile=lambda: None):
    """Wait until the lease of a held lock has been renewed; call ``meanwhile`` over and over."""
    until = lock.info().until

    def has_moved():
        meanwhile()
        return lock.info().until > until

    eventually(has_moved)
