"""What the tests count as statements does not depend on what other threads do meanwhile."""

import sqlite3
import threading

import pytest

from distlock.backends.database.connection import Connection
from distlock.conf import locks
from tests.contract.watch import eventually
from tests.database.counting import statements

pytestmark = pytest.mark.once


@pytest.fixture
def store(sqlite, backend_settings, settings):
    settings.DISTLOCK = backend_settings("sqlite")
    yield locks["default"].store
    locks.close_all()


def test_a_session_that_has_to_be_opened_is_not_counted(store):
    store.read("group:a")
    with statements() as seen:
        store.read("group:a")
        locks.close_all()  # as if another thread used the session that was there
        locks["default"].store.read("group:a")
    assert len(seen) == 2


def test_a_wait_for_others_who_write_is_not_counted(store, sqlite, monkeypatch):
    attempts, ask = [], Connection.ask
    monkeypatch.setattr(
        Connection, "ask", lambda *arguments: (attempts.append(arguments), ask(*arguments))[1]
    )

    def read():
        with statements() as seen:
            store.read("group:a")
        counted.append(len(seen))

    counted, reader = [], threading.Thread(target=read)
    store.read("group:a")
    writer = sqlite3.connect(sqlite.name, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    del attempts[:]
    reader.start()
    eventually(lambda: len(attempts) > 2)
    writer.close()
    reader.join()
    assert counted == [1]
