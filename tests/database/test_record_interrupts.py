"""Interrupts in a transaction of SQLite: the other threads of the process go on."""

import contextlib
import itertools

import pytest

from distlock import locks
from distlock.backends.database import sqlite, sqlite_session
from distlock.backends.store import Put
from tests.core.interrupting import interrupted
from tests.recipes.wrapping import in_thread

CODE = (sqlite.__file__, sqlite_session.__file__, contextlib.__file__)


@pytest.fixture
def store(backend_settings, settings):
    settings.DISTLOCK = backend_settings("sqlite")
    yield locks["default"].store
    locks.close_all()


def test_others_write_while_what_was_interrupted_is_kept(store, name):
    """As a shell keeps the last error, with all that its traceback refers to."""

    def put():
        return store.apply(name, [Put("key", {})], ())

    assert put()
    for moment in itertools.count(1):
        interrupt = interrupted(put, moment, code=CODE)
        assert isinstance(in_thread(put)(), int)
        if interrupt is None:
            break
    assert moment > 20, "the interrupts did not reach the code"
