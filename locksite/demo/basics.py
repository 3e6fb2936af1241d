"""What a lock does, system by system: taking, waiting, entering again, ending."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from django.conf import settings
from django.db import connection, connections
from django.utils.module_loading import import_string

from distlock import Lock, LockNotHeld, LockUnavailable, State, locks
from distlock.backends.base import BaseBackend
from distlock.models import DatabaseLock
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from locksite.demo.processes import LEASE, Worker, WorkerPool
from locksite.demo.results import Result

DATABASE = "distlock.backends.database.DatabaseBackend"
ENTERED = 3
THREADS = 8
#: Seconds within which a place that does not answer must be told.
TOLD = 5.0


def lock_table(pool: WorkerPool) -> Iterator[Result]:
    """The table of the locks, as the database has it."""
    table = DatabaseLock._meta.db_table
    with connection.cursor() as cursor:
        columns = {
            column.name for column in connection.introspection.get_table_description(cursor, table)
        }
        unique = connection.introspection.get_constraints(cursor, table)["uiq_idx_lock"]
    ok = {"id", "lock", "description"} <= columns and unique["columns"] == ["lock"]
    yield Result("The table: lock, unique", "is there", "is there" if ok else "is not", ok, 1)


def trying_once(pool: WorkerPool) -> Iterator[Result]:
    """All workers try at once, and nobody waits; then the one who has it leaves."""
    lock = Lock(_new_name())
    got = pool.run_all("try_once", lock=lock.name).count(True)
    yield Result(f"{pool.size} processes try once", "1 gets it", f"{got} got it", got == 1, 2)
    left = sum(pool.run_all("leave", lock=lock.name))
    free = lock.acquire(blocking=False)
    lock.release()
    yield Result("It is left, and had by the next", "1, free", f"{left}, {_word(free)}", free, 2)
    waiters = len(lock.info().waiters or ())
    yield Result("Who tried in vain, and left a trace", "nobody", str(waiters or "nobody"),
                 not waiters, 8)  # fmt: skip


def stuck_lock(pool: WorkerPool) -> Iterator[Result]:
    """A process takes a lock and is killed; a sweep frees it, and not before its lease ends."""
    lock = Lock(_new_name())
    with _holder(lock) as holder:
        holder.kill()
        ends = time.monotonic() + 2 * LEASE
        locks["default"].sweep()
        held = lock.locked() or not locks["default"].capabilities.lease_lengths
        while lock.locked() and time.monotonic() < ends:
            time.sleep(0.2)
            locks["default"].sweep()
    state = lock.info().state
    yield Result("A dead holder's lock, when its lease ends", "free", state, state is State.FREE
                 and held, 3)  # fmt: skip


def waiting(pool: WorkerPool) -> Iterator[Result]:
    """A lock is held; who waits for a time gives up, who waits for ever gets it."""
    lock = Lock(_new_name())
    with _holder(lock) as holder:
        in_vain, waited = _try_for(lock, 0.3)
        seen = f"{'got it' if in_vain else 'gave up'}"
        yield Result("Waiting 0.3 s for a held lock", "gives up", seen,
                     not in_vain and waited >= 0.3, 4)  # fmt: skip
        holder.send_line("leave")
        got = lock.acquire()
        lock.release()
    yield Result("Waiting until it is free", "gets it", "got it" if got else "gave up", got, 4)


def entering_again(pool: WorkerPool) -> Iterator[Result]:
    """The same owner enters again, and leaves as often; then it is free, and not before."""
    lock = Lock(_new_name())
    states = []
    for _ in range(ENTERED):
        lock.acquire()
    for _ in range(ENTERED):
        states.append(lock.locked())
        lock.release()
    states.append(lock.locked())
    balanced = states == [True] * ENTERED + [False]
    yield Result(f"Entered {ENTERED} times, left {ENTERED} times", "free then",
                 "free then" if balanced else str(states), balanced, 5)  # fmt: skip
    try:
        lock.release()
        refused = False
    except LockNotHeld:
        refused = True
    yield Result("Left once more", "refused", "refused" if refused else "done", refused, 9)


def silent_place(pool: WorkerPool) -> Iterator[Result]:
    """A place that cannot be asked is told as such, in time; the others go on."""
    with _unreachable() as backend:
        began = time.monotonic()
        claim = Claim(_new_name(), current_owner(), LEASE)
        try:
            seen = "a grant" if backend.try_acquire(claim, time.monotonic() + 1) else "held"
        except LockUnavailable:
            seen = "unavailable"
        took = time.monotonic() - began
    yield Result("A lock in a place that does not answer", "unavailable", seen,
                 seen == "unavailable" and took < TOLD, 6)  # fmt: skip
    with Lock(_new_name()) as lock:
        held = lock.held
    yield Result("A lock elsewhere, meanwhile", "held", "held" if held else "not", held, 6)


def first_come_first_served(pool: WorkerPool) -> Iterator[Result]:
    """All workers wait, one after the other, and are served in this order."""
    lock = Lock(_new_name())
    with _holder(lock) as holder:
        for place, worker in enumerate(pool.workers):
            worker.start("wait_in_line", lock=lock.name)
            worker.expect("asks")
            _until_waiting(lock, place + 1)
        holder.send_line("leave")
        tokens = pool.results()
    fair = locks["default"].capabilities.fair
    expected = "in order" if fair else "each once"  # SQLite knows no queue
    ok = tokens == sorted(set(tokens)) if fair else len(set(tokens)) == pool.size
    seen = expected if ok else str(tokens)
    yield Result(f"{pool.size} processes wait in line", expected, seen, ok, 7)


def threads_of_one_process(pool: WorkerPool) -> Iterator[Result]:
    """Many threads of one process want a lock: at the backend, one of them waits for all."""
    lock = Lock(_new_name())
    worker = pool.workers[0]
    with _holder(lock) as holder:
        worker.start("threads_wait", lock=lock.name, threads=THREADS)
        worker.expect("ask")
        _until_waiting(lock, 1)
        time.sleep(0.3)  # if they all wait, they can be seen by now
        asking = len(lock.info().waiters or ())
        holder.send_line("leave")
        served = worker.expect("done")
    known = locks["default"].capabilities.waiters
    ok = served == THREADS and (asking == 1 or not known)
    yield Result(f"{THREADS} threads of one process wait", f"1, then {THREADS}",
                 f"{asking if known else 1}, then {served}", ok, 12)  # fmt: skip


def who_holds_it(pool: WorkerPool) -> Iterator[Result]:
    """The backend itself says who has a lock, and whether it is still this very hold."""
    lock = Lock(_new_name())
    with _holder(lock) as holder:
        owner = lock.info().owner
        same = owner is not None and owner.pid == holder.pid
        yield Result("Who has it, asked of the backend", "its process",
                     "its process" if same else str(owner), same, 13)  # fmt: skip
        holder.send_line("leave")
    with lock:
        lock.verify()
        token = lock.token
    yield Result("The holder asks, too, and has a token", "a number", "a number", token > 0, 13)


def _try_for(lock: Lock, seconds: float) -> tuple[bool, float]:
    """Return whether a lock could be had in this time, and how long that took."""
    began = time.monotonic()
    try:
        got = lock.acquire(timeout=seconds)
    except LockUnavailable:  # a busy machine may not answer in so short a time: once more
        began = time.monotonic()
        got = lock.acquire(timeout=seconds)
    return got, time.monotonic() - began


def _new_name() -> str:
    return f"demo:{uuid.uuid4().hex}"


def _word(free: bool) -> str:
    return "free" if free else "held"


@contextmanager
def _holder(lock: Lock) -> Iterator[Worker]:
    """Let a process of its own hold a lock, until it is sent a line."""
    with closing(Worker()) as worker:
        worker.expect("ready")
        lease = LEASE if locks["default"].capabilities.lease_lengths else None
        worker.start("hold_until_told", lock=lock.name, lease=lease)
        worker.expect("holding")
        yield worker


def _until_waiting(lock: Lock, number: int) -> None:
    """Wait until so many processes wait for a lock; where that is not known, for a moment."""
    if not locks["default"].capabilities.waiters:
        time.sleep(0.5)
        return
    ends = time.monotonic() + LEASE
    while len(lock.info().waiters or ()) < number and time.monotonic() < ends:
        time.sleep(0.01)


@contextmanager
def _unreachable() -> Iterator[BaseBackend]:
    """Return a backend like that of the demo, in a place where nobody answers."""
    wanted = dict(settings.DISTLOCK["default"])
    logger = logging.getLogger("distlock.zookeeper")  # which would write that nobody answers
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    with TemporaryDirectory(prefix="distlock-demo-") as folder:
        if locks["default"].uses_location:
            wanted["LOCATION"] = "127.0.0.1:9"  # the port that discards: nobody listens there
        else:
            missing = str(Path(folder) / "missing" / "db.sqlite3")
            connections.settings["unreachable"] = connections.configure_settings(
                {"default": {}, "away": {"ENGINE": "django.db.backends.sqlite3", "NAME": missing}}
            )["away"]
            wanted = {"BACKEND": DATABASE, "OPTIONS": {"database": "unreachable"}}
        try:
            with closing(import_string(wanted["BACKEND"])("unreachable", wanted)) as backend:
                yield backend
        finally:
            connections.settings.pop("unreachable", None)
            logger.setLevel(level)
