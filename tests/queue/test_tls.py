"""Sessions that are encrypted: drivers tell of their end in other words."""

import pytest
from django.db import connections

from distlock import locks
from distlock.backends.database.statements import Statement
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.database.lending import ident_of, next_session
from tests.databases import ALIASES, migrate, publish

# The same here as there.
from tests.queue.test_faults import (  # noqa: F401
    test_a_server_that_is_started_again,
    test_a_session_that_an_administrator_ends,
)
from tests.servers.mariadb import SecureMariaDB


@pytest.fixture(scope="module")
def kind():
    return "mariadb"


@pytest.fixture(scope="module")
def mariadb():
    """In place of the usual one."""
    alias = ALIASES["mariadb"]
    usual = dict(connections.settings[alias])
    with SecureMariaDB() as server:
        publish(alias, server.django())
        migrate(alias)
        yield server
    publish(alias, usual)


def is_gone(engine, ident):
    """Return whether the server has no such session."""
    there = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = {}"
    return engine.number(there.format(ident)) == 0


def test_sessions_are_encrypted_and_shared(using):
    pool = locks[using].pool
    ((_, cipher),) = pool.run(Statement("SHOW STATUS LIKE 'Ssl_cipher'")).rows
    assert cipher
    assert next_session(pool) is next_session(pool)


@pytest.mark.slow
def test_a_session_that_an_administrator_ends_at_the_head(waiting, holder, engine):
    (head,) = [waiter.session.ident for waiter in locks["default"].waits.waiters]
    engine.disconnect(head)
    eventually(lambda: is_gone(engine, head) or waiting.done())
    holder.lock_held.release()
    assert waiting.result(PATIENCE)


def test_a_network_that_is_cut_for_a_moment(holder, proxied, kind, actor, engine, name):
    network = proxied(kind)
    future = actor("thread").lock(name).start("acquire")
    engine.reaches_line(1)
    network.cut()
    passed(0.5)
    assert not future.done()
    holder.lock_held.release()
    assert future.result(PATIENCE)


@pytest.mark.parametrize("options", [{"timeout": 20}], ids=["patient"])
def test_what_may_be_repeated_is_tried_on_a_fresh_session(using, engine):
    used = []

    def work(session):
        used.append(ident_of(session))
        if len(used) == 1:
            engine.disconnect(used[0])
            eventually(lambda: is_gone(engine, used[0]))
        return session.run(Statement("SELECT 7"), 5).rows

    assert locks[using].pool.work(work) == [(7,)]
    assert len(set(used)) == 2
