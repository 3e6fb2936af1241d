"""Sessions that are open, or in use, when the process forks."""

import os
import threading
import traceback

import pytest

from distlock.backends.database.statements import Statement
from tests.database.conftest import SERVERS
from tests.database.speaking import claim, speaking
from tests.databases import ALIASES


def fork_while_in_use(database, name):
    """In a process of its own: fork while sessions are idle, lent, and waiting for an answer."""
    backend = speaking(None)("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    leases = [backend.try_acquire(claim(f"{name}:{number}")) for number in range(3)]
    slow = {
        "mariadb": "SELECT SLEEP(1), 7",
        "postgresql": "SELECT pg_sleep(1), 7",
    }.get(database, "SELECT 0, 7")
    answers = []
    asked = threading.Event()

    def ask():
        with backend.pool.session() as session:
            asked.set()
            answers.append(session.run(Statement(slow), 20).rows[0][1])

    asking = threading.Thread(target=ask)
    asking.start()
    asked.wait()
    with backend.pool.session() as lent:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert not lent.usable
                assert all(backend.verify(lease) for lease in leases)
                with backend.pool.session() as own:
                    assert own is not lent
                mine = backend.try_acquire(claim(f"{name}:child"))
                assert backend.release(mine)
                backend.close()
                lent.close()
                lent.hang_up()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert lent.run(Statement("SELECT 5"), 5).rows == [(5,)]
    asking.join()
    assert answers == [7]
    assert all(backend.release(lease) for lease in leases)
    backend.close()


def test_neither_process_disturbs_the_other(kind, make, name, child):
    make()
    child(fork_while_in_use, ALIASES[kind], name).finish()


def fork_and_leave_by_the_door(database, name):
    """A child that ends as processes do, with all destructors, says no goodbye for its parent."""
    backend = speaking(None)("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    lease = backend.try_acquire(claim(name))
    with backend.pool.session() as session:
        ident = session.ident
    pid = os.fork()
    if pid == 0:
        backend.verify(lease)
        raise SystemExit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with backend.pool.session() as session:
        assert session.ident == ident
        assert session.run(Statement("SELECT 5"), 5).rows == [(5,)]
    backend.close()


@pytest.mark.parametrize("kind", SERVERS)
def test_the_end_of_the_child_ends_no_session_of_the_parent(kind, make, name, child):
    make()
    child(fork_and_leave_by_the_door, ALIASES[kind], name).finish()
