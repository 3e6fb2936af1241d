"""Many leases are renewed in few statements, and one that cannot be does not hold up the others."""

import threading

import pytest
from django.db import connections, transaction

from distlock.backends.database.sql import holder
from distlock.concurrency.clock import clock
from distlock.exceptions import LockUnavailable
from distlock.models import DatabaseLock
from tests.database.counting import statements
from tests.database.speaking import claim, someone
from tests.databases import SERVERS

pytestmark = pytest.mark.once

MANY = 10_000
#: seconds for an answer: a statement that took too long would be repeated, and counted twice
PATIENT = 30


@pytest.fixture
def backend(make):
    return make(timeout=PATIENT)


def grant_many(sql, kind, name, owner, count):
    """Write the rows of ``count`` held locks, and return their leases."""
    claims = [claim(f"{name}:{number}", owner) for number in range(count)]
    now, later = {
        "sqlite": ("strftime('%Y-%m-%d %H:%M:%f', 'now')",) * 2,
        "mariadb": ("UTC_TIMESTAMP(6)", "UTC_TIMESTAMP(6) + INTERVAL 60 SECOND"),
        "postgresql": ("clock_timestamp()", "clock_timestamp() + interval '1 minute'"),
    }[kind]
    if kind == "sqlite":
        later = "strftime('%Y-%m-%d %H:%M:%f', 'now', '+60 seconds')"
    lock = "`lock`" if kind == "mariadb" else "lock"
    for start in range(0, count, 1000):
        values = ", ".join(
            f"('{one.name}', '', '{holder(one)}', '{one.nonce}', '', 0, '', 1, {now}, {later})"
            for one in claims[start : start + 1000]
        )
        sql(
            f"INSERT INTO database_lock ({lock}, description, owner, nonce, host, process, thread,"
            f" token, acquired_at, expires_at) VALUES {values}"
        )
    return [one.granted(1, clock()) for one in claims]


@pytest.mark.slow
def test_ten_thousand_leases_take_at_most_forty_statements(backend, sql, kind, name):
    leases = grant_many(sql, kind, name, someone(), MANY)
    with statements() as seen:
        answer = backend.renew(leases)
    assert answer == {lease.nonce: True for lease in leases}
    assert len(seen) <= 40


def test_the_lost_ones_among_many_are_found(backend, sql, kind, name):
    leases = grant_many(sql, kind, name, someone(), 1000)
    for lost in (leases[3], leases[999]):
        assert backend.release(lost)
    with statements() as seen:
        answer = backend.renew(leases)
    assert [lease for lease in leases if not answer[lease.nonce]] == [leases[3], leases[999]]
    assert len(answer) == 1000
    assert len(seen) <= 10


def test_leases_of_different_lengths_are_renewed_each_for_its_own(backend, name):
    owner = someone()
    leases = [
        backend.try_acquire(claim(f"{name}:{seconds}", owner, seconds))
        for seconds in (30, 300, 3000)
    ]
    assert backend.renew(leases) == {lease.nonce: True for lease in leases}
    for lease in leases:
        remaining = backend.inspect(lease.name).remaining
        assert lease.duration / 2 < remaining <= lease.duration + 0.01


@pytest.mark.parametrize("kind", SERVERS)
def test_a_locked_row_does_not_keep_the_others_from_being_renewed(
    backend, database, sql, kind, name
):
    """As while a transaction under that lock is being committed for long."""
    leases = grant_many(sql, kind, name, someone(), 500)
    with transaction.atomic(using=database):
        DatabaseLock.objects.using(database).select_for_update().get(lock=leases[7].name)
        with statements() as seen:
            answer = backend.renew(leases, clock() + 20)
        assert set(answer) == {lease.nonce for lease in leases} - {leases[7].nonce}
        assert all(answer.values())
        assert len(seen) <= 60
    assert backend.renew([leases[7]]) == {leases[7].nonce: True}


@pytest.mark.parametrize("kind", SERVERS)
def test_what_was_renewed_before_the_database_went_away_is_told(make, kind, proxied, sql, name):
    """The renewer must not take for unknown what has been answered."""
    proxy = proxied(kind)
    backend = make(timeout=PATIENT)
    leases = grant_many(sql, kind, name, someone(), 1200)

    def refuse_the_third(seen):
        if len(seen) == 3:
            proxy.refuse()

    with statements(before=refuse_the_third):
        answer = backend.renew(leases)
    assert answer == {lease.nonce: True for lease in leases[:800]}
    with pytest.raises(LockUnavailable):
        backend.renew(leases)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_renewing_sweeping_and_taking_at_once_never_fails(make, kind, name):
    """Deadlocks among such statements, if the engine sees any, are not the callers' business."""
    backend = make(timeout=PATIENT)
    names = [f"{name}:{number}" for number in range(40)]
    errors = []
    over = threading.Event()

    def keep_busy(work):
        try:
            while not over.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    def hold():
        owner = someone()
        leases = [backend.try_acquire(claim(one, owner, 0.2)) for one in reversed(names)]
        leases = [lease for lease in leases if lease]
        backend.renew(leases)
        for lease in leases[::2]:
            backend.release(lease)

    threads = [threading.Thread(target=keep_busy, args=(hold,)) for _ in range(3)]
    threads.append(threading.Thread(target=keep_busy, args=(backend.sweep,)))
    for thread in threads:
        thread.start()
    over.wait(4)
    over.set()
    for thread in threads:
        thread.join()
    connections.close_all()
    assert errors == []
