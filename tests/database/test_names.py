"""Names are compared exactly, whatever the engine's collations do."""

import itertools
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from distlock.types.lease import State
from distlock.types.owners import current_owner
from tests.database.speaking import claim, someone

DISTINCT = [
    "lock",
    "Lock",
    "LOCK",
    "löck",
    "lo\u0308ck",  # the same letters, composed differently
    "strasse",
    "straße",
    "I",
    "ı",
    "İ",
    "ｌｏｃｋ",
    "lock%",
    "loc_",
    "lo\u200bck",
    "🔒",
    "🔐",
    "lock'",
    'lock"',
    "lock`",
    "lock\\",
    "lock\\'",
    "lock--",
    "lock; DROP TABLE database_lock",
    "%s",
    "%(lock)s",
    "100%",
    "<b>lock</b>",
    "../lock",
    "{lock}",
    "$1",
    ":lock",
    "?",
]


@pytest.mark.parametrize(
    ("kind", "dialect"),
    [("sqlite", None), ("mariadb", None), ("postgresql", None), ("mariadb", "mysql")],
)
def test_names_that_differ_are_different_locks(backend):
    owner = someone()
    leases = [backend.try_acquire(claim(name, description=name)) for name in DISTINCT]
    assert all(leases)
    assert [backend.inspect(name).description for name in DISTINCT] == DISTINCT
    assert [info.name for info in backend.list()] == sorted(DISTINCT)
    assert all(backend.renew(leases).values())
    assert backend.try_acquire(claim(DISTINCT[0], owner)) is None
    assert all(backend.release(lease) for lease in leases)


@pytest.mark.parametrize("letter", ["x", "ü", "€", "🔒"])
def test_the_longest_name_in_any_script(backend, letter):
    longest = letter * 564
    other = letter * 563 + "y"
    lease = backend.try_acquire(claim(longest, description=letter * 1024))
    assert backend.try_acquire(claim(longest)) is None
    assert backend.try_acquire(claim(other))
    assert backend.inspect(longest).description == letter * 1024
    assert backend.release(lease)


def owner_in_a_thread(label, owner=None):
    with ThreadPoolExecutor(1, initializer=lambda: rename(label)) as threads:
        return threads.submit(current_owner, owner).result()


def rename(label):
    threading.current_thread().name = label


def test_a_long_name_of_a_thread_is_cut(backend, name):
    lease = backend.try_acquire(claim(name, owner_in_a_thread("t" * 300, "o" * 200)))
    owner = backend.inspect(name).owner
    assert owner.key == "@" + "o" * 200
    assert (owner.host, owner.pid) == (socket.gethostname(), os.getpid())
    assert owner.thread == "t" * 255
    assert backend.release(lease)


def test_a_thread_may_have_a_name_that_cannot_be_stored(backend, name):
    lease = backend.try_acquire(claim(name, owner_in_a_thread("a\nb\ud800\x00 🔒'%s\\")))
    assert backend.inspect(name).owner.thread == "a?b?? 🔒'%s\\"
    assert backend.release(lease)


PREFIXES = [
    "",
    "l",
    "lo",
    "lock",
    "LOCK",
    "lock%",
    "loc_",
    "%",
    "_",
    "lock\\",
    "🔒",
    "ö",
    "zzz",
    "lock ",
]


def test_a_prefix_is_no_pattern(backend):
    for name in DISTINCT:
        backend.try_acquire(claim(name))
    for prefix in PREFIXES:
        expected = sorted(name for name in DISTINCT if name.startswith(prefix))
        assert [info.name for info in backend.list(prefix)] == expected, prefix


def test_a_prefix_may_end_with_a_space(backend):
    for name in ("a", "a b", "ab", "a c"):
        backend.try_acquire(claim(name))
    assert [info.name for info in backend.list("a ")] == ["a b", "a c"]


def test_names_are_listed_in_pages_without_gap_or_repetition(backend, monkeypatch):
    from distlock.backends.database import queries

    monkeypatch.setattr(queries, "_BATCH", 3)
    names = ["".join(letters) for letters in itertools.product("aAbä", repeat=2)]
    for name in names:
        backend.try_acquire(claim(name))
    assert [info.name for info in backend.list()] == sorted(names)
    assert [info.name for info in backend.list("a")] == sorted(n for n in names if n[0] == "a")


def test_what_is_free_is_not_listed(backend, name):
    lease = backend.try_acquire(claim(name))
    backend.release(lease)
    assert backend.inspect(name).state is State.FREE
    assert list(backend.list(name)) == []


@pytest.mark.slow
@pytest.mark.once
def test_a_hundred_thousand_locks_are_listed(backend, sql, kind):
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
    now, later, name, lock = {
        "sqlite": (
            "strftime('%Y-%m-%d %H:%M:%f', 'now')",
            "strftime('%Y-%m-%d %H:%M:%f', 'now', '+60 seconds')",
            "printf('lock:%06d', i)",
            "lock",
        ),
        "mariadb": (
            "UTC_TIMESTAMP(6)",
            "UTC_TIMESTAMP(6) + INTERVAL 60 SECOND",
            "CONCAT('lock:', LPAD(i, 6, '0'))",
            "`lock`",
        ),
        "postgresql": (
            "clock_timestamp()",
            "clock_timestamp() + interval '60 seconds'",
            "'lock:' || lpad(i::text, 6, '0')",
            "lock",
        ),
    }[kind]
    insert = (
        f"INSERT INTO database_lock ({lock}, description, owner, nonce, host, process, thread,"
        " token, acquired_at, expires_at)"
    )
    select = f"SELECT {name}, '', 'someone', 'nonce', '', 0, '', i, {now}, {later} FROM n"
    if kind == "mariadb":
        sql(
            f"{insert} SELECT {name}, '', 'someone', 'nonce', '', 0, '', i, {now}, {later}"
            " FROM (SELECT seq AS i FROM seq_1_to_100000) n"
        )
    else:
        sql(f"{numbers} {insert} {select}")
    listed = [info.name for info in backend.list("lock:")]
    assert len(listed) == 100_000
    assert listed == sorted(listed)
    assert len(list(backend.list("lock:0999"))) == 100
    first = next(iter(backend.list()))
    assert first.name == "lock:000001"
    sql("DELETE FROM database_lock")
