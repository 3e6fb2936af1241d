"""One client and a lock that nobody else wants; one that its owner takes again; one that is held.

Each peer is compared on the servers that it knows. distlock has no backend for Redis: there it is
distlock on PostgreSQL, on the same machine, that is compared with the locks in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any

from benchmarks import bare
from benchmarks.harness import Block, Plan, Row, Side, Table, Worker, turns
from benchmarks.lock_peers import LOCK_PEERS, LockPeer, curator, distlock, of_tree
from benchmarks.servers import place

KINDS = ["PostgreSQL", "MariaDB", "SQLite", "ZooKeeper", "etcd", "Redis", "one machine"]
#: What a quick run leaves out.
SLOW = ["Redis", "one machine"]
Made = Callable[[Any], AbstractContextManager[Any]]
OURS = LockPeer(distlock, "the defaults", reentrant=True)


def ours(plan: Plan) -> dict[str, LockPeer]:
    """Return this distlock, and that of another working tree if it is to be compared."""
    return {name: OURS._replace(make=make) for name, make in trees(plan, distlock).items()}


def trees(plan: Plan, make: Made) -> dict[str, Made]:
    """Return what makes a side of distlock, by name: here, and with another working tree."""
    found = {"distlock": make}
    if plan.against:
        found["distlock, other tree"] = partial(of_tree, make=make, folder=plan.against)
    return found


_UNIT = "cycles"
#: Bytes that no cache of a processor can hold, and bytes of a line of it.
_MORE_THAN_CACHES, _LINE = 96 << 20, 64
_OF_ONE_PROCESS = (
    "distlock's `LocalBackend` has the locks of one process, for tests and development;"
    " those of the others are files, and count for all processes of the machine."
)
_SQL = [
    Side("INSERT + DELETE", bare.insert_and_delete, "a row with a unique name, over the driver"),
    Side("its own statements", bare.own_statements, "those of distlock, prepared, bare driver"),
]
BARE = {
    "PostgreSQL": _SQL,
    "MariaDB": _SQL,
    "SQLite": _SQL,
    "ZooKeeper": [
        Side("bare requests", bare.own_requests_of_zookeeper, "create, get_children, delete")
    ],
    "etcd": [Side("bare requests", bare.own_requests_of_etcd, "two transactions, `http.client`")],
}
#: The least ratio with ``--check``.
LEAST = {
    ("PostgreSQL", "INSERT + DELETE"): 1.0,
    ("MariaDB", "INSERT + DELETE"): 0.8,
    ("SQLite", "INSERT + DELETE"): 0.8,
    ("ZooKeeper", "kazoo"): 2.0,
    ("ZooKeeper", "Curator"): 1.25,
    ("etcd", "tooz"): 2.0,
    ("etcd", "bare requests"): 0.8,
}


def uncontended(name: str, peer: LockPeer) -> Side:
    @contextmanager
    def make(where: Any) -> Iterator[Any]:
        with peer.make(where) as locks:

            def cycle() -> None:
                with locks.hold():
                    pass

            yield cycle

    return Side(name, make, peer.settings)


def again(name: str, peer: LockPeer) -> Side:
    """The lock is held all the while, and taken again by its owner."""

    @contextmanager
    def make(where: Any) -> Iterator[Any]:
        with peer.make(where) as locks, locks.hold():

            def cycle() -> None:
                with locks.hold():
                    pass

            yield cycle

    return Side(name, make, peer.settings)


def busy(name: str, peer: LockPeer) -> Side:
    """Another process holds the lock, and a try without waiting fails."""

    @contextmanager
    def make(where: Any) -> Iterator[Any]:
        @contextmanager
        def holding(there: Any) -> Iterator[Any]:
            with peer.make(there) as locks, locks.hold():
                yield lambda: None

        holder = Worker(Side(name, holding), where)
        try:
            if holder.left_out:
                raise RuntimeError(holder.left_out)
            with peer.make(where) as locks:

                def cycle() -> None:
                    if locks.attempt():
                        raise RuntimeError("the lock was granted twice")

                yield cycle
        finally:
            holder.close()

    return Side(name, make, peer.settings)


class Cold:
    """A cycle that finds nothing of what it needs in the caches of the processor.

    So does each of many processes in its turn, after all the others. The time in which the caches
    are filled with something else is not counted.
    """

    def __init__(self, cycle: Callable[[], object]) -> None:
        self._cycle, self._memory = cycle, bytearray(_MORE_THAN_CACHES)

    def __call__(self) -> None:
        self._cycle()

    def run(self, seconds: float) -> Block:
        ends, count, took, used = time.perf_counter() + seconds, 0, 0.0, 0.0
        while time.perf_counter() < ends:
            self._memory[::_LINE] = bytes(len(self._memory) // _LINE)
            began, before = time.perf_counter(), time.process_time()
            self._cycle()
            used += time.process_time() - before
            took, count = took + time.perf_counter() - began, count + 1
        return Block(count, took, used)


def cold(side: Side) -> Side:
    @contextmanager
    def make(where: Any) -> Iterator[Any]:
        with side.make(where) as cycle:
            yield Cold(cycle)

    return Side(f"{side.name}, cold", make, side.settings)


def with_cold_caches(kind: str, plan: Plan, where: Any) -> Table:
    """Compare what a cycle costs if its code and data have to come from memory."""
    both = [uncontended(name, peer) for name, peer in ours(plan).items()]
    both.append(_SQL[1])
    rows = turns([*map(cold, both), *both], where, plan)
    title = f"{kind}: nobody else wants the lock, and the processor's caches are cold"
    return Table(title, _UNIT, rows, plot="")


def sides(
    kind: str, as_side: Callable[[str, LockPeer], Side], plan: Plan, reentrant: bool = False
) -> list[Side]:
    """Return distlock and the peers of a kind of server, each as one side of a case."""
    peers = ours(plan) | LOCK_PEERS.get(kind, {})
    return [as_side(name, peer) for name, peer in peers.items() if peer.reentrant or not reentrant]


@contextmanager
def prepared(kind: str) -> Iterator[Any]:
    """Start a server of a kind with all tables that the locks need there."""
    with place(kind) as where:
        apps = [app for peer in LOCK_PEERS.get(kind, {}).values() for app in peer.apps]
        if where.django:
            where.migrate(*installed(apps))
        yield where


def installed(apps: list[str]) -> list[str]:
    """Return those that can be imported."""
    from importlib.util import find_spec

    return [app for app in apps if find_spec(app.partition(".")[0])]


def measure(plan: Plan) -> Iterator[Table]:
    for kind in KINDS:
        if plan.quick and kind in SLOW:
            continue
        if kind == "Redis":
            yield in_memory(plan)
            continue
        with prepared(kind) as where:
            compared = [*sides(kind, uncontended, plan), *BARE.get(kind, [])]
            if kind == "ZooKeeper":
                note = "`InterProcessMutex`, one object; Java"
                compared.append(Side("Curator", curator, note, warm_up=1.0))
            rows = turns(compared, where, plan)
            note = _OF_ONE_PROCESS if kind == "one machine" else ""
            yield Table(f"{kind}: nobody else wants the lock", _UNIT, rows, note=note)
            if not plan.quick and kind == "SQLite":
                yield in_write_ahead_log(plan, where)
            if not plan.quick and kind in ("PostgreSQL", "MariaDB"):
                yield with_cold_caches(kind, plan, where)
            if not plan.quick and kind in ("PostgreSQL", "MariaDB", "ZooKeeper"):
                rows = turns(sides(kind, again, plan, reentrant=True), where, plan)
                yield Table(f"{kind}: its owner takes it again", _UNIT, rows, plot="")
            if not plan.quick and kind != "one machine":
                rows = turns(sides(kind, busy, plan), where, plan)
                yield Table(f"{kind}: a try while another process holds it", "tries", rows)


def in_write_ahead_log(plan: Plan, plain: Any) -> Table:
    """Compare a file of SQLite that has a write-ahead log with one of the default journal."""
    with prepared("SQLite") as where:
        with closing(bare.connect(where)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")

        def in_plain(_: Any) -> Any:
            return OURS.make(plain)

        journal = OURS._replace(make=in_plain, settings="another file")
        compared = [
            *sides("SQLite", uncontended, plan),
            uncontended("with the default journal", journal),
            _SQL[0],
        ]
        title = "SQLite, with a write-ahead log: nobody else wants the lock"
        return Table(title, _UNIT, turns(compared, where, plan))


def in_memory(plan: Plan) -> Table:
    """Compare distlock on PostgreSQL with the locks that are in Redis."""
    with prepared("PostgreSQL") as durable, place("Redis") as where:

        def on_postgresql(_: Any) -> Any:
            return OURS.make(durable)

        durably = LockPeer(on_postgresql, "on PostgreSQL")
        compared = [uncontended("distlock", durably)]
        compared += [uncontended(name, peer) for name, peer in LOCK_PEERS["Redis"].items()]
        rows: list[Row] = turns(compared, where, plan)
        rows[0].server = rows[0].requests = None  # those of Redis are not its own
    return Table(
        "Redis: nobody else wants the lock",
        _UNIT,
        rows,
        note="distlock has no backend for Redis: its locks are in PostgreSQL here. This Redis"
        " writes every change to disk (`appendfsync always`).",
    )
