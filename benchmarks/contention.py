"""Many processes want one lock without pause: who gets how many turns, and how soon the next one.

Every process takes the lock, does nothing, and frees it, over and over. The crowd of a side is
started for its block and ends with it, so that nobody else runs meanwhile. "Hand-over" is the time
from the moment when a holder begins to free the lock to the moment when another process has it.
"Fewest ÷ most" compares the turns of the processes. Shared memory shows it if two processes hold a
lock at once.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from ctypes import c_double, c_longlong
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from benchmarks.bare import own_turns, queued_updates, turn_of
from benchmarks.harness import Plan, Row, Table, alternated, die_with_parent, processes, quartiles
from benchmarks.lock_peers import LOCK_PEERS, LockPeer
from benchmarks.locks import OURS, ours, prepared
from benchmarks.servers import in_child

KINDS = ["PostgreSQL", "MariaDB", "ZooKeeper", "etcd", "Redis"]
COUNTS = [2, 8, 32, 128]
#: Seconds in which the processes contend before turns are counted, and while they are.
WARM_UP, SECONDS = 0.7, 2.0
#: Before that, so many processes at a time begin to contend, until each has had a turn: a process
#: that waits for the first time may connect again, which must not be counted.
TOGETHER = 8
#: Seconds in which all get their first turn. Some peers let a process wait for longer.
FIRST_TURNS = 10.0
#: Seconds that a crowd gets to start, and to end.
PATIENCE = 60.0
#: Hand-overs that each process notes, at most.
NOTED = 3000
#: What forked processes need not load again.
LOADED = [
    "django.db.models",
    "psycopg",
    "MySQLdb",
    "kazoo.client",
    "tooz.coordination",
    "redis",
    "redis_lock",
    "sqlalchemy",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy_dlock",
    "mithril",
    "portalocker",
    "structlog",
    "requests",
]
#: Numbers of crowds: the name of a process has that of its crowd and its own.
_crowds = itertools.count()
_BY_HAND = LockPeer(queued_updates, "the engine's lock and two UPDATEs, one connection, by hand")


class Referee:
    """Shared memory in which a double grant shows, and when the last holder began to leave."""

    def __init__(self) -> None:
        self.inside = processes.Value(c_longlong, 0, lock=False)
        self.last = processes.Value(c_longlong, 0, lock=False)
        self.left_at = processes.Value(c_double, 0, lock=False)
        self.twice = processes.Value(c_longlong, 0, lock=False)
        #: From when on turns are counted.
        self.begins = processes.Value(c_double, math.inf, lock=False)


class Limits(NamedTuple):
    """How long a crowd works; with ``turns``, until each process has had so many."""

    seconds: float
    turns: int = 0


class Turns(NamedTuple):
    """What one process did in the time."""

    turns: int
    longest: float
    processor: float
    handovers: list[float]


class Crowded(NamedTuple):
    """What a crowd did in a block; server is its processor time."""

    members: list[Turns]
    seconds: float
    server: float

    @property
    def turns(self) -> int:
        return sum(member.turns for member in self.members)

    @property
    def rate(self) -> float:
        return self.turns / self.seconds


def contend(
    peer: LockPeer, place: Any, referee: Referee, gates: tuple[Any, Any, Any], limits: Limits
) -> None:
    """Take turns until the time is up, or as many as there are to be, and report them."""
    die_with_parent()
    ready, start, results = gates
    with peer.make(place) as locks:
        if not limits.turns:
            with locks.hold():
                pass  # connections are open
        ready.release()
        start.acquire()
        results.put(_contend(locks, referee, limits, ready))


def _contend(locks: Any, referee: Referee, limits: Limits, had_turn: Any) -> Turns:
    me, clock, begins = os.getpid(), time.monotonic, referee.begins
    turns, longest, handovers = 0, 0.0, []
    used, is_counted, is_first = 0.0, False, True
    while (asked := clock()) < begins.value + limits.seconds and not 0 < limits.turns <= turns:
        if not is_counted:
            used, is_counted = time.process_time(), asked >= begins.value
        with locks.hold():
            got = clock()
            if referee.inside.value:
                referee.twice.value += 1
            referee.inside.value = me
            if begins.value <= got < begins.value + limits.seconds:
                turns += 1
                longest = max(longest, got - max(asked, begins.value))
                if referee.last.value not in (0, me) and len(handovers) < NOTED:
                    handovers.append(got - referee.left_at.value)
            referee.last.value, referee.inside.value = me, 0
            referee.left_at.value = clock()
        if is_first:
            had_turn.release()
            is_first = False
    return Turns(turns, longest, time.process_time() - used, handovers)


def _give_first_turns(start: Any, had_turn: Any, count: int) -> None:
    """Let processes begin, some at a time, until each has had a turn or the time is up."""
    ends, together = time.monotonic() + FIRST_TURNS, min(count, TOGETHER)
    for number in range(count + together):
        if number >= together:
            had_turn.acquire(timeout=max(ends - time.monotonic(), 0))
        if number < count:
            start.release()


def crowd(peer: LockPeer, place: Any, count: int, limits: Limits) -> Crowded:
    """Let so many processes contend; RuntimeError if they do not, or if two held it at once."""
    referee = Referee()
    ready, start, results = processes.Semaphore(0), processes.Semaphore(0), processes.SimpleQueue()
    arguments = (peer, place, referee, (ready, start, results), limits)
    name = f"crowd {next(_crowds)}"
    there = [
        processes.Process(target=contend, args=arguments, name=f"{name}-{number}")
        for number in range(count)
    ]
    try:
        for number, process in enumerate(there):
            process.start()
            # The first one makes the tables of some peers, which all the others would do at once.
            if not number and not ready.acquire(timeout=PATIENCE):
                raise RuntimeError(f"it was not ready within {PATIENCE:g} s")
        for _ in there[1:]:
            if not ready.acquire(timeout=PATIENCE):
                raise RuntimeError(f"{count} processes were not ready within {PATIENCE:g} s")
        if not limits.turns:
            _give_first_turns(start, ready, count)
            time.sleep(WARM_UP)
        referee.begins.value = time.monotonic()
        if limits.turns:  # all count from their first one, so all end after the same
            for _ in there:
                start.release()
        before, began = place.processor(), time.monotonic()
        if not limits.turns:
            time.sleep(limits.seconds)
            server = place.processor() - before
        members, ends = [], time.monotonic() + (PATIENCE / 3 if limits.turns else PATIENCE)
        while len(members) < count:
            if not results.empty():
                members.append(results.get())
            elif any(process.exitcode for process in there):
                raise RuntimeError("one of its processes failed")
            elif time.monotonic() > ends:
                raise RuntimeError(f"{count - len(members)} processes did not end")
            else:
                time.sleep(0.01)
        seconds = limits.seconds
        if limits.turns:
            seconds, server = time.monotonic() - began, place.processor() - before
        for process in there:
            process.join(PATIENCE)
    finally:
        for process in there:
            if process.is_alive():
                process.kill()
            if process.pid:
                process.join()
    if referee.twice.value and peer.exclusive:
        raise RuntimeError(f"granted twice, {referee.twice.value} times")
    return Crowded(members, seconds, server)


def compare(
    peers: dict[str, LockPeer], place: Any, count: int, plan: Plan, limits: Limits
) -> list[Row]:
    """Let crowds contend in turns."""
    seen: dict[str, list[Crowded]] = {name: [] for name in peers}
    left_out: dict[str, str] = {}
    rounds = 1 if plan.quick or count > 32 else 2
    for number in range(rounds):
        for name in alternated([*peers], number):
            if name in left_out:
                continue
            # A barrier of kazoo's hangs at times.
            for again in (limits.turns > 0 and not name.startswith("distlock"), False):
                try:
                    seen[name].append(crowd(peers[name], place, count, limits))
                    break
                except RuntimeError as error:
                    if not again:
                        left_out[name] = str(error)
                        break
    first = seen[next(iter(peers))]
    return [
        Row(name, peer.settings, left_out=left_out[name])
        if name in left_out
        else figures(Row(name, peer.settings), seen[name], first)
        for name, peer in peers.items()
    ]


def figures(row: Row, blocks: list[Crowded], ours: list[Crowded]) -> Row:
    members = [member for block in blocks for member in block.members]
    turns = max(sum(member.turns for member in members), 1)
    row.rate = quartiles([block.rate for block in blocks])
    if all(block.turns for block in blocks) and len(ours) == len(blocks):
        pairs = zip(ours, blocks, strict=True)
        row.ratio = quartiles([one.rate / other.rate for one, other in pairs])
    row.client = sum(member.processor for member in members) / turns * 1e6
    row.server = sum(block.server for block in blocks) / turns * 1e6
    handovers = sorted(time for member in members for time in member.handovers)
    fair = [
        min(m.turns for m in b.members) / max(max(m.turns for m in b.members), 1) for b in blocks
    ]
    row.extra = {
        "hand-over ms": statistics.median(handovers) * 1000 if handovers else None,
        "p99 ms": handovers[int(len(handovers) * 0.99)] * 1000 if handovers else None,
        "longest wait ms": max(member.longest for member in members) * 1000,
        "fewest ÷ most": statistics.median(fair),
    }
    return row


def measure(plan: Plan) -> Iterator[Table]:
    warnings.simplefilter("ignore")  # those of the peers' libraries
    for name in LOADED:
        with suppress(ImportError):
            import_module(name)
    kinds = ["PostgreSQL", "etcd"] if plan.quick else KINDS
    for kind in kinds:
        with prepared("PostgreSQL" if kind == "Redis" else kind) as where:
            yield from of_kind(kind, where, plan)


def of_kind(kind: str, where: Any, plan: Plan) -> Iterator[Table]:
    peers = {name: peer for name, peer in LOCK_PEERS[kind].items() if peer.waits}
    first = ours(plan)
    if kind in ("PostgreSQL", "MariaDB"):
        turn = in_child(partial(turn_of, where))
        note = "bare clients: what distlock asks in a turn to wait, take and free; one connection"
        peers["its own statements"] = LockPeer(partial(own_turns, turn=turn), note)
        peers["by hand"] = _BY_HAND
    if kind == "Redis":
        from benchmarks.servers import place

        make = partial(_on, where)
        first = {"distlock": LockPeer(make, "on PostgreSQL")}
        with place("Redis") as redis:
            yield from _counts(kind, first | peers, redis, plan)
        return
    yield from _counts(kind, first | peers, where, plan)


def _on(durable: Any, _: Any) -> Any:
    return OURS.make(durable)


def _counts(kind: str, peers: dict[str, LockPeer], where: Any, plan: Plan) -> Iterator[Table]:
    counts = COUNTS[:3] if kind == "Redis" else COUNTS
    for count in [8] if plan.quick else counts:
        # Long enough for some 60 turns of each, by which their shares are compared.
        seconds = SECONDS * 4 if (kind, count) == ("etcd", 32) else SECONDS
        rows = compare(peers, where, count, plan, Limits(seconds / (1 + plan.quick)))
        if kind == "Redis":
            rows[0].server = None
        yield Table(f"{kind}: {count} processes contend for one lock", "turns", rows)
