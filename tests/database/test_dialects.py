"""Every way of speaking to an engine says the same."""

import time

import pytest

from distlock.backends.database.connect import dialect_for
from distlock.backends.database.mariadb import MariaDB
from distlock.backends.database.postgresql import PostgreSQL
from distlock.backends.database.sql import TABLE
from distlock.backends.database.sqlite import SQLite
from distlock.backends.database.statements import COLUMNS
from distlock.models import DatabaseLock
from distlock.types.lease import State
from distlock.types.owners import is_reserved
from tests.contract.watch import eventually
from tests.database.lending import next_session
from tests.database.speaking import claim, someone

OWN = {"sqlite": SQLite, "mariadb": MariaDB, "postgresql": PostgreSQL}
WAYS = [
    ("sqlite", None),
    ("mariadb", None),
    ("mariadb", "mysql"),
    ("postgresql", None),
]

pytestmark = pytest.mark.parametrize(("kind", "dialect"), WAYS)


def test_each_engine_has_its_own(backend, kind, dialect):
    if dialect is None:
        assert type(dialect_for(next_session(backend.pool).wrapper)) is OWN[kind]


def test_the_table_is_the_models(backend):
    assert DatabaseLock._meta.db_table == TABLE
    assert [field.column for field in DatabaseLock._meta.fields] == ["id", *COLUMNS]


def test_a_new_lock_is_granted_with_a_token_from_the_servers_clock(backend, name, sql, kind):
    lease = backend.try_acquire(claim(name))
    microseconds = {
        "sqlite": "SELECT strftime('%s', 'now') * 1000000",
        "mariadb": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        "postgresql": "SELECT extract(epoch FROM clock_timestamp()) * 1000000",
    }
    assert abs(lease.token - int(sql(microseconds[kind])[0][0])) < 30_000_000


def test_a_held_lock_is_not_granted_and_left_as_it_is(backend, name, sql):
    backend.try_acquire(claim(name, description="first"))
    before = sql(f"SELECT * FROM {TABLE}")
    assert backend.try_acquire(claim(name, description="second")) is None
    assert sql(f"SELECT * FROM {TABLE}") == before


def test_every_grant_has_a_greater_token(backend, name):
    tokens = []
    for _ in range(3):
        lease = backend.try_acquire(claim(name))
        tokens.append(lease.token)
        assert backend.release(lease)
    assert tokens == sorted(set(tokens))


def test_a_row_that_went_back_in_time_hands_out_no_token_twice(backend, name, sql):
    """As on a standby that had missed grants when it was promoted, or after a restore."""
    tokens = []
    for _ in range(4):
        lease = backend.try_acquire(claim(name))
        tokens.append(lease.token)
        assert backend.release(lease)

    def go_back():
        time.sleep(0.01)  # SQLite's clock counts milliseconds
        sql(f"UPDATE {TABLE} SET token = {tokens[0]}")

    go_back()
    lease = backend.try_acquire(claim(name, someone("@first")))
    assert lease.token > tokens[-1]
    go_back()
    assert backend.try_acquire(claim(name, lease.owner)).token > lease.token


def test_a_lease_that_ended_can_be_taken_over(backend, name):
    old = backend.try_acquire(claim(name, duration=0.1))
    new = eventually(lambda: backend.try_acquire(claim(name)))
    assert new.token > old.token
    assert backend.release(old) is False
    assert backend.renew([old, new]) == {old.nonce: False, new.nonce: True}
    assert (backend.verify(old), backend.verify(new)) == (False, True)


def test_the_same_owner_goes_on_under_a_new_token(backend, name):
    first = someone("@first")
    old = backend.try_acquire(claim(name, first))
    new = backend.try_acquire(claim(name, first))
    assert new.token > old.token
    assert (backend.verify(old), backend.verify(new)) == (False, True)


def test_the_same_claim_twice_is_one_hold(backend, name):
    wanted = claim(name)
    first, second = backend.try_acquire(wanted), backend.try_acquire(wanted)
    assert second.token > first.token
    assert backend.verify(second)
    backend.cancel(wanted)
    assert backend.inspect(name).state is State.FREE


@pytest.mark.parametrize("leave", ["release", "keep"])
def test_a_claim_that_the_server_carried_out_once_more_can_be_left(backend, name, leave):
    """As when a request that was given up arrives after the one that was answered."""
    lease = backend.try_acquire(claim(name))
    assert backend.try_acquire(lease.claim).token > lease.token
    assert backend.verify(lease)
    assert backend.renew([lease]) == {lease.nonce: True}
    if leave == "keep":
        assert backend.reserve_for(lease, 30)
        assert is_reserved(backend.inspect(name).owner)
    else:
        assert backend.release(lease)
        assert backend.inspect(name).state is State.FREE


def test_a_lease_does_not_end_at_the_server_before_it_ends_here(backend, name):
    """The deadline here counts from before the request; the server rounds its clock down."""
    for number in range(30):
        lease = backend.try_acquire(claim(f"{name}:{number}", duration=0.25))
        remaining = backend.inspect(lease.name).remaining
        assert lease.remaining <= remaining


def test_what_is_held_is_listed_by_name(backend, name):
    for number in (2, 1, 10):
        backend.try_acquire(claim(f"{name}:{number}", description="ü"))
    freed = backend.try_acquire(claim(f"{name}:3"))
    backend.release(freed)
    listed = list(backend.list(name))
    assert [info.name for info in listed] == [f"{name}:1", f"{name}:10", f"{name}:2"]
    assert {info.description for info in listed} == {"ü"}
    assert list(backend.list(f"{name}:4")) == []


def test_times_are_aware_and_by_the_servers_clock(backend, name):
    lease = backend.try_acquire(claim(name))
    info = backend.inspect(name)
    assert (info.state, info.token) == (State.HELD, lease.token)
    assert info.owner == lease.owner
    assert info.since.utcoffset().total_seconds() == 0
    # The server may have stood still between its two looks at the clock.
    assert (info.until - info.since).total_seconds() == pytest.approx(30, abs=5)
    assert info.held_for + info.remaining == pytest.approx(30, abs=5)


def test_breaking_compares_the_token(backend, name):
    lease = backend.try_acquire(claim(name, description="why"))
    assert backend.force_release(name, lease.token - 1) is None
    broken = backend.force_release(name, lease.token)
    assert (broken.token, broken.nonce, broken.owner) == (lease.token, lease.nonce, lease.owner)
    assert broken.claim.description == "why"
    assert backend.force_release(name, lease.token) is None
    assert backend.inspect(name).state is State.FREE


def test_a_sweep_frees_what_ended_and_removes_what_has_long_been_free(make, name, sql):
    backend = make(keep=0.05)
    ended = backend.try_acquire(claim(f"{name}:ended", duration=0.05))
    held = backend.try_acquire(claim(f"{name}:held"))
    eventually(lambda: backend.inspect(ended.name).state is State.EXPIRED)
    # SQLite's own clock counts in milliseconds: it may be over a moment later for a sweep
    swept = eventually(lambda: (done := backend.sweep()).expired and done)
    assert swept.expired == 1
    # What is removed may also be an empty directory of records.
    eventually(lambda: backend.sweep() and sql(f"SELECT count(*) FROM {TABLE}")[0][0] == 1)
    assert backend.verify(held)
    assert backend.try_acquire(claim(ended.name)).token > ended.token


def test_a_lease_may_be_longer_than_any_calendar(backend, name):
    lease = backend.try_acquire(claim(name, duration=1e300))
    assert backend.verify(lease)
    assert backend.renew([lease]) == {lease.nonce: True}


def test_two_dialects_exclude_each_other(make, kind, dialect, name, database):
    """As when a project is moved from one version of an engine to another."""
    from tests.database.speaking import speaking

    if dialect is None:
        return
    backend = make()
    own = speaking(None)("own", {"OPTIONS": {"database": database, "wait": "poll"}})
    try:
        lease = backend.try_acquire(claim(name))
        assert own.try_acquire(claim(name)) is None
        assert own.verify(lease)
        assert own.release(lease)
        lease = own.try_acquire(claim(name))
        assert backend.try_acquire(claim(name)) is None
        assert backend.renew([lease]) == {lease.nonce: True}
        assert backend.release(lease)
    finally:
        own.close()


def test_a_lock_that_is_kept_is_nobodys_until_its_time_is_over(backend, name):
    lease = backend.try_acquire(claim(name, someone()))
    assert backend.reserve_for(lease, 20)
    assert backend.try_acquire(claim(name, lease.owner)) is None
    assert backend.renew([lease]) == {lease.nonce: False}
    assert not backend.release(lease)
    backend.cancel(lease.claim)
    kept = backend.inspect(name)
    assert (kept.state, kept.token, str(kept.owner)) == (State.HELD, lease.token, str(lease.owner))
    assert kept.remaining <= 20.01
    assert backend.reserve_for(lease, 0.1)
    eventually(lambda: backend.inspect(name).state is State.FREE)
    assert backend.try_acquire(claim(name, lease.owner)).token > lease.token


def test_a_lease_that_is_gone_is_not_kept(backend, name):
    lease = backend.try_acquire(claim(name))
    backend.force_release(name, lease.token)
    assert backend.reserve_for(lease, 30) is False
    successor = backend.try_acquire(claim(name))
    assert backend.reserve_for(lease, 30) is False
    assert backend.verify(successor)
