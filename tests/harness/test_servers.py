"""Each server starts, fails as told, and comes back with its data."""

import re
import socket
import ssl
from datetime import UTC, datetime

import pytest
from django.db import connections

from tests.contract.watch import eventually
from tests.databases import ALIASES
from tests.servers.debian import Missing, program
from tests.servers.etcd import Etcd, EtcdEnsemble, Refused
from tests.servers.guard import is_at_rest, started_at
from tests.servers.zookeeper import Ensemble

pytestmark = pytest.mark.slow

KINDS = ("mariadb", "postgresql", "zookeeper", "etcd", "redis")
DATABASES = ("mariadb", "postgresql")


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_answers_after_a_stop_and_a_start(server, kind):
    it = server(kind)
    port, pids = it.port, it.pids()
    it.stop()
    assert not it.answers()
    assert [started_at(pid) for pid in pids] == [None] * len(pids)
    it.start()
    assert it.port == port
    assert eventually(it.answers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_server_leaves_no_process(server, kind):
    it = server(kind)
    pids = it.pids()
    it.kill()
    assert not it.running
    assert [started_at(pid) for pid in pids] == [None] * len(pids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_server_stands_still_in_all_its_processes(server, kind):
    it = server(kind)
    it.pause()
    assert all(is_at_rest(pid) for pid in it.pids())
    it.resume()
    assert eventually(it.answers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_listens_on_the_loopback_address_only(server, kind):
    port = server(kind).port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=10)


@pytest.mark.parametrize("kind", DATABASES)
def test_what_was_committed_survives_a_kill(server, kind):
    it = server(kind)
    it.execute("CREATE TABLE survivor (number int)")
    try:
        it.execute("INSERT INTO survivor VALUES (7)")
        it.kill()
        it.start()
        assert it.execute("SELECT number FROM survivor") == [(7,)]
    finally:
        it.heal()
        it.execute("DROP TABLE survivor")


@pytest.mark.parametrize("kind", DATABASES)
def test_limits_are_those_a_user_has(server, kind):
    expected = {"mariadb": "151", "postgresql": "100"}[kind]
    row = server(kind).execute(
        {
            "mariadb": "SHOW VARIABLES LIKE 'max_connections'",
            "postgresql": "SELECT 1, setting FROM pg_settings WHERE name = 'max_connections'",
        }[kind]
    )[0]
    assert row[1] == expected


@pytest.mark.parametrize("kind", sorted(ALIASES))
def test_django_sees_the_table_that_migrate_made(request, kind):
    database = request.getfixturevalue(kind)
    count = "SELECT COUNT(*) FROM database_lock"

    def both_see_as_many():
        with connections[ALIASES[kind]].cursor() as cursor:
            cursor.execute(count)
            return database.execute(count) == [cursor.fetchone()]

    eventually(both_see_as_many)  # what an earlier test has left may go in between


@pytest.mark.django_db(databases=["default", "mariadb"])
@pytest.mark.parametrize("alias", ["default", "mariadb"])
def test_a_marked_test_has_a_transaction_of_its_own(alias):
    assert connections[alias].in_atomic_block


def test_what_etcd_has_confirmed_survives_a_kill(server):
    it = server("etcd")
    it.put("survivor", "7")
    try:
        it.kill()
        it.start()
        assert [(key, one["value"]) for key, one in it.keys("surv").items()] == [("survivor", b"7")]
    finally:
        it.heal()
        assert it.delete("survivor") == 1


def test_etcd_forgets_what_is_compacted(server):
    it = server("etcd")
    before = it.revision()
    it.put("compacted")
    assert it.delete("compacted") == 1
    it.compact()
    with pytest.raises(Refused, match="has been compacted"):
        it.compact(before)


def test_the_clock_of_etcd_is_moved_while_it_runs():
    def hours_ahead():
        times = re.findall(r'"ts":"([^"]*)"', it.log.read_text())
        said = datetime.fromisoformat(times[-1].replace("Z", "+00:00"))
        return round((said - datetime.now(UTC)).total_seconds() / 3600)

    with Etcd(movable=True) as it:
        assert hours_ahead() == 0
        it.clock.move(-3 * 3600)
        it.compact()
        assert eventually(lambda: hours_ahead() == -3)


@pytest.mark.slow
def test_etcd_serves_whom_it_knows():
    with Etcd(tls=True, password="secret") as it:
        it.put("known", "yes")
        it.kill()
        it.start()
        assert list(it.keys()) == ["known"]
        it.password = "wrong"
        with pytest.raises(Refused, match="authentication failed"):
            it.keys()
        refused = (ssl.SSLError, ConnectionResetError)  # whether it is read why, or too late
        with pytest.raises(refused), socket.create_connection((it.host, it.port)) as plain:
            context = ssl.create_default_context(cafile=it.certificates.ca)
            with context.wrap_socket(plain, server_hostname=it.host) as stranger:
                stranger.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                stranger.recv(1)  # that one has no certificate is said after the handshake


@pytest.mark.parametrize("several", [Ensemble, EtcdEnsemble])
def test_an_ensemble_serves_without_its_leader(several):
    with several(3) as ensemble:
        ensemble.leader.kill()
        survivors = [member for member in ensemble.members if member.running]
        assert len(survivors) == 2
        assert ensemble.leader in survivors
        for member in survivors:
            member.await_answer()
        ensemble.heal()
        assert all(eventually(member.answers) for member in ensemble.members)


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("tests.servers.debian._PATH", "/nonexistent")
    with pytest.raises(Missing, match="apt-get install -y mariadb-server"):
        program("mariadbd")
