"""Backends on real databases, and claims of made-up owners."""

from contextlib import suppress

import pytest
from django.db import connections

from distlock import LockUnavailable, locks
from distlock.backends.database import DatabaseBackend
from tests.database.speaking import speaking
from tests.databases import ALIASES


@pytest.fixture
def dialect():
    """The name of the dialect to speak in place of the engine's own, if not None."""
    return


@pytest.fixture
def make(kind, dialect, backend_settings, settings):
    """``make(**OPTIONS)``: a backend on the database under test, whose table is empty."""
    made = []

    def make(alias="default", LEASE=30, **options):
        options.setdefault("wait", "poll")
        entry = backend_settings(kind, OPTIONS=options, LEASE=LEASE)["default"]
        backend = speaking(dialect)(alias, entry)
        made.append(backend)
        return backend

    yield make
    for backend in made:
        backend.close()
    locks.close_all()
    connections[ALIASES[kind]].close()


@pytest.fixture
def backend(make) -> DatabaseBackend:
    return make()


@pytest.fixture
def database(kind, backend):
    """The alias of the database under test."""
    return ALIASES[kind]


@pytest.fixture
def sql(kind, make, request):
    """``sql(statement)``: run it beside Django, as the administrator; its rows."""
    return request.getfixturevalue(kind).execute


@pytest.fixture
def store(make, settings, backend_settings, kind):
    """The records of the backend ``default``, by a client of their own."""
    settings.DISTLOCK = backend_settings(kind)
    return make(wait="auto").store


@pytest.fixture
def session(store):
    """The id of a session that outlasts the test."""
    session = store.open_session(600)
    yield session.id
    with suppress(LockUnavailable):
        store.end_session(session.id)
