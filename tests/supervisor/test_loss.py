"""When the servers of a lock are gone, its program is gone before the lock is."""

import re

import pytest

from distlock import locks
from distlock.commands.exit_codes import LOST
from tests.contract.watch import eventually
from tests.servers.etcd import Etcd
from tests.servers.zookeeper import ZooKeeper
from tests.supervisor.conftest import NOT_RENEWED, Beats, gone, now

EXPIRES = {
    "mariadb": "SELECT UNIX_TIMESTAMP(CONVERT_TZ(expires_at, '+00:00', @@session.time_zone))"
    " FROM database_lock",
    "postgresql": "SELECT extract(epoch FROM expires_at) FROM database_lock",
}


@pytest.mark.parametrize(
    ("how", "lease"),
    [
        ("stop", 4),
        pytest.param("stop", 10, marks=pytest.mark.slow),
        pytest.param("pause", 10, marks=pytest.mark.slow),
    ],
)
def test_child_and_grandchildren_are_gone_before_the_deadline(
    start, backend_settings, settings, tmp_path, server, how, lease
):
    """The servers are asked afterwards until when, by their own clocks, nobody could take the lock.

    The longer one is such that the watchdog has the most that it ever has between KILL and its end.
    A machine that stands still just then may have the programs killed too late, but not each time.
    """
    servers = {kind: server(kind) for kind in EXPIRES}

    def too_late(attempt):
        """Return which programs have run for too long."""
        runs, beats, born = {}, {}, {}
        for kind in servers:
            settings.DISTLOCK = backend_settings(kind)
            beats[kind] = Beats(tmp_path / f"{kind}-{attempt}")
            program = [*beats[kind].command, "stubborn"]
            runs[kind] = start("stock", f"--lease={lease}", "--grace=1", "--", *program)
        for kind, there in servers.items():
            born[kind] = beats[kind].begin()
            getattr(there, how)()
        late = []
        for kind, there in servers.items():
            assert runs[kind].wait() == LOST
            assert gone(born[kind])
            there.heal()
            ((until,),) = there.execute(EXPIRES[kind])
            if beats[kind].last >= float(until):
                late.append(kind)
            assert re.search(NOT_RENEWED, runs[kind].errors)
        return late

    assert not all(map(too_late, range(3)))


@pytest.mark.slow
def test_a_blip_does_not_end_the_program(start, backend_settings, settings, proxied):
    settings.DISTLOCK = backend_settings("postgresql")
    proxy = proxied("postgresql")
    run = start("stock", "--lease=12", "--grace=0.1", "--", "sh", "-c", "echo here; read word")
    run.line()
    proxy.refuse()
    eventually(lambda: "renewal on 'default' failed" in run.errors)
    proxy.heal()
    run.tell()
    assert run.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "new_server", "brief"),
    [
        ("zookeeper", ZooKeeper, {"OPTIONS": {"session_timeout": 6}}),
        ("etcd", Etcd, {"LEASE": 6}),
    ],
)
def test_it_is_so_in_other_servers_too(
    start, backend_settings, settings, tmp_path, kind, new_server, brief
):
    def too_late(attempt):
        """Return whether the programs have run for too long; see above."""
        beats = Beats(tmp_path / f"beats-{attempt}")
        with new_server() as server:
            settings.DISTLOCK = backend_settings(kind, LOCATION=server.hosts, **brief)
            run = start("stock", "--", *beats.command, "stubborn")
            born = beats.begin()
            server.pause()
            began = now()
            assert run.wait() == LOST
        assert gone(born)
        return beats.last >= began + 6

    assert not all(map(too_late, range(3)))


@pytest.mark.slow
def test_where_sessions_hold_locks_a_program_may_run_for_long(start, backend_settings, settings):
    settings.DISTLOCK = backend_settings("zookeeper", OPTIONS={"session_timeout": 10})
    run = start("stock", "--grace=0.1", "--", "sh", "-c", "read word")
    eventually(lambda: (locks["default"].inspect("stock").held_for or 0) > 12)
    run.tell()
    assert run.wait() == 0
    locks.close_all()
