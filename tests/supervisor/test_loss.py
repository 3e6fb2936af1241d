"""When the servers of a lock are gone, its program is gone before the lock is."""

import pytest

from distlock.commands.exit_codes import LOST
from tests.contract.watch import eventually
from tests.servers.etcd import Etcd
from tests.servers.zookeeper import ZooKeeper
from tests.supervisor.conftest import Beats, gone, now

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
            assert "could not be renewed" in runs[kind].errors
        return late

    assert not all(map(too_late, range(3)))


@pytest.mark.slow
def test_a_blip_does_not_end_the_program(start, backend_settings, settings, proxied):
    settings.DISTLOCK = backend_settings("postgresql")
    proxy = proxied("postgresql")
    run = start("stock", "--lease=6", "--grace=0.1", "--", "sh", "-c", "echo here; read word")
    run.line()
    proxy.refuse()
    eventually(lambda: "renewal on 'default' failed" in run.errors)
    proxy.heal()
    run.tell()
    assert run.wait() == 0


@pytest.mark.slow
def test_it_is_so_in_zookeeper_too(start, beats, backend_settings, settings):
    with ZooKeeper() as server:
        settings.DISTLOCK = backend_settings(
            "zookeeper", LOCATION=server.hosts, OPTIONS={"session_timeout": 6}
        )
        run = start("stock", "--", *beats.command, "stubborn")
        born = beats.begin()
        server.pause()
        began = now()
        assert run.wait() == LOST
    assert gone(born)
    assert beats.last < began + 6  # the session's time-out


@pytest.mark.slow
def test_it_is_so_in_etcd_too(start, beats, backend_settings, settings):
    with Etcd() as server:
        settings.DISTLOCK = backend_settings("etcd", LOCATION=server.hosts, LEASE=6)
        run = start("stock", "--", *beats.command, "stubborn")
        born = beats.begin()
        server.pause()
        began = now()
        assert run.wait() == LOST
    assert gone(born)
    assert beats.last < began + 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zookeeper"])
def test_where_sessions_hold_locks_a_program_may_run_for_long(start, backend):
    run = start("stock", "--", "sh", "-c", "read word")
    eventually(lambda: (backend.inspect("stock").held_for or 0) > 5)  # the session's time-out is 3
    run.tell()
    assert run.wait() == 0
