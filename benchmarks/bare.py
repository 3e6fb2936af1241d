"""The least that a lock needs of its server, sent by the bare client.

INSERT and DELETE of a row is the least of any lock in a table; "own" are the very statements or
requests of distlock, with nothing around them.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import LIMIT, die_with_parent, processes
from benchmarks.lock_peers import NAME, Peer

Cycle = Callable[[], object]
_TABLE = "benchmark_bare"
#: The lock whose statements are noted.
OWN = "benchmark:own"
_KEY = {"PostgreSQL": "bigserial", "MariaDB": "bigint AUTO_INCREMENT", "SQLite": "integer"}


def connect(place: Any) -> Any:
    """Return an autocommit connection of the bare driver."""
    known = place.django
    if place.kind == "SQLite":
        import sqlite3

        return sqlite3.connect(known["NAME"], isolation_level=None)
    where = {"host": known["HOST"], "user": known["USER"], "password": known["PASSWORD"]}
    if place.kind == "PostgreSQL":
        import psycopg

        return psycopg.connect(**where, port=known["PORT"], dbname=known["NAME"], autocommit=True)
    import MySQLdb

    return MySQLdb.connect(
        **where, port=int(known["PORT"]), database=known["NAME"], autocommit=True
    )


@contextmanager
def insert_and_delete(place: Any) -> Iterator[Cycle]:
    connection = connect(place)
    cursor = connection.cursor()
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {_TABLE} (id {_KEY[place.kind]} PRIMARY KEY,"
        " name varchar(564) NOT NULL UNIQUE, description varchar(1024) NOT NULL DEFAULT '')"
    )
    mark = "?" if place.kind == "SQLite" else "%s"
    insert = f"INSERT INTO {_TABLE} (name) VALUES ({mark})"
    delete = f"DELETE FROM {_TABLE} WHERE name = {mark}"

    def cycle() -> None:
        cursor.execute(insert, (NAME,))
        cursor.execute(delete, (NAME,))

    yield cycle
    connection.close()


@contextmanager
def noting(place: Any) -> Iterator[list[Any]]:
    """Set distlock up; yields what it asks its database from then on."""
    place.setup()
    from distlock.backends.database import connection, sqlite_session

    seen: list[Any] = []
    kind = sqlite_session.SQLiteSession if place.kind == "SQLite" else connection.Connection
    ask = kind.ask

    def noting(self: Any, statement: Any) -> Any:
        seen.append(statement)
        return ask(self, statement)

    kind.ask = noting
    try:
        yield seen
    finally:
        kind.ask = ask


@contextmanager
def own_statements(place: Any) -> Iterator[Cycle]:
    """Note what a cycle of distlock asks its database, and ask that again and again."""
    with noting(place) as seen:
        from distlock import Lock, locks

        for _ in range(5):
            seen.clear()
            with Lock(OWN):
                pass
    locks.close_all()
    raw = connect(place)
    asked = {"PostgreSQL": _libpq, "MariaDB": _mariadb, "SQLite": _sqlite}[place.kind]
    calls = [asked(raw, f"own{number}", one) for number, one in enumerate(seen)]

    def cycle() -> None:
        for call in calls:
            if call() != 1:
                raise RuntimeError("a statement of the lock changed no row")

    yield cycle
    raw.close()


def note_three(seen: list[Any], lock: Any, begin: str) -> None:
    """Hold a lock until that took three statements and no other, the first of them with a text."""
    ends = time.monotonic() + LIMIT / 2
    while len(seen) != 3 or begin not in seen[0].sql:
        if time.monotonic() > ends:
            raise RuntimeError("there was no turn of three statements")
        seen.clear()
        with lock:
            pass


def turn_of(place: Any) -> list[tuple[Any, ...]]:
    """Note what distlock asks in a turn among others: it waits, takes, and frees."""
    over = processes.Event()
    other = processes.Process(target=_turn_after_turn, args=(place, over))
    other.start()
    try:
        with noting(place) as seen:
            from distlock import Lock, locks

            note_three(seen, Lock(OWN), "distlock waits queued")
        locks.close_all()
    finally:
        over.set()  # it leaves no lock behind
        other.join()
    return [tuple(statement) for statement in seen]


def _turn_after_turn(place: Any, over: Any) -> None:
    die_with_parent()
    place.setup()
    from distlock import Lock, locks

    while not over.is_set():
        with Lock(OWN):
            pass
    locks.close_all()


def _asking() -> Callable[[Any], Any]:
    """Return what sends a statement, as distlock does but with nothing around it."""
    from django.db import connections

    from distlock.backends.database.drivers import raw_connection_for

    wrapper = connections["default"]
    wrapper.ensure_connection()
    raw = raw_connection_for(wrapper, None)

    def ask(statement: Any) -> Any:
        results = raw.execute(statement, None)
        return next((result for result in reversed(results) if result.rows), results[0])

    return ask


@contextmanager
def own_turns(place: Any, turn: list[tuple[Any, ...]]) -> Iterator[Peer]:
    """Turns in the engine's lock, of the statements that turn_of() has noted."""
    place.setup()
    from distlock.backends.database.statements import Statement

    ask = _asking()
    wait, take, free = (Statement(*one) for one in turn)

    @contextmanager
    def hold() -> Iterator[None]:
        ask(wait)
        if not ask(take).affected:
            raise RuntimeError("the row was not taken")
        yield
        ask(free)

    yield Peer(hold, lambda: False)


@contextmanager
def own_seats(place: Any, seats: int) -> Iterator[Peer]:
    """Seats of a semaphore that no other process wants: what distlock asks to look, take, leave."""
    with noting(place) as seen:
        from distlock import locks
        from distlock.recipes import Semaphore

        note_three(seen, Semaphore(f"{OWN}:{os.getpid()}", seats), "SELECT")
    ask = _asking()
    look, take, leave = seen

    @contextmanager
    def hold() -> Iterator[None]:
        (_, revision, *_), *_ = ask(look).rows
        if not ask(take._replace(params={**take.params, "revision1": revision})).rows[0][1]:
            raise RuntimeError("the seat was not taken")
        yield
        ask(leave)

    yield Peer(hold, lambda: False)
    locks.close_all()  # and the session that the seats belong to


def _named(statement: Any, mark: Callable[[int], str]) -> tuple[str, list[Any]]:
    """Return a statement with the driver's own marks, and its parameters in their order."""
    order: list[str] = []

    def place_of(match: re.Match[str]) -> str:
        order.append(match[1])
        return mark(len(order))

    text = re.sub(r"%\((\w+)\)s", place_of, statement.sql)
    return text.replace("%%", "%"), [statement.params[name] for name in order]


def _libpq(raw: Any, name: str, statement: Any) -> Callable[[], int]:
    text, values = _named(statement, "${}".format)
    sent = [str(value).encode() for value in values]
    prepared = raw.pgconn.prepare(name.encode(), text.encode())
    if prepared.error_message:
        raise RuntimeError(prepared.error_message.decode())

    def call() -> int:
        result = raw.pgconn.exec_prepared(name.encode(), sent)
        return int(result.ntuples or result.command_tuples or 0)

    return call


def _mariadb(raw: Any, name: str, statement: Any) -> Callable[[], int]:
    text, values = _named(statement, lambda _: "?")
    raw.query(b"PREPARE " + name.encode() + b" FROM " + raw.literal(text))
    literals = b", ".join(raw.literal(value) for value in values)
    sent = b"EXECUTE " + name.encode() + b" USING " + literals

    def call() -> int:
        raw.query(sent)
        result = raw.store_result()
        return int(result.num_rows() if result else raw.affected_rows())

    return call


def _sqlite(raw: Any, name: str, statement: Any) -> Callable[[], int]:
    text, values = _named(statement, lambda _: "?")
    asks = text.startswith("SELECT")  # who else has the lock: nobody

    def call() -> int:
        cursor = raw.execute(text, values)
        return 1 if asks else len(cursor.fetchall()) or cursor.rowcount

    return call


@contextmanager
def queued_updates(place: Any) -> Iterator[Peer]:
    """A lock by hand that waits: the engine's own lock, and two changes of a row under it."""
    connection = connect(place)
    cursor = connection.cursor()
    kept = "name varchar(200) PRIMARY KEY, owner varchar(100) NOT NULL"
    cursor.execute(f"CREATE TABLE IF NOT EXISTS benchmark_queued ({kept})")
    ignoring = {"PostgreSQL": ("", " ON CONFLICT DO NOTHING"), "MariaDB": (" IGNORE", "")}
    before, after = ignoring[place.kind]
    cursor.execute(f"INSERT{before} INTO benchmark_queued VALUES ('{NAME}', ''){after}")
    lock, unlock = {
        "PostgreSQL": ("SELECT pg_advisory_lock(4711)", "SELECT pg_advisory_unlock(4711)"),
        "MariaDB": ("SELECT GET_LOCK('bare', 600)", "SELECT RELEASE_LOCK('bare')"),
    }[place.kind]
    change = f"UPDATE benchmark_queued SET owner = %s WHERE name = '{NAME}'"

    @contextmanager
    def hold() -> Iterator[None]:
        cursor.execute(lock)
        cursor.fetchall()
        cursor.execute(change, ("me",))
        yield
        cursor.execute(change, ("",))
        cursor.execute(unlock)
        cursor.fetchall()

    yield Peer(hold, lambda: False)
    connection.close()


@contextmanager
def own_requests_of_zookeeper(place: Any) -> Iterator[Cycle]:
    """A create and a look at the children, sent back to back, then a delete, over kazoo."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=place.server.hosts)
    client.start()
    path = "/benchmark-bare"
    client.ensure_path(path)

    def cycle() -> None:
        made = client.create_async(f"{path}/lock-", b"", ephemeral=True, sequence=True)
        client.get_children_async(path).get()
        client.delete_async(made.get())

    yield cycle
    client.stop()
    client.close()


@contextmanager
def own_requests_of_etcd(place: Any) -> Iterator[Cycle]:
    """A transaction that puts a key if there is none, and one that deletes it."""
    host, _, port = place.server.hosts.partition(",")[0].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port))

    def ask(path: str, request: dict[str, Any]) -> dict[str, Any]:
        connection.request("POST", f"/v3/{path}", json.dumps(request))
        reply = connection.getresponse()
        answer: dict[str, Any] = json.loads(reply.read())
        if reply.status != 200:
            raise RuntimeError(str(answer))
        return answer

    # Whose it is, since when and for how long, for people to read.
    value = _encoded(json.dumps({"owner": "x" * 32, "since": "x" * 32, "thread": "x" * 150}))
    held, waited = (_range(f"/bare/{NAME}/{what}/") for what in "hw")
    key = f"/bare/{NAME}/h/{uuid.uuid4().hex}"
    lease = ask("lease/grant", {"TTL": 3600, "ID": 0})["ID"]
    nobody = {"target": "CREATE", "result": "EQUAL", "create_revision": 0}

    def cycle() -> None:
        put = {"key": _encoded(key), "value": value, "lease": lease}
        taking = {
            "compare": [{**held, **nobody}, {**waited, **nobody}],
            "success": [{"request_put": put}],
            "failure": [{"request_range": {**held, "limit": 1}}],
        }
        taken = ask("kv/txn", taking)
        delete = {**_range(key), "prev_kv": True}
        (left,) = ask("kv/txn", {"success": [{"request_delete_range": delete}]})["responses"]
        if not taken["succeeded"] or left["response_delete_range"]["deleted"] != "1":
            raise RuntimeError("somebody else has the lock")

    yield cycle
    ask("lease/revoke", {"ID": lease})
    connection.close()


def _range(prefix: str) -> dict[str, str]:
    """Return the part of a request that means all keys that begin so."""
    return {"key": _encoded(prefix), "range_end": _encoded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
