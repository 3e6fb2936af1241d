"""A grant outlives the server's crash, whatever the database's defaults are."""

from __future__ import annotations

import pytest
from django.db import connections

from distlock import Lock, locks
from distlock.types.lease import State
from tests.children import read_line, write_line
from tests.contract.watch import eventually
from tests.databases import ALIASES

pytestmark = pytest.mark.once

DEFAULTS = {
    "role": ("ALTER ROLE {user} SET {setting}", "ALTER ROLE {user} RESET synchronous_commit"),
    "database": (
        "ALTER DATABASE {name} SET {setting}",
        "ALTER DATABASE {name} RESET synchronous_commit",
    ),
}


@pytest.fixture
def careless(kind, server, request):
    """A server that answers before the disk has a commit, and does not hurry with the disk."""
    postgresql = server(kind)
    words = {"name": postgresql.database, "user": postgresql.user}
    change, undo = (
        text.format(**words, setting="synchronous_commit = off") for text in DEFAULTS[request.param]
    )
    postgresql.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    postgresql.execute("SELECT pg_reload_conf()")
    postgresql.execute(change)
    yield postgresql
    postgresql.heal()
    postgresql.execute(undo)
    postgresql.execute("ALTER SYSTEM RESET wal_writer_delay")
    postgresql.execute("SELECT pg_reload_conf()")


@pytest.fixture
def using(kind, wait, careless, backend_settings, settings):
    """The alias of a backend on the careless server."""
    settings.DISTLOCK = backend_settings(kind, LEASE=60, OPTIONS={"wait": wait})
    locks.close_all()
    yield "default"
    locks.close_all()
    connections[ALIASES[kind]].close()


def hold(name):
    """Take a lock, at once or after a wait, and keep it."""
    lock = Lock(name)
    assert lock.acquire(timeout=30)
    write_line(lock.token)
    read_line()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize(
    ("careless", "wait"), [("role", "auto"), ("database", "poll")], indirect=["careless"]
)
def test_a_grant_outlives_a_crash(careless, wait, using, name, child):
    """Of one who found the lock free, and of one who had to wait for it."""
    free, waited = f"{name}:free", f"{name}:waited for"
    with Lock(waited) as held:
        holders = {free: child(hold, free), waited: child(hold, waited)}
        tokens = {free: int(holders[free].line())}
        if wait == "auto":
            eventually(lambda: held.info().waiters)
    tokens[waited] = int(holders[waited].line())
    careless.kill()
    careless.start()
    after = {name: locks[using].inspect(name) for name in tokens}
    assert {name: info.token for name, info in after.items()} == tokens
    assert [info.state for info in after.values()] == [State.HELD, State.HELD]
